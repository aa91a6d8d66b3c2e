"""What holds on Linux, macOS and Windows alike, as far as it can be seen on one of them."""

import ast
import os
import signal
import subprocess
import sys
import time
from functools import cache
from pathlib import Path

import pytest

from heatsmooth import InputError, locks
from heatsmooth.locks import DirectoryLock, write_atomically

SOURCE = Path(__file__).parents[1] / "src/heatsmooth"
POSIX_MODULES = {"fcntl", "grp", "posix", "pty", "pwd", "readline", "resource", "syslog", "termios", "tty"}
WINDOWS_MODULES = {"msvcrt", "winreg", "_winapi"}
POSIX_NAMES = {
    *("fork", "forkpty", "getuid", "geteuid", "getpgid", "killpg", "mkfifo", "pread", "sched_getaffinity", "setsid"),
    *("statvfs", "uname", "wait3", "SIGALRM", "SIGHUP", "SIGKILL", "SIGUSR1", "alarm", "setitimer"),
}
"""Of ``os`` and ``signal``. ``kill`` is refused too: on Windows, ``os.kill(process, 0)`` sends Ctrl-C."""


@cache
def nodes() -> list[tuple[str, ast.AST]]:
    files = {path: ast.parse(path.read_text(encoding="utf-8")) for path in sorted(SOURCE.rglob("*.py"))}
    return [
        (f"{path.relative_to(SOURCE)}:{getattr(node, 'lineno', '')}", node)
        for path, tree in files.items()
        for node in ast.walk(tree)
    ]


def test_no_module_or_function_of_one_system_is_used() -> None:
    used = []
    for where, node in nodes():
        if isinstance(node, ast.Import):
            names = {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            names = {(node.module or "").partition(".")[0]}
            if node.module in ("os", "signal"):
                names |= {alias.name for alias in node.names} & (POSIX_NAMES | {"kill"})
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in ("os", "signal"):
            names = {node.attr} & (POSIX_NAMES | {"kill"})
        else:
            continue
        used += [f"{where} {name}" for name in names & (POSIX_MODULES | WINDOWS_MODULES | POSIX_NAMES | {"kill"})]
    assert used == []


def test_every_text_file_names_its_encoding() -> None:
    """The default encoding is UTF-8 on Linux and macOS, and another one on Windows."""
    unnamed = []
    for where, node in nodes():
        if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)):
            continue
        keywords = {word.arg for word in node.keywords}
        is_text = node.func.attr in ("read_text", "write_text") or "text" in keywords
        if is_text and "encoding" not in keywords:
            unnamed.append(where)
    assert unnamed == []


def test_the_command_line_writes_where_there_is_no_sigma() -> None:
    environment = {**os.environ, "PYTHONIOENCODING": "cp1252", "PYTHONUTF8": "0"}
    done = subprocess.run(
        [sys.executable, "-m", "heatsmooth", "smooth", "--help-all"], capture_output=True, env=environment
    )
    assert (done.returncode, done.stderr) == (0, b"")
    assert b"(default of bootcamp: \\u03c3)" in done.stdout


def test_on_windows_a_file_that_is_open_elsewhere_is_replaced_when_it_is_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(locks, "WINDOWS", True)
    monkeypatch.setattr("heatsmooth.locks.time.sleep", lambda seconds: None)
    refused, replace = [0], Path.replace

    def busy_twice(self: Path, target: Path) -> Path:
        refused[0] += 1
        if refused[0] < 3:
            raise PermissionError(13, "in use")
        return replace(self, target)

    monkeypatch.setattr(Path, "replace", busy_twice)
    write_atomically(tmp_path / "a", b"new")
    assert (tmp_path / "a").read_bytes() == b"new"
    monkeypatch.setattr(locks, "REPLACE_WITHIN", 0.0)
    refused[0] = -9
    with pytest.raises(PermissionError):
        write_atomically(tmp_path / "a", b"newer")
    assert [file.name for file in tmp_path.iterdir()] == ["a"]


def test_a_killed_process_holds_no_lock(tmp_path: Path) -> None:
    code = (
        "import sys, time; from pathlib import Path; from heatsmooth.locks import DirectoryLock\n"
        "held = DirectoryLock(Path(sys.argv[1]), sys.argv[2]); print('held', flush=True); time.sleep(600)"
    )
    for part, excluded in (("", "-1-of-2"), ("-1-of-2", "")):
        with subprocess.Popen([sys.executable, "-c", code, tmp_path, part], stdout=subprocess.PIPE) as process:
            assert process.stdout is not None
            assert process.stdout.readline().strip() == b"held"
            for asked in (part, excluded):
                with pytest.raises(InputError, match="got one at work"):
                    DirectoryLock(tmp_path, asked)
            if part:
                DirectoryLock(tmp_path, "-2-of-2").close()
            process.send_signal(getattr(signal, "SIGKILL", signal.SIGTERM))
        for asked in (part, excluded):
            DirectoryLock(tmp_path, asked).close()


def test_of_processes_that_start_together_one_gets_the_lock(tmp_path: Path) -> None:
    code = (
        "import sys, time; from pathlib import Path; from heatsmooth.locks import DirectoryLock\n"
        "try: held = DirectoryLock(Path(sys.argv[1]), sys.argv[2])\n"
        "except Exception: sys.exit(3)\n"
        "sys.stdin.read()"
    )
    parts = ("", "-1-of-2", "-1-of-2", "")
    started = [subprocess.Popen([sys.executable, "-c", code, tmp_path, part], stdin=subprocess.PIPE) for part in parts]
    at_work = list(started)
    while len(at_work) > 1:  # all but one end by themselves
        time.sleep(0.02)
        at_work = [process for process in at_work if process.poll() is None]
    for process in started:
        process.communicate(b"")
    assert sorted(process.returncode for process in started) == [0, 3, 3, 3]
