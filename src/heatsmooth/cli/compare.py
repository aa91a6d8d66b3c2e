"""``heatsmooth compare``."""

import math
from pathlib import Path
from typing import Annotated, Any

import typer

from heatsmooth.cli import options as o
from heatsmooth.cli.training import show, table
from heatsmooth.errors import InputError

CHANGES = "Changes to the recipe"


def compare(
    recipe: Annotated[
        str,
        typer.Argument(help="cifar10, imagenet, cifar10-small, fashion-small or imagenet-sample.", metavar="RECIPE"),
    ],
    *,
    out: Annotated[Path | None, typer.Option(help="Where the runs go: RECIPE, unless named.")] = None,
    data_root: o.DataRoot = None,
    rehearse: Annotated[
        bool, typer.Option("--rehearse", help="All stages on a handful of images: does it run?")
    ] = False,
    seeds: Annotated[str, typer.Option(help="As 0,1,2: mean and spread over them.")] = "0",
    data: Annotated[str | None, typer.Option(help=o.DATA_HELP, rich_help_panel=CHANGES)] = None,
    methods: Annotated[
        str | None, typer.Option(help="Compare only these, as bootcamp,gaussian.", rich_help_panel=CHANGES)
    ] = None,
    images: Annotated[int | None, typer.Option(help="Test images to certify.", rich_help_panel=CHANGES)] = None,
    n: Annotated[int | None, typer.Option(help="Estimation draws an image.", rich_help_panel=CHANGES)] = None,
    n_wrong: Annotated[
        int | None, typer.Option(help="Fewer of them where the class is wrong.", rich_help_panel=CHANGES)
    ] = None,
    smooth_on: Annotated[
        str | None, typer.Option(help="Other images to train and smooth on.", rich_help_panel=CHANGES)
    ] = None,
    source: Annotated[
        Path | None, typer.Option("--from", help="Your undefended network.", rich_help_panel=CHANGES)
    ] = None,
    image_size: Annotated[
        int | None, typer.Option(help="Centre crop of an imagefolder.", rich_help_panel=CHANGES)
    ] = None,
    class_index: o.ClassIndex = None,
    model: o.Model = None,
    classes: o.Classes = None,
    mean: o.Mean = None,
    std: o.Std = None,
    device: o.Device = None,
    quiet: o.Quiet = False,
    as_json: o.Json = False,
) -> None:
    """Make, certify, attack, time and audit every method of the paper, and report; repeating it continues it.

    Example: heatsmooth compare fashion-small --out runs/fashion-small
    """
    from heatsmooth.progress import bar
    from heatsmooth.report import build_report
    from heatsmooth.report.compared import EXPLAINED, conditions, figures, gained, ratios
    from heatsmooth.workflows.compare import brought, chosen_recipe, compare_run, for_report

    network = brought(source, model=model, classes=classes, mean=o.numbers(mean, "--mean"), std=o.numbers(std, "--std"))
    changes: dict[str, Any] = {"data": data, "certified": images, "n": n, "image_size": image_size}
    changes |= {"n_wrong": n_wrong, "smooth_on": smooth_on}
    chosen = chosen_recipe(
        recipe,
        rehearse=rehearse,
        given=network is not None,
        methods=None if methods is None else methods.split(","),
        **changes,
    )
    place = out or Path(recipe)
    with bar(shown=not quiet) as progress:
        found = compare_run(
            chosen,
            out=place,
            seeds=_seeds(seeds),
            data_root=data_root,
            network=network,
            class_index=class_index,
            device=device,
            progress=progress,
        )
        if found is None:  # another process leads
            return
        first, *others = found["seeds"]
        title = f"heatsmooth: {recipe}" + (f", runs of seed {first}" if others else "")
        page = build_report(for_report(place, first), place / "report.html", title=title)
    found["report"] = page["out"]
    if as_json:
        show(found, as_json)
        return
    table(
        [{"method": name, **figures(row)} for name, row in found["methods"].items()],
        f"{chosen.about} σ={chosen.sigma:g}",
    )
    averaging = " and ".join(name for name, method in chosen.compared.items() if method.stochastic)
    answer = f" The answer of {averaging} is that of its average." if averaging else ""
    typer.echo(f"{EXPLAINED}{answer} ({conditions(found)}.)")
    table([_attacked(name, row) for name, row in found["methods"].items()], "Attacked, and timed on one image")
    goal = "top-1" if found["attacked_top_k"] == 1 else f"top-{found['attacked_top_k']}"
    typer.echo(
        f"PGD and DDN: the median L2 distance at which {chosen.steps} steps of the {goal} attack succeed, over images "
        "right at the start; on one fixed average of draws where a method predicts by averaging."
    )
    if not found["certified_images_unseen"]:
        typer.echo("The networks were made on the very images that are certified; name others by --smooth-on.")
    for name, gain in found["gains"].items():
        rows = [dict(zip(("", "before", "after", "change"), row, strict=True)) for row in gained(gain)]
        table(rows, f"{gain['from']} → {name}, with 95 % intervals over images")
    heads = ("ACR of", "against that of", "", *(("by seed",) if others else ()))
    if factors := [dict(zip(heads, row, strict=False)) for row in ratios(found)]:
        table(factors, "With 95 % intervals over images, for these very networks")
    typer.echo(f"Report: {page['out']}")


def _seeds(text: str) -> tuple[int, ...]:
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError:
        raise InputError(f"--seeds: expected whole numbers as 0,1,2, got {text!r}") from None


def _attacked(name: str, row: dict[str, Any]) -> dict[str, str]:
    def distance(key: str) -> str:
        spread = f" ± {row[f'{key}_sd']:.3f}" if f"{key}_sd" in row else ""
        return "–" if row[key] is None else f"{math.ceil(1000 * row[key]) / 1000:.3f}{spread}"

    once, often = row["one_pass_seconds"], row["stochastic_seconds"]
    return {
        "method": name,
        "PGD": distance("pgd_median"),
        "DDN": distance("ddn_median"),
        "one pass": f"{1000 * once:.1f} ms",
        "stochastic": f"{1000 * often:.1f} ms",
        "slower by": f"× {often / once:.1f}",
    }
