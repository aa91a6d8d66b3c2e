"""A run directory: what was asked, with what, on what machine; its records; safe against kills.

``run.json`` says what the run is. Repeating the command continues it; another command, model, data set
or seed in the same directory is refused. Files are replaced atomically or appended with fsync.
"""

import glob
import hashlib
import json
import math
import os
import platform
import subprocess
import sys
import time
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import nullcontext, suppress
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any, Self

from heatsmooth.errors import InputError
from heatsmooth.identity import first_difference
from heatsmooth.locks import DirectoryLock, is_abandoned, one_at_a_time

VERSIONED = ("heatsmooth", "torch", "numpy", "scipy", "accelerate", "safetensors")


def write_atomically(path: Path, content: bytes) -> None:
    """Replace ``path`` by ``content``: after a kill at any moment it holds the old or the new, whole.

    Only a file is replaced: never a device, a pipe or a directory. What killed processes of this machine left of
    earlier attempts is removed.
    """
    if path.exists() and not path.is_file():
        raise InputError(f"{path}: expected a file to write, got a directory or device; name another")
    begun = f".{path.name}.{platform.node()}-"
    for torn in path.parent.glob(f"{glob.escape(begun)}*.part"):
        if is_abandoned(torn):
            with suppress(OSError):
                torn.unlink()
    part = path.with_name(f"{begun}{os.getpid()}.part")
    try:
        with part.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)
    directory = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)


def write_json(path: Path, value: Any) -> None:
    """Replace ``path`` atomically by readable JSON."""
    write_atomically(path, _encoded(_json(value, indent=2) + "\n"))


def _json(value: Any, indent: int | None = None) -> str:
    """JSON, which has neither NaN nor infinity: such numbers are an error that names them."""
    if wrong := next(_not_finite(value), None):
        raise InputError(f"expected finite numbers to record, got {wrong}; give another number")
    return json.dumps(value, indent=indent, ensure_ascii=False, allow_nan=False)


def _not_finite(value: Any, where: str = "") -> Iterator[str]:
    """The numbers in nested JSON that are not finite, each after the keys that lead to it."""
    if isinstance(value, float) and not math.isfinite(value):
        yield f"{where}{value}"
    elif isinstance(value, Mapping):
        for key, held in value.items():
            yield from _not_finite(held, f"{where}{key} ")
    elif isinstance(value, list | tuple):
        for held in value:
            yield from _not_finite(held, where)


def _encoded(text: str) -> bytes:
    """JSON as UTF-8; bytes of file names that are none become JSON's own escapes."""
    return text.encode(errors="backslashreplace")


def read_json(path: Path) -> dict[str, Any]:
    """The JSON object in ``path``."""
    try:
        value = json.loads(path.read_text())
    except (OSError, ValueError, RecursionError) as error:
        raise InputError(
            f"{path}: expected a JSON object, got {error}; remove the file or name another directory"
        ) from None
    if not isinstance(value, dict):
        raise InputError(
            f"{path}: expected a JSON object, got {type(value).__name__}; remove the file or name another directory"
        )
    return value


def read_run_info(path: Path) -> dict[str, Any]:
    """What ``run.json`` says, with its fields of the right kinds."""
    info = read_json(path)
    kinds: dict[str, Any] = {"command": str, "settings": dict, "status": str, "seconds": (int, float)}
    wrong = next((name for name, kind in kinds.items() if not isinstance(info.get(name), kind)), None)
    if wrong is not None or not 0 <= info["seconds"] < float("inf"):
        field = wrong or "seconds"
        raise InputError(f"{path}: expected a run, got {field} {info.get(field)!r}; remove the file")
    return info


CHECK = "check"
"""The field of a record that tells whether its line is as it was written."""


def _line(record: Mapping[str, Any]) -> bytes:
    """A record as a line of JSON, with the CRC-32 of all before it."""
    return _encoded(_json({**record, CHECK: _crc(_json(record))}) + "\n")


def _crc(text: str) -> str:
    return f"{zlib.crc32(_encoded(text)):08x}"


