"""Options that several commands share."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from heatsmooth.cli.help import FILES, NETWORK, RUNNING
from heatsmooth.errors import InputError, require

if TYPE_CHECKING:
    from heatsmooth.workflows.inputs import Network

SAMPLES = "Which images"
DATA_HELP = "fashion-mini, imagefolder:PATH, hf:NAME, …"
SOURCE_HELP = "A run directory, hf:NAME, or weights and --model."
SIGMA_HELP = "Deviation of the noise, in [0, 1] pixels."
OUT_HELP = "Run directory; repeating the command continues it."

Data = Annotated[str, typer.Option(help=DATA_HELP)]
DataRoot = Annotated[Path | None, typer.Option(help="Where the files of a data set are.")]
ImageSize = Annotated[
    int | None,
    typer.Option(help="Centre crop, in pixels (default: the network's, or at most 224).", rich_help_panel=FILES),
]
ClassIndex = Annotated[
    Path | None, typer.Option(help="Classes of an imagefolder: .json, .csv or .txt.", rich_help_panel=FILES)
]
SkipBroken = Annotated[bool, typer.Option("--skip-broken", help="Leave out unreadable images.", rich_help_panel=FILES)]
Count = Annotated[int | None, typer.Option(help="The first so many images.", rich_help_panel=SAMPLES)]
Stride = Annotated[int, typer.Option(help="Every k-th image: folders come class by class.", rich_help_panel=SAMPLES)]
Shard = Annotated[str, typer.Option(help="The i-th of n parts, as 1/4, for job arrays.", rich_help_panel=SAMPLES)]
LimitTrain = Annotated[int | None, typer.Option(help="A fixed subset of so many images.")]
Source = Annotated[Path, typer.Option("--from", help=SOURCE_HELP)]
Sigma = Annotated[float, typer.Option(help=SIGMA_HELP)]
Out = Annotated[Path, typer.Option(help=OUT_HELP)]

Model = Annotated[
    str | None,
    typer.Option(
        help="Built-in name (small, resnet20, …), package.module:callable, hf:NAME, or program (TorchScript, .pt2).",
        rich_help_panel=NETWORK,
    ),
]
Classes = Annotated[
    int | None, typer.Option(help="Classes of a built-in network (default: the data's).", rich_help_panel=NETWORK)
]
Mean = Annotated[
    str | None,
    typer.Option(help="Normalisation inside the network, as 0.5 or 0.49,0.48,0.45.", rich_help_panel=NETWORK),
]
Std = Annotated[str | None, typer.Option(help="Likewise, the deviations.", rich_help_panel=NETWORK)]

Seed = Annotated[int, typer.Option(help="Every random number follows from it.", rich_help_panel=RUNNING)]
Device = Annotated[
    str | None, typer.Option(help="cpu, or the accelerator if there is one (default).", rich_help_panel=RUNNING)
]
Quiet = Annotated[bool, typer.Option("--quiet", help="No progress.", rich_help_panel=RUNNING)]
Json = Annotated[bool, typer.Option("--json", help="One JSON object on standard output.", rich_help_panel=RUNNING)]
Checkpoint = Annotated[float, typer.Option(help="Seconds between checkpoints.", rich_help_panel=RUNNING)]
LogEvery = Annotated[int, typer.Option(help="Steps a line of metrics.jsonl averages.", rich_help_panel=RUNNING)]


def network(
    source: Path, model: str | None, classes: int | None, mean: str | None, std: str | None, image_size: int | None
) -> "Network":
    """The network that these options name."""
    from heatsmooth.workflows.inputs import Network

    means, deviations = numbers(mean, "--mean"), numbers(std, "--std")
    require((mean is None) == (std is None), "--mean, --std: expected both or none, got one; name the other")
    require(
        all(0 <= value <= 1 for value in means or ()),
        f"--mean: expected means of images in [0, 1], got {mean}; divide by 255",
    )
    return Network(source, model, classes, means, deviations, image_size)


def numbers(text: str | None, option: str) -> tuple[float, ...] | None:
    """The numbers of a comma-separated option.

    >>> numbers("0.5, 0.25", "--mean")
    (0.5, 0.25)
    """
    if text is None:
        return None
    try:
        return tuple(float(part) for part in text.split(","))
    except ValueError:
        raise InputError(f"{option}: expected numbers separated by commas, got {text!r}") from None
