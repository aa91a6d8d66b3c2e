"""The command line: find the command, parse its options, run it, print its result. Nothing is computed here."""

import inspect
import os
import shlex
import sys
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from importlib import import_module
from io import TextIOWrapper
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_args

from heatsmooth.commands.options import Given, Option, built, options_of, with_flags
from heatsmooth.errors import InputError
from heatsmooth.version import VERSION

if TYPE_CHECKING:
    import cyclopts

INTERRUPTED = 130

COMMANDS = {
    "demo": "The whole story on embedded images, in minutes.",
    "check": "Show what was understood about a network.",
    "train": "Train a network with labels, to smooth or to compare.",
    "smooth": "Make a network robust: one epoch, no labels.",
    "distill": "Teach a student whose radius is proven in one pass.",
    "frontier": "What robustness costs a network, and what to choose.",
    "certify": "Certify the radius of each image.",
    "radii": "All radii that stored counts give, side by side.",
    "recompute": "Certificates with other settings, from stored counts.",
    "estimate": "Estimate what certifying would cost.",
    "calibrate": "Learn a one-pass radius with a guarantee.",
    "one-pass": "Radii of a calibrated network, from one pass per image.",
    "predict": "Classify image files, with a radius.",
    "attack": "Find how small an L2 perturbation breaks a network.",
    "audit": "Test whether the certificates hold.",
    "export": "Write one ONNX file: class and radii in one pass.",
    "push": "Publish a network with its records and a model card.",
    "pull": "Fetch a network that was published with push.",
    "compare": "Every method of the paper, side by side.",
    "report": "One HTML page of any runs and logs.",
    "board": "Published logs and runs, side by side.",
    "serve": "A web page: drop an image, watch its radius grow.",
}
"""By name, what each does. Its dataclass is in the module of the same name."""

MOVED = {
    ("certify", "--recompute"): "use heatsmooth recompute --from RUN",
    ("certify", "--estimate"): "use heatsmooth estimate with the same options",
    ("certify", "--one-pass"): "use heatsmooth one-pass with the same options",
    ("certify", "--throughput"): "use heatsmooth estimate --throughput",
}
"""Options of earlier releases, and what replaced them."""


@dataclass(frozen=True)
class Shown:
    """How the result is printed: options that every command has beside its own."""

    quiet: bool = False
    as_json: bool = False


def command_named(name: str) -> Any:
    """The dataclass of a command."""
    module = import_module(f"heatsmooth.commands.{name.replace('-', '_')}")
    return getattr(module, "".join(part.capitalize() for part in name.split("-")))


def main(arguments: list[str] | None = None) -> None:
    """Run a command and end the process with its exit code."""
    for stream in (sys.stdout, sys.stderr):  # Windows may use an encoding that has no σ
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    sys.exit(run(arguments))


def run(arguments: list[str] | None = None) -> int:
    """Run a command; its exit code. Bad input is one line on standard error."""
    warnings.filterwarnings("ignore", module=r"PIL\.")  # an image is read, or refused in one line
    words = sys.argv[1:] if arguments is None else arguments
    try:
        code = _dispatched(words)
    except InputError as error:
        code = _complain(str(error), f"; run: {_command_line(words, error.options)}" if error.options else "")
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
        print("heatsmooth: interrupted; repeat the command to continue", file=sys.stderr)
    return code


def _dispatched(words: list[str]) -> int:
    from heatsmooth.commands import help as pages

    match words:
        case [] | ["--help" | "-h", *_]:
            print(pages.root(COMMANDS))
        case ["--version", *_]:
            print(f"heatsmooth {VERSION}")
        case ["--install-completion", *rest]:
            _install_completion(rest)
        case [name, *_] if name not in COMMANDS:
            known = ", ".join(COMMANDS)
            raise InputError(f"expected a command ({known}), got {name[:60]!r}; see heatsmooth --help")
        case [name, *rest]:
            before_dashes = rest[: rest.index("--")] if "--" in rest else rest
            if wanted := {"--help", "-h", "--help-all"} & set(before_dashes):
                print(pages.command(name, command_named(name), explain_all="--help-all" in wanted))
            else:
                _run_command(name, rest)
    return 0


