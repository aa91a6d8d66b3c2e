"""``heatsmooth certify`` and ``heatsmooth predict``."""

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from heatsmooth.cli import options as o
from heatsmooth.cli.training import show, table
from heatsmooth.errors import InputError, require

CERTIFICATE = "Certificate"


def certify(
    *,
    data: Annotated[str | None, typer.Option(help=o.DATA_HELP)] = None,
    source: Annotated[Path | None, typer.Option("--from", help=o.SOURCE_HELP)] = None,
    sigma: Annotated[float | None, typer.Option(help=o.SIGMA_HELP)] = None,
    out: Annotated[Path | None, typer.Option(help=o.OUT_HELP)] = None,
    n: Annotated[int | None, typer.Option(help="Estimation draws an image, or the most: 10000.")] = None,
    n0: Annotated[int | None, typer.Option(help="Selection draws an image: 100.")] = None,
    alpha: Annotated[float | None, typer.Option(help="Probability that a certificate is false: 0.001.")] = None,
    class_from: Annotated[
        str | None,
        typer.Option(help="From n0 noisy draws (noise) or one pass (clean).", rich_help_panel=CERTIFICATE),
    ] = None,
    adaptive: Annotated[
        bool, typer.Option("--adaptive", help="Stop each image as soon as it is decided.", rich_help_panel=CERTIFICATE)
    ] = False,
    radii: Annotated[
        str | None,
        typer.Option(help="Radii to decide, as 0.25,0.5 (else to a tolerance).", rich_help_panel=CERTIFICATE),
    ] = None,
    tolerance: Annotated[
        float | None, typer.Option(help="Of an adaptive radius: 0.05.", rich_help_panel=CERTIFICATE)
    ] = None,
    bound: Annotated[str | None, typer.Option(help="one-sided or two-sided.", rich_help_panel=CERTIFICATE)] = None,
    top_k: Annotated[
        int | None, typer.Option(help="The label stays among the k most probable.", rich_help_panel=CERTIFICATE)
    ] = None,
    n_wrong: Annotated[
        int | None, typer.Option(help="Fewer draws where the class is not the label.", rich_help_panel=CERTIFICATE)
    ] = None,
    means: Annotated[
        bool, typer.Option("--means", help="Also record mean probabilities.", rich_help_panel=o.RUNNING)
    ] = False,
    recompute: Annotated[
        Path | None,
        typer.Option(help="Other settings, from the counts of this run.", rich_help_panel=CERTIFICATE),
    ] = None,
    tsv: Annotated[
        Path | None, typer.Option(help="Also write Cohen's tab-separated log.", rich_help_panel=CERTIFICATE)
    ] = None,
    one_pass: Annotated[
        bool, typer.Option("--one-pass", help="Radii of a calibrated model, no noise.", rich_help_panel=CERTIFICATE)
    ] = False,
    estimate: Annotated[
        bool, typer.Option("--estimate", help="Only say what the run would cost.", rich_help_panel=CERTIFICATE)
    ] = False,
    throughput: Annotated[
        float | None, typer.Option(help="Samples a second of the machine in mind.", rich_help_panel=o.RUNNING)
    ] = None,
    images: o.Count = None,
    stride: o.Stride = 1,
    shard: o.Shard = "1/1",
    data_root: o.DataRoot = None,
    image_size: o.ImageSize = None,
    class_index: o.ClassIndex = None,
    skip_broken: o.SkipBroken = False,
    model: o.Model = None,
    classes: o.Classes = None,
    mean: o.Mean = None,
    std: o.Std = None,
    batch_size: Annotated[
        int | None, typer.Option(help="Noisy copies a pass; results do not depend on it.", rich_help_panel=o.RUNNING)
    ] = None,
    compiled: Annotated[bool, typer.Option("--compile", help="Use torch.compile.", rich_help_panel=o.RUNNING)] = False,
    seed: o.Seed = 0,
    device: o.Device = None,
    quiet: o.Quiet = False,
    as_json: o.Json = False,
) -> None:
    """Certify, image by image, the L2 radius within which the Gaussian average of a network keeps its class.

    Example: heatsmooth certify --data fashion-mini --from runs/smoothed --sigma 0.25 --images 100 --out runs/certified
    """
    from heatsmooth.certification.settings import Settings
    from heatsmooth.progress import bar
    from heatsmooth.workflows.calibrate import one_pass_run
    from heatsmooth.workflows.certify import certify_run, recompute_run
    from heatsmooth.workflows.estimate import estimate_run
    from heatsmooth.workflows.inputs import Images
    from heatsmooth.workflows.sharing import by_the_leader

    chosen: dict[str, Any] = {
        "n": n,
        "n0": n0,
        "alpha": alpha,
        "class_from": class_from,
        "tolerance": tolerance,
        "bound": bound,
        "top_k": top_k,
        "radii": o.numbers(radii, "--radii"),
        "n_wrong": n_wrong,
    }
    chosen = {name: value for name, value in chosen.items() if value is not None}
    if recompute is not None:
        given = {"--data": data, "--from": source, "--sigma": sigma, "--adaptive": adaptive, "--images": images}
        given |= {f"--{name}": chosen.get(name) for name in ("n", "n0", "n_wrong", "radii", "tolerance")}
        unfit = [name for name, value in given.items() if value]
        require(not unfit, f"--recompute: expected settings that counts allow, got {unfit[:1]}; leave it out")
        show_certificates(by_the_leader(recompute_run)(source=recompute, changes=chosen, out=out, log=tsv), as_json)
        return
    if one_pass:
        if data is None or source is None or out is None:
            raise InputError("certify --one-pass: expected --data, --from and --out, got less; name them")
        with bar(shown=not quiet) as progress:
            found = by_the_leader(one_pass_run)(
                network=o.network(source, model, classes, mean, std, image_size),
                images=Images(data, data_root, class_index, skip_broken, stride, images),
                out=out,
                device=device,
                batch_size=batch_size,
                progress=progress,
            )
        show_certificates(found, as_json)
        return
    out = Path() if estimate else out
    if data is None or source is None or sigma is None or out is None:
        missing = [
            name
            for name, value in (("--data", data), ("--from", source), ("--sigma", sigma), ("--out", out))
            if value is None
        ]
        raise InputError(f"certify: expected --data, --from, --sigma and --out (or --recompute), got no {missing[0]}")
    part = parsed_shard(shard)
    with bar(shown=not quiet) as progress:
        common: dict[str, Any] = {
            "settings": Settings(sigma, adaptive=adaptive, **chosen),
            "network": o.network(source, model, classes, mean, std, image_size),
            "images": Images(data, data_root, class_index, skip_broken, stride, images),
            "compiled": compiled,
            "seed": seed,
            "device": device,
            "batch_size": batch_size,
            "progress": progress,
        }
        if estimate:
            show(estimate_run(shards=part[1], throughput=throughput, **common), as_json)
            return
        summary = certify_run(out=out, shard=part, means=means, log=tsv, **common)
    show_certificates(summary, as_json)


