"""The command line: parse, call one function, show progress. Nothing is computed here."""

import shlex
import sys
import warnings
from pathlib import Path
from typing import Annotated

import typer

from heatsmooth.cli.attack import attack
from heatsmooth.cli.audit import audit
from heatsmooth.cli.calibrate import calibrate
from heatsmooth.cli.certify import certify, predict
from heatsmooth.cli.check import check
from heatsmooth.cli.compare import compare
from heatsmooth.cli.demo import demo
from heatsmooth.cli.export import export
from heatsmooth.cli.help import Command
from heatsmooth.cli.report import report
from heatsmooth.cli.serve import serve
from heatsmooth.cli.training import smooth, train
from heatsmooth.errors import InputError
from heatsmooth.version import VERSION

INTERRUPTED = 130
USAGE_ERROR: type[typer.BadParameter] = next(p for p in typer.BadParameter.__mro__ if p.__name__ == "ClickException")
"""What typer raises for a wrong command line, whichever click it brings along."""

app = typer.Typer(
    name="heatsmooth",
    help="Make a pretrained image classifier robust in one epoch without labels, "
    "and say how large an L2 perturbation it withstands.",
    epilog="Start with `heatsmooth demo`; `heatsmooth COMMAND --help` shows an example of each. Repeating an "
    "interrupted command continues it. Exit codes: 0 done, 2 wrong use or input, 130 interrupted.",
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
app.command(cls=Command, short_help="The whole story on embedded images, in minutes.")(demo)
app.command(cls=Command, short_help="Say what was understood of a network.")(check)
app.command(cls=Command, short_help="Train a network with labels: a baseline, or a rival.")(train)
app.command(cls=Command, short_help="Make a network robust: one epoch, no labels.")(smooth)
app.command(cls=Command, short_help="Certify the L2 radius of each image.")(certify)
app.command(cls=Command, short_help="Classify image files, with a radius.")(predict)
app.command(cls=Command, short_help="Find how small an L2 perturbation breaks it.")(attack)
app.command(cls=Command, short_help="Find out whether the certificates hold.")(audit)
app.command(cls=Command, short_help="Learn a one-pass radius with a guarantee.")(calibrate)
app.command(cls=Command, short_help="One ONNX file: class and radii in one pass.")(export)
app.command(cls=Command, short_help="Every method of the paper, side by side.")(compare)
app.command(cls=Command, short_help="One HTML page of any runs and logs.")(report)
app.command(cls=Command, short_help="A page: drop an image, watch its radius grow.")(serve)


@app.callback(invoke_without_command=True)
def _root(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Print the version and stop.")] = False,
) -> None:
    if version:
        typer.echo(f"heatsmooth {VERSION}")
    elif context.invoked_subcommand is None:
        typer.echo(context.get_help())


def main(arguments: list[str] | None = None) -> None:
    """Run a command and end the process with its exit code; bad input is one line on standard error."""
    sys.exit(run(arguments))


def run(arguments: list[str] | None = None) -> int:
    """Run a command; its exit code."""
    warnings.filterwarnings("ignore", module=r"PIL\.")  # an image is read, or refused in one line
    try:
        code = app(arguments, standalone_mode=False) or 0
    except USAGE_ERROR as error:
        code = _complain(error.format_message())
    except InputError as error:
        given = sys.argv[1:] if arguments is None else arguments
        code = _complain(str(error), f"; run: {_command(given, error.options)}" if error.options else "")
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        reason = error.strerror or error
        code = _complain(f"{where}expected to read and write there, got {reason}; free space or name another directory")
    except OverflowError as error:
        code = _complain(f"expected numbers that can be computed with, got one too large ({error}); lower it")
    except (MemoryError, RuntimeError) as error:
        if not (isinstance(error, MemoryError) or "memory" in str(error)):
            raise
        code = _complain("expected to find enough memory, got less; lower --batch-size or --image-size")
    except KeyboardInterrupt:
        code = INTERRUPTED
    if code == INTERRUPTED:
        typer.echo("heatsmooth: interrupted; repeat the command to continue", err=True)
    return code


def _complain(message: str, command: str = "") -> int:
    typer.echo("heatsmooth: error: " + " ".join(message.split()) + command, err=True)
    return 2


def _command(arguments: list[str], options: tuple[str, ...]) -> str:
    """The command line of these arguments with more options, quoted for the shell.

    >>> _command(["predict", "--from", "my run", "--", "a.png"], ("--model", "nets:mine"))
    "heatsmooth predict --from 'my run' --model nets:mine -- a.png"
    """
    as_module = Path(sys.argv[0]).parts[-2:] == ("heatsmooth", "__main__.py")
    program = ["python", "-m", "heatsmooth"] if as_module else ["heatsmooth"]
    end = arguments.index("--") if "--" in arguments else len(arguments)
    return shlex.join([*program, *arguments[:end], *options, *arguments[end:]])