def _run_command(name: str, words: list[str]) -> None:
    from heatsmooth.commands import configs
    from heatsmooth.commands.command import show_json
    from heatsmooth.progress import bar

    kind = command_named(name)
    words, file, printing = configs.taken(words)
    try:
        command, shown = _parsed(name, kind, words, file)
        if printing:
            print(configs.config_text(name, options_of(kind), command), end="")
            return
        with bar(shown=not shown.quiet) as progress:
            result = command.run(progress)
        if result is None:  # another process leads
            return
        if shown.as_json:
            show_json(result)
        else:
            command.show(result)
    except InputError as error:
        raise InputError(with_flags(str(error), options_of(kind)), options=error.options) from None


def _parsed(name: str, kind: Any, words: list[str], file: Path | None = None) -> tuple[Any, Shown]:
    """The command that these words, and the file of settings if there is one, ask for."""
    from heatsmooth.commands import configs

    for word in words:
        if (remedy := MOVED.get((name, word.partition("=")[0]))) is not None:
            raise InputError(f"{name} {word}: expected the command that replaced it, got the old option; {remedy}")
    options = options_of(kind)
    filed: Given = {}
    if file is not None:
        filed = configs.read_config(file, name, options, lambda words, some: _given(name, words, some)[0])
    given, shown = _given(name, words, tuple(replace(o, default=None) if o.path in filed else o for o in options))
    given = filed | given
    missing = next((option.flag for option in options if option.required and option.path not in given), None)
    if missing is not None:
        raise InputError(f"{missing}: expected a value, got none; see heatsmooth {name} --help")
    return built(kind, given), shown


def _given(name: str, words: list[str], options: tuple[Option, ...]) -> tuple[Given, Shown]:
    """The values that these words give to the options of a command, and how to print its result."""
    import cyclopts

    app = cyclopts.App(name=name, help_flags=[], version_flags=[])
    app.default(_signature(options))
    try:
        _, bound, _ = app.parse_args(_last_given(words, options), exit_on_error=False, print_error=False)
    except cyclopts.CycloptsError as error:
        raise InputError(_explained(name, error, options)) from None
    given = {option.path: bound.arguments[_key(option)] for option in options if _key(option) in bound.arguments}
    shown = {name: bound.arguments[name] for name in ("quiet", "as_json") if name in bound.arguments}
    return given, Shown(**shown)


def _last_given(words: list[str], options: tuple[Option, ...]) -> list[str]:
    """The words without values that are given again later: the last one counts.

    >>> _last_given(["--n", "1", "x", "--n=2"], options_of(command_named("certify")))
    ['x', '--n=2']
    """
    takes_value = {option.flag: bool(option.value_name) for option in options if not option.positional}
    end = words.index("--") if "--" in words else len(words)
    kept: dict[str, list[str]] = {}
    place = 0
    while place < end:
        flag, _, value = words[place].partition("=")
        count = 2 if takes_value.get(flag) and not value else 1
        key = flag if flag in takes_value else f"{place} {flag}"
        kept.pop(key, None)
        kept[key] = words[place : min(place + count, end)]
        place += count
    return [*(word for given in kept.values() for word in given), *words[end:]]


def _key(option: Option) -> str:
    """The name of an option's parameter."""
    return "__".join(option.path)


def _signature(options: tuple[Option, ...]) -> Callable[..., None]:
    """A function whose parameters are the options, for the parser."""
    from cyclopts import Parameter

    def parsed(**_: Any) -> None: ...

    parameters = []
    for option in options:
        how: dict[str, Any] = {"name": option.flag, "negative": "" if option.default is False else None}
        kind: Any = inspect.Parameter.KEYWORD_ONLY
        annotation = option.kind
        if option.positional:
            how = {}
            kind = inspect.Parameter.VAR_POSITIONAL if option.several else inspect.Parameter.POSITIONAL_ONLY
            annotation = get_args(option.kind)[0] if option.several else option.kind
        elif (read := _reader(option)) is not None:
            how |= {"converter": lambda _, tokens, read=read: read(tokens[0].value), "n_tokens": 1}
        default = inspect.Parameter.empty if option.required or kind is inspect.Parameter.VAR_POSITIONAL else None
        parameters.append(
            inspect.Parameter(_key(option), kind, annotation=Annotated[annotation, Parameter(**how)], default=default)
        )
    for name, flag in (("quiet", "--quiet"), ("as_json", "--json")):
        annotation = Annotated[bool, Parameter(name=flag, negative="")]
        parameters.append(inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, annotation=annotation, default=False))
    parameters.sort(key=lambda parameter: parameter.kind)
    parsed.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    parsed.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return parsed