class Records:
    """A JSON Lines file of one record a line, each with a check, appended and fsynced.

    A last line torn by a kill is cut off when the file is opened; a broken line before the last is an error.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        _cut_torn_line(path)
        self._file = path.open("ab")

    def append(self, record: Mapping[str, Any]) -> None:
        """Write one record and wait until it is on the disk."""
        self._file.write(_line(record))
        self._file.flush()
        os.fsync(self._file.fileno())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def keep(self, wanted: Callable[[dict[str, Any]], bool]) -> None:
        """Drop the records that are not wanted (those after the checkpoint a run continues from)."""
        records = read_records(self.path)
        kept = [record for record in records if wanted(record)]
        if len(kept) < len(records):
            self._file.close()
            write_atomically(self.path, b"".join(map(_line, kept)))
            self._file = self.path.open("ab")


def _cut_torn_line(path: Path) -> None:
    if not path.exists():
        return
    with path.open("r+b") as file:
        content = file.read()
        whole = content.rfind(b"\n") + 1
        if whole < len(content):
            file.truncate(whole)
            os.fsync(file.fileno())


def read_records(path: Path) -> list[dict[str, Any]]:
    """All whole records of a JSON Lines file, without their checks; a torn last line is left out.

    A line that is not as it was written is an error; lines that others wrote need no check.
    """
    if not path.exists():
        return []
    content = path.read_bytes()
    whole = content[: content.rfind(b"\n") + 1]
    return [_parsed(path, number, line) for number, line in enumerate(whole.split(b"\n")[:-1], start=1)]


def _parsed(path: Path, number: int, line: bytes) -> dict[str, Any]:
    try:
        record = json.loads(line)
        if isinstance(record, dict) and record.pop(CHECK, None) in (None, _crc(json.dumps(record, ensure_ascii=False))):
            return record
    except (ValueError, RecursionError):
        pass
    raise InputError(f"{path}:{number}: expected a JSON record as it was written, got {line[:40]!r}; remove that line")


@cache
def provenance() -> dict[str, Any]:
    """Versions, source commit and hardware of this process."""
    versions = {"python": platform.python_version()}
    for name in VERSIONED:
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return {
        "versions": versions,
        "commit": _commit(),
        "hardware": {
            "machine": platform.machine(),
            "system": platform.system(),
            "cpu": _cpu(),
            "cores": os.cpu_count(),
        },
    }


def _commit() -> str | None:
    def git(*words: str) -> str:
        here = Path(__file__).parent
        return subprocess.run(["git", *words], cwd=here, capture_output=True, text=True, check=True).stdout.strip()

    try:
        if Path(git("rev-parse", "--show-toplevel"), "src/heatsmooth").resolve() != Path(__file__).parent:
            return None
        return git("rev-parse", "HEAD") + ("+changes" if git("status", "--porcelain", "--untracked-files=no") else "")
    except (OSError, subprocess.CalledProcessError):
        return None


def _cpu() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()


class Run:
    """One run directory, held by one process at a time.

    ``settings`` is everything the result depends on. A directory that holds a run with other settings is
    refused, one with the same settings is continued. Several processes may each hold a ``part`` of the same run;
    while one does, none holds the whole.
    """

    def __init__(
        self,
        path: Path,
        command: str,
        settings: Mapping[str, Any],
        *,
        part: str = "",
        arguments: list[str] | None = None,
    ) -> None:
        self.path = path
        self.file = path / f"run{part}.json"
        try:
            path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise InputError(
                f"--out {path}: expected a writable directory, got {error.strerror}; name another one"
            ) from None
        self._lock = DirectoryLock(path, part)
        try:
            self._remove_torn_files(part)
            with one_at_a_time(path) if part else nullcontext():  # parts that begin together must see each other
                self.info = self._begun_or_continued(command, json.loads(_json(settings)), arguments)
        except BaseException:
            self.close()
            raise
        self._opened = time.monotonic()

    def _remove_torn_files(self, part: str) -> None:
        """Remove what a kill amid ``write_atomically`` left behind: of a part, that of its ``run.json`` alone."""
        for file in self.path.glob(f".run{part}.json.*.part" if part else ".*.part"):
            if is_abandoned(file):
                file.unlink(missing_ok=True)

    def _begun_or_continued(
        self, command: str, settings: dict[str, Any], arguments: list[str] | None
    ) -> dict[str, Any]:
        for other in sorted(self.path.glob("run*.json")):
            _refuse_other_settings(self.path, read_run_info(other), command, settings)
        if self.file.exists():
            return read_run_info(self.file)
        info = {
            "command": command,
            "settings": settings,
            "arguments": sys.argv[1:] if arguments is None else arguments,
            "started": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            "seconds": 0.0,
            "status": "running",
            **provenance(),
        }
        write_json(self.file, info)
        return info

    @property
    def done(self) -> bool:
        """Whether the run has finished."""
        return bool(self.info["status"] == "done")

    def update(self, **facts: Any) -> None:
        """Add facts to ``run.json``, with the time spent until it was done: looking at a finished run adds none."""
        now = time.monotonic()
        if not self.done:
            self.info["seconds"] = round(self.info["seconds"] + now - self._opened, 3)
        self._opened = now
        self.info.update(facts)
        write_json(self.file, self.info)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Let another process have the directory."""
        self._lock.close()


def _refuse_other_settings(path: Path, info: dict[str, Any], command: str, settings: dict[str, Any]) -> None:
    if info["command"] != command:
        raise InputError(f"{path}: expected a '{command}' run, got a '{info['command']}' run; name another --out")
    difference = first_difference(info["settings"], settings)
    if difference:
        key, before, now = difference
        raise InputError(
            f"{path}: expected the {key} it was started with, {before!r}, got {now!r}; "
            "repeat the first command, or name another --out"
        )


def sha256(*parts: bytes) -> str:
    """The SHA-256 of the parts, one after another, in hexadecimal."""
    digest = hashlib.sha256()
    for part in parts:
        digest.update(part)
    return digest.hexdigest()
