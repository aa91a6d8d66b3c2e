"""``heatsmooth demo``."""

from pathlib import Path
from typing import Annotated, Any

import typer

from heatsmooth.cli import options as o
from heatsmooth.cli.training import show, table

DATA, SIGMA = "fashion-mini", 0.25


def demo(
    *,
    out: Annotated[Path, typer.Option(help="Where the runs go; repeating the command continues them.")] = Path(
        "heatsmooth-demo"
    ),
    epochs: Annotated[int, typer.Option(help="Epochs of the baseline.")] = 5,
    images: Annotated[int, typer.Option(help="Test images to certify and attack.")] = 100,
    seed: o.Seed = 0,
    device: o.Device = None,
    quiet: o.Quiet = False,
    as_json: o.Json = False,
) -> None:
    """Tell the whole story on the embedded images: train, smooth without labels, certify, attack, audit, report.

    Example: heatsmooth demo --out heatsmooth-demo
    """
    from heatsmooth.auditing import Audit
    from heatsmooth.certification.settings import Settings
    from heatsmooth.progress import bar
    from heatsmooth.report import build_report
    from heatsmooth.training import Baseline, Plan
    from heatsmooth.workflows.attack import Attack, attack_run
    from heatsmooth.workflows.audit import audit_run
    from heatsmooth.workflows.certify import certify_run
    from heatsmooth.workflows.inputs import Images, Network
    from heatsmooth.workflows.sharing import by_the_leader
    from heatsmooth.workflows.training import smooth_run, train_run

    found: dict[str, Any] = {}
    with bar(shown=not quiet) as progress:
        plan = Plan(epochs=epochs, lr=0.2, warmup=0.15, weight_decay=5e-4)
        common: dict[str, Any] = {"seed": seed, "device": device, "progress": progress}
        train_run(images=Images(DATA), choices=Baseline(), plan=plan, out=out / "baseline", **common)
        found["smoothing"] = smooth_run(
            network=Network(out / "baseline"), images=Images(DATA), sigma=SIGMA, out=out / "smoothed", **common
        )
        for name in ("baseline", "smoothed"):
            given: dict[str, Any] = {"network": Network(out / name), "images": Images(DATA, stride=10, count=images)}
            found[f"{name} certified"] = certify_run(
                settings=Settings(SIGMA, n=1000), out=out / f"{name}-certified", **given, **common
            )
            found[f"{name} attacked"] = attack_run(attack=Attack(), out=out / f"{name}-attacked", **given, **common)
        how = Audit(SIGMA, n=500, steps=20, noise_samples=16)
        found["audit"] = by_the_leader(audit_run)(
            network=Network(out / "smoothed"),
            images=Images(DATA, stride=20, count=max(1, images // 2)),
            teacher=Network(out / "baseline"),
            how=how,
            out=out / "smoothed-audited",
            **common,
        )
    if found["smoothing"] is None:
        return
    page = build_report([out], out / "report.html", title="heatsmooth demo")
    if as_json:
        show(found, as_json)
        return
    rows = [_row(name, found) for name in ("baseline", "smoothed")]
    table(rows, f"{DATA}, σ={SIGMA}, {images} test images certified and attacked")
    typer.echo(
        "Accuracies: the network in one pass. Certified: its Gaussian average, each image false with probability at "
        "most 0.001; abstentions count as errors. Attacked: the median L2 distance that DDN needs on the network."
    )
    typer.echo(f"Audit of the smoothed network: {found['audit']['verdict']['text']}")
    typer.echo(f"Report: {page['out']}")


def _row(name: str, found: dict[str, Any]) -> dict[str, str]:
    from heatsmooth.statistics.radii import round_down

    prefix = "teacher_" if name == "baseline" else ""
    accuracy, certified, attacked = found["smoothing"], found[f"{name} certified"], found[f"{name} attacked"]
    distance = attacked["median_distance_of_attacked"]
    return {
        "network": name,
        "clean": f"{accuracy[f'{prefix}accuracy']:.1%}",
        "under noise": f"{accuracy[f'{prefix}accuracy_under_noise']:.1%}",
        "certified ≥ 0.25": f"{certified['certified_accuracy']['0.25']:.1%}",
        "mean radius (ACR)": f"{round_down(certified['average_certified_radius'], 3):.3f}",
        "attacked at": "beyond reach" if distance is None else f"{distance:.3f}",
    }
