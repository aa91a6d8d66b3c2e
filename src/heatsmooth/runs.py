"""Run directories: settings, provenance and records, safe against kills.

``run.json`` describes the run. Repeating the command continues it. A run with another command, model, data set or seed
is refused in the same directory. Files are replaced atomically or appended with fsync.
"""

import hashlib
import json
import math
import os
import sys
import time
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import Any, Self

from heatsmooth.environment import provenance as provenance
from heatsmooth.errors import InputError
from heatsmooth.identity import first_difference
from heatsmooth.locks import LOCK_FILE, MOMENT_FILE, DirectoryLock, one_at_a_time, remove_abandoned, unwritable
from heatsmooth.locks import write_atomically as write_atomically

CHECK = "check"
"""The field of a record with the checksum of its line."""

Json = dict[str, Any]
"""A JSON object as it is read from a file, before its content is checked."""


def write_json(path: Path, value: Any) -> None:
    """Replace ``path`` atomically by readable JSON; NaN and infinity are refused."""
    write_atomically(path, _encoded(_json(value, indent=2) + "\n"))


def _json(value: Any, indent: int | None = None) -> str:
    """``value`` as JSON, which has neither NaN nor infinity: such a number is an error that names it."""
    if wrong := next(_not_finite(value), None):
        raise InputError(f"expected finite numbers to record, got {wrong}; use a finite number")
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
    """JSON as UTF-8; bytes of file names that are not UTF-8 become JSON escapes."""
    return text.encode(errors="backslashreplace")


def read_json(path: Path) -> Json:
    """The JSON object in ``path``."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
        reason = "" if isinstance(value, dict) else type(value).__name__
    except (OSError, ValueError, RecursionError) as error:
        value, reason = {}, str(error) or type(error).__name__
    if reason:
        raise InputError(f"{path}: expected a JSON object, got {reason}; remove the file or name another directory")
    content: Json = value
    return content


def read_run_info(path: Path) -> Json:
    """The content of ``run.json``, with fields of the right types."""
    info = read_json(path)
    kinds: dict[str, Any] = {"command": str, "settings": dict, "status": str, "seconds": (int, float)}
    wrong = next((name for name, kind in kinds.items() if not isinstance(info.get(name), kind)), None)
    if wrong is not None or not 0 <= info["seconds"] < float("inf"):
        field = wrong or "seconds"
        raise InputError(f"{path}: expected a run, got {field} {info.get(field)!r}; remove the file")
    return info


def _line(record: Mapping[str, Any]) -> bytes:
    """A record as a line of JSON, with the CRC-32 of everything before it."""
    return _encoded(_json({**record, CHECK: _crc(_json(record))}) + "\n")


def _crc(text: str) -> str:
    return f"{zlib.crc32(_encoded(text)):08x}"


class Records:
    """A JSON Lines file: one record per line, each with a checksum, appended and fsynced.

    A last line torn by a kill is cut off when the file is opened. A damaged line before the last is an error.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        _cut_torn_line(path)
        self._file = path.open("ab")

    def append(self, record: Mapping[str, Any]) -> None:
        """Write one record and wait until it is on disk."""
        self._file.write(_line(record))
        self._file.flush()
        os.fsync(self._file.fileno())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def keep(self, wanted: Callable[[Json], bool]) -> None:
        """Drop the records that are not wanted (those after the checkpoint from which a run continues)."""
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


def read_records(path: Path) -> list[Json]:
    """All whole records of a JSON Lines file, without their checksums; a torn last line is left out.

    A line that does not match its checksum is an error. Lines of other programs need no checksum.
    """
    if not path.exists():
        return []
    content = path.read_bytes()
    whole = content[: content.rfind(b"\n") + 1]
    return [_parsed(path, number, line) for number, line in enumerate(whole.split(b"\n")[:-1], start=1)]