def _reader(option: Option) -> Callable[[str], Any] | None:
    """How the text of an option becomes a value, where the parser does not know."""
    if hasattr(option.kind, "parse"):
        parse: Callable[[str], Any] = option.kind.parse
        return parse
    if option.kind is int:
        return int  # the parser would round
    if not option.several:
        return None
    kind = get_args(option.kind)[0]
    names = {float: "numbers as 0.5,0.25", int: "whole numbers as 0,1,2", str: "names as a,b"}

    def read(text: str) -> tuple[Any, ...]:
        try:
            return tuple(kind(part.strip()) for part in text.split(","))
        except ValueError:
            raise InputError(f"{option.flag}: expected {names[kind]}, got {text!r}") from None

    return read


def _explained(name: str, error: "cyclopts.CycloptsError", options: tuple[Option, ...]) -> str:
    """What is wrong with a command line: expected, got, remedy."""
    import cyclopts

    see = f"see heatsmooth {name} --help"
    argument = getattr(error, "argument", None)
    flag = argument.name if argument is not None else ""
    option = next((option for option in options if option.flag == flag or _key(option) == flag), None)
    if isinstance(error, cyclopts.MissingArgumentError):
        return f"{option.flag if option else flag}: expected a value, got none; {see}"
    if isinstance(error, cyclopts.UnknownOptionError):
        return f"expected options of {name}, got {error.token.keyword or error.token.value}; {see}"
    if isinstance(error, cyclopts.CoercionError) and error.token is not None and option is not None:
        if isinstance(error.__cause__, InputError):
            return str(error.__cause__)
        return (
            f"{flag}: expected {_expected(option)}, got {error.token.value!r}{_remedy(name, option, error.token.value)}"
        )
    if isinstance(error, cyclopts.RepeatArgumentError):
        return f"{flag}: expected once, got it again; leave one out"
    if isinstance(error, cyclopts.UnusedCliTokensError):
        return f"expected options of {name}, got {(error.unused_tokens or [''])[0]!r}; {see}"
    return f"expected a command line that can be read, got {error}; {see}"


def _expected(option: Option) -> str:
    from heatsmooth.settings import alternatives

    if option.choices:
        return alternatives(option.choices)
    return {int: "a whole number", float: "a number", bool: "no value"}.get(option.kind, "another value")


def _remedy(name: str, option: Option, value: str) -> str:
    if (name, option.name) == ("smooth", "noise") and value in ("none", "fraction", "copy"):
        return f"; use --noisy-images {value}"
    return "; name a file by --class-names" if (name, option.name) == ("serve", "classes") else ""


def _install_completion(words: list[str]) -> None:
    """Write the completion script of a shell (bash, zsh, fish) and say where it is."""
    import cyclopts

    shell = words[0] if words else Path(os.environ.get("SHELL", "bash")).name
    if shell not in ("bash", "zsh", "fish"):
        raise InputError(f"--install-completion: expected bash, zsh or fish, got {shell!r}")
    app = cyclopts.App(name="heatsmooth", help_flags=["--help", "-h"], version_flags=["--version"])
    for name, summary in COMMANDS.items():
        app.command(_signature(options_of(command_named(name))), name=name, help=summary)
    file = app.install_completion(shell=shell, add_to_startup=shell != "fish")  # type: ignore[arg-type]
    print(f"{file}: completion for {shell}; open a new shell")


def _complain(message: str, command: str = "") -> int:
    print("heatsmooth: error: " + " ".join(message.split()) + command, file=sys.stderr)
    return 2


def _command_line(arguments: list[str], options: tuple[str, ...]) -> str:
    """The command line of these arguments with more options, quoted for the shell.

    >>> _command_line(["predict", "--from", "my run", "--", "a.png"], ("--model", "nets:mine"))
    "heatsmooth predict --from 'my run' --model nets:mine -- a.png"
    """
    as_module = Path(sys.argv[0]).parts[-2:] == ("heatsmooth", "__main__.py")
    program = ["python", "-m", "heatsmooth"] if as_module else ["heatsmooth"]
    end = arguments.index("--") if "--" in arguments else len(arguments)
    return shlex.join([*program, *arguments[:end], *options, *arguments[end:]])
