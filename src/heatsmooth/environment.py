"""Where a figure was measured: the versions, the commit and the hardware of this process."""

import os
import platform
import subprocess
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

VERSIONED = ("heatsmooth", "torch", "numpy", "scipy", "accelerate", "safetensors")


@dataclass(frozen=True, kw_only=True)
class Hardware:
    """The machine of a process."""

    machine: str
    system: str
    cpu: str
    cores: int | None


@dataclass(frozen=True, kw_only=True)
class Environment:
    """The software and hardware that produced a result."""

    versions: dict[str, str]
    """Of Python and the packages in ``VERSIONED``."""
    commit: str | None
    """Of the source, with "+changes" if it has uncommitted changes; None outside a checkout."""
    hardware: Hardware

    @classmethod
    @cache
    def current(cls) -> "Environment":
        """Of this process."""
        versions = {"python": platform.python_version()}
        for name in VERSIONED:
            with suppress(metadata.PackageNotFoundError):
                versions[name] = metadata.version(name)
        hardware = Hardware(machine=platform.machine(), system=platform.system(), cpu=_cpu(), cores=os.cpu_count())
        return cls(versions=versions, commit=_commit(), hardware=hardware)


def provenance() -> dict[str, Any]:
    """The ``Environment`` of this process as JSON."""
    return asdict(Environment.current())


def _commit() -> str | None:
    def git(*words: str) -> str:
        here = Path(__file__).parent
        answer = subprocess.run(["git", *words], cwd=here, capture_output=True, encoding="utf-8", check=True)
        return answer.stdout.strip()

    try:
        if not Path(git("rev-parse", "--show-toplevel"), "src/heatsmooth").samefile(Path(__file__).parent):
            return None
        return git("rev-parse", "HEAD") + ("+changes" if git("status", "--porcelain", "--untracked-files=no") else "")
    except (OSError, subprocess.CalledProcessError):
        return None


def _cpu() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        return next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()