def predict(
    *,
    files: Annotated[list[Path], typer.Argument(metavar="IMAGE…", help="Image files.")],
    source: o.Source,
    sigma: Annotated[
        float | None, typer.Option(help="Noise of the average, for the L-bound, in [0, 1] pixels.")
    ] = None,
    noise_samples: Annotated[int, typer.Option(help="Also PREDICT from so many noisy draws.")] = 0,
    alpha: Annotated[float, typer.Option(help="Probability that PREDICT is wrong.")] = 0.001,
    image_size: Annotated[int | None, typer.Option(help="Side of the centre crop (default: the network's).")] = None,
    model: o.Model = None,
    classes: Annotated[int, typer.Option(help="Classes of a built-in network.", rich_help_panel=o.NETWORK)] = 10,
    mean: o.Mean = None,
    std: o.Std = None,
    seed: Annotated[
        int | None, typer.Option(help="Of the noise (default: a secret one).", rich_help_panel=o.RUNNING)
    ] = None,
    device: o.Device = None,
    as_json: o.Json = False,
) -> None:
    """Classify images in one pass, with the L-bound; with noise, by Cohen's PREDICT.

    Example: heatsmooth predict --from runs/smoothed --sigma 0.25 shoe.png
    """
    from heatsmooth.workflows.certify import predict_images

    rows = predict_images(
        network=o.network(source, model, classes, mean, std, image_size),
        files=files,
        sigma=sigma,
        noise_samples=noise_samples,
        alpha=alpha,
        seed=seed,
        device=device,
    )
    if as_json:
        typer.echo(json.dumps({"predictions": rows}))
        return
    shown = []
    for row in rows:
        columns = {
            "image": row["image"],
            "class (one pass)": "–" if row["class"] is None else str(row["class"]),
            "probability": "–" if row["probability"] is None else f"{row['probability']:.4f}",
        }
        if sigma is not None:
            columns["L-bound*"] = f"{row['l_bound']:.4f}"
        if "one_pass_radius" in row:
            columns["radius†"] = f"{row['one_pass_radius']:.4f}"
        if noise_samples:
            found = row["average_class"]
            columns["class of the average"] = "abstains" if found is None else str(found)
        shown.append(columns)
    table(shown, "")
    if sigma is not None:
        typer.echo(
            f"* L2 radius of the network in one pass; assumes an exact average over σ={sigma:g}; nothing checks it."
        )
    if "one_pass_radius" in rows[0]:
        typer.echo(f"† L2 radius of the average, for this class: {rows[0]['one_pass_basis']}. 0 claims nothing.")
    if noise_samples:
        typer.echo(
            f"The class of the average is from {noise_samples} noisy draws; wrong with probability at most {alpha:g}."
        )


def parsed_shard(text: str) -> tuple[int, int]:
    """The numbers of i/n.

    >>> parsed_shard("2/4")
    (2, 4)
    """
    first, _, second = text.partition("/")
    good = first.isdecimal() and second.isdecimal() and 1 <= int(first) <= int(second)
    require(good, f"--shard: expected I/N with 1 ≤ I ≤ N, got {text!r}")
    return int(first), int(second)


def show_certificates(summary: dict[str, Any] | None, as_json: bool) -> None:
    """Print a summary; the accuracies at the radii that are certified, or claimed from one pass, as a table."""
    if summary is None or as_json:
        show(summary, as_json)
        return
    tables = [(name, summary.pop(name)) for name in ("certified_accuracy", "claimed_accuracy") if name in summary]
    show(summary, as_json)
    for name, shares in tables:
        rows = [{"radius ≥": radius, name.replace("_", " "): f"{share:.1%}"} for radius, share in shares.items()]
        table(rows, "")