def _parsed(path: Path, number: int, line: bytes) -> Json:
    try:
        record = json.loads(line)
        if isinstance(record, dict) and record.pop(CHECK, None) in (None, _crc(json.dumps(record, ensure_ascii=False))):
            return record
    except (ValueError, RecursionError):
        pass
    raise InputError(f"{path}:{number}: expected a JSON record as it was written, got {line[:40]!r}; remove that line")


class Run:
    """One run directory, held by one process at a time.

    A directory that contains a run with other settings is refused; one with the same settings is continued. Several
    processes may each hold a ``part`` of the same run. While one does, no process holds the whole.

    ``path``: the directory, which is created.
    ``command``: the command that makes the run.
    ``settings``: everything that the result depends on, as JSON.
    ``part``: which part of the run this process makes, as in "-1-of-4"; empty for the whole.
    ``arguments``: the command line to record; by default that of this process.
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
        self.path, self.command, self.part = path, command, part
        self.settings: Mapping[str, Any] = json.loads(_json(settings))
        self.file = path / f"run{part}.json"
        self._new = not path.exists()
        try:
            path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise unwritable(path, error) from None
        self._lock = DirectoryLock(path, part)
        try:
            # what a kill left of write_atomically; a part removes only that of its own run.json
            remove_abandoned(path, f".run{part}.json.*.part" if part else ".*.part")
            with one_at_a_time(path) if part else nullcontext():  # parts that start together must see each other
                self.info = self._started_or_continued(sys.argv[1:] if arguments is None else arguments)
        except BaseException:
            self.close()
            raise
        self._opened = time.monotonic()

    def _started_or_continued(self, arguments: list[str]) -> Json:
        for other in sorted(self.path.glob("run*.json")):
            self._refuse_another_run(read_run_info(other))
        if self.file.exists():
            return read_run_info(self.file)
        info = {
            "command": self.command,
            "settings": self.settings,
            "arguments": arguments,
            "started": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            "seconds": 0.0,
            "status": "running",
            **provenance(),
        }
        write_json(self.file, info)
        return info

    def _refuse_another_run(self, info: Json) -> None:
        """Refuse to continue a run with another command or other settings."""
        if info["command"] != self.command:
            raise InputError(
                f"{self.path}: expected a '{self.command}' run, got a '{info['command']}' run; name another `out`"
            )
        difference = first_difference(info["settings"], self.settings)
        if difference:
            key, before, now = difference
            raise InputError(
                f"{self.path}: expected the {key} it was started with, {_shown(before)}, got {_shown(now)}; "
                "repeat the first command, or name another `out`"
            )

    @property
    def status(self) -> str:
        """Either "running" or "done"."""
        return str(self.info["status"])

    @property
    def done(self) -> bool:
        """Whether the run has finished."""
        return self.status == "done"

    @property
    def seconds(self) -> float:
        """The time spent until the last ``update`` before it was done."""
        return float(self.info["seconds"])

    def update(self, **facts: Any) -> None:
        """Add facts to ``run.json``, with the time spent. Opening a finished run again adds no time."""
        now = time.monotonic()
        if not self.done:
            self.info["seconds"] = round(self.seconds + now - self._opened, 3)
        self._opened = now
        self.info.update(facts)
        write_json(self.file, self.info)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self.close()
        if self._new and kind is not None and issubclass(kind, InputError):
            self._forget()

    def _forget(self) -> None:
        """Remove a run that was refused before it recorded anything."""
        files = [self.path / name for name in (self.file.name, LOCK_FILE, MOMENT_FILE)]
        others = [file for file in self.path.iterdir() if file not in files]
        if self.part or any(not file.is_file() or file.stat().st_size for file in others):
            return
        for file in (*files, *others):
            file.unlink(missing_ok=True)
        self.path.rmdir()

    def close(self) -> None:
        """Release the directory for other processes."""
        self._lock.close()


def _shown(value: Any) -> str:
    """A setting in a message; one that was not there is none."""
    return "none" if value is None else repr(value)


def sha256(*parts: bytes) -> str:
    """The SHA-256 of the parts, one after another, in hexadecimal."""
    digest = hashlib.sha256()
    for part in parts:
        digest.update(part)
    return digest.hexdigest()
