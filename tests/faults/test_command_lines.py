"""Fuzzed command lines: each ends with exit code 0 or 2, with at most one line of error and never a traceback."""

import contextlib
import io
import os
import random
import resource
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from pathlib import Path

from heatsmooth.commands.line import COMMANDS, command_named
from heatsmooth.commands.options import options_of
from tests.faults.processes import SCALE, Command, confine_writing, server

LINES, PROCESSES = 500 * SCALE, 12 * SCALE
PATIENCE = 0.6
"""Seconds after which a line that is still at work counts as accepted, and is killed."""
MEMORY = 8 * 2**30
OUT = "run-directory"
"""Stands for a run directory of the line's own."""
NUMBERS = (
    *("-1", "0", "1", "2", "3", "7", "100", "0.5", "0.999", "1.5", "-0.0", "nan", "inf", "-inf", "1e308", "1e-320"),
    *("1e999", "1000000", "99999999999999999999", "9223372036854775807", "-9223372036854775809", "4294967296"),
)
HOSTILE = (
    *NUMBERS,
    *("", " ", "-", "--", "0x10", "1_000", "١٢", "1/1", "2/2", "3/2", "0/0", "1/999999999"),
    *("x", "None", "true", "[]", "{}", "%s%n", "$(touch hacked)", "`id`", "'; --", "a" * 5000, "💥", "\udcff", "a\nb"),
    *("1,2", "0.5,", ",", "0.1,0.2,0.3", "nan,nan", "0,0", "-1,1"),
    *("/proc/nothing", "/outside", "../outside", "sub/../sub", "a/b/c", "file", "file/inside", "."),
    *("npz:", "npz:file", "npz:.", "imagefolder:", "imagefolder:file", "imagefolder:.", "hf:", "npy:"),
    *("small", "resnet20", "os:getcwd", "json:loads", "nothing:at_all", ":", "a.b:c.d", "torch.nn:Identity"),
    *("pgd", "ddn", "clean", "noise", "bootcamp", "paper-imagenet", "train", "frozen", "cpu", "cuda", "cuda:9", "tpu"),
)


def known_options() -> dict[str, list[str]]:
    """The options of every command that take a value."""
    return {
        name: [
            option.flag
            for option in options_of(command_named(name))
            if option.flag.startswith("--") and option.value_name
        ]
        for name in COMMANDS
    }


def fuzzed(chance: random.Random, lines: list[list[str]], options: dict[str, list[str]]) -> list[str]:
    """A command line with one to three things wrong, or only odd."""
    words = list(chance.choice(lines))
    own = options[words[0]]
    for _ in range(chance.choice((1, 1, 2, 3))):
        at = chance.randrange(1, len(words)) if len(words) > 1 else 0
        kind = chance.choice(("own", "own", "own", "value", "value", "word", "foreign", "missing", "twice", "letter"))
        if kind == "own":
            words += [chance.choice(own), chance.choice(chance.choice((NUMBERS, HOSTILE)))]
        elif kind == "foreign":
            words += [chance.choice(options[chance.choice(sorted(options))]), chance.choice(HOSTILE)]
        elif kind == "value":
            values = [i for i in range(1, len(words)) if words[i - 1].startswith("--")] or [at]
            words[chance.choice(values)] = chance.choice(HOSTILE)
        elif kind == "word":
            words[at] = chance.choice(HOSTILE)
        elif kind == "missing" and len(words) > 1:
            del words[at]
        elif kind == "twice":
            words.insert(at, chance.choice(words))
        else:
            middle = chance.randrange(len(words[at]) + 1)
            words[at] = words[at][:middle] + chance.choice("-0A/é💥") + words[at][middle:]
    return words


def run_lines(lines: list[list[str]], folder: Path, answers: Connection) -> None:
    """Run the lines one after another in this process; first an empty answer, then each line's exit code and words."""
    from heatsmooth.commands.line import run

    os.chdir(folder)
    confine_writing(folder)
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    answers.send(None)
    for words in lines:
        out, err = io.StringIO(), io.StringIO()
        code = -1
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            try:
                code = run(words)
            except SystemExit as end:
                code = end.code if isinstance(end.code, int) else -1
            except BaseException:
                err.write(traceback.format_exc())
        answers.send((code, err.getvalue()))


def answers_to(lines: list[list[str]], folder: Path) -> Iterator[tuple[int | None, str]]:
    """The exit code of each line and what it said; None of a line still at work after ``PATIENCE``.

    Such a line is killed, and those after it are run by a new process: nothing of it reaches another line.
    """
    done = 0
    while done < len(lines):
        receiver, sender = server.Pipe(duplex=False)
        process = server.Process(target=run_lines, args=(lines[done:], folder, sender))
        process.start()
        sender.close()
        receiver.recv()
        for _ in lines[done:]:
            done += 1
            if not receiver.poll(PATIENCE):
                yield None, ""
                break
            try:
                yield receiver.recv()
            except EOFError:
                yield -1, "its process died"
                break
        process.kill()
        process.join()


def test_command_lines_end_well(
    commands: dict[str, list[str]],
    finished: dict[str, Path],
    tmp_path: Path,
    record_property: Callable[[str, object], None],
) -> None:
    chance, options = random.Random("command lines 1"), known_options()
    (tmp_path / "file").write_text("precious")
    base = [[*words, "--out", OUT] for words in commands.values()]
    base += [["report", str(finished["certify"]), "--out", "page.html"]]
    base += [["recompute", "--from", str(finished["certify"]), "--alpha", "0.01", "--out", OUT]]
    base += [["predict", "--from", str(finished["smooth"]), "--sigma", "0.25", "file"]]
    base += [["calibrate", "--from", str(finished["smooth"]), "--certificates", str(finished["certify"]), "--out", OUT]]
    lines = [fuzzed(chance, base, options) for _ in range(LINES)]
    lines = [[f"run-{number}" if word == OUT else word for word in line] for number, line in enumerate(lines)]
    codes: Counter[int | None] = Counter()
    bad = []
    for words, (code, err) in zip(lines, answers_to(lines, tmp_path), strict=True):
        codes[code] += 1
        one_line = err.startswith("heatsmooth: error: ") and err.count("\n") == 1
        if code not in (0, 2, None) or (code == 2 and not one_line) or (code == 0 and "Traceback" in err):
            bad.append(f"{words}\n  ended with {code}: {err[-1500:]}")
    assert not bad, f"{len(bad)} of {LINES}\n" + "\n".join(bad[:8])
    assert codes[2] > LINES // 3
    assert codes[0] + codes[None] > LINES // 10
    assert codes[0] > 0
    assert (tmp_path / "file").read_text() == "precious"
    assert not list(tmp_path.rglob("hacked"))
    assert not Path("/outside").exists()
    for words in chance.sample([line for line in lines if not any("\udcff" in word for word in line)], PROCESSES):
        command = Command(words, tmp_path, folder=tmp_path)
        ended = command.end(timeout=5)
        assert ended.code in (0, -9) or ended.refused(), (words, ended)
    record_property("command lines fuzzed", LINES)
