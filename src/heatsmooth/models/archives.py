"""What is refused of a file that torch wrote, before torch opens it: damage, zip bombs, and code."""

import os
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from heatsmooth.errors import InputError, require

SLACK = 16 * 2**20
"""Bytes of text in an archive that may be packed as densely as they like."""


DAMAGED = (
    RuntimeError,
    OSError,
    ArithmeticError,
    AssertionError,
    AttributeError,
    EOFError,
    LookupError,
    TypeError,
    ValueError,
)
"""What torch raises for a pickle that is none."""


def check_archive(path: Path) -> None:
    """Refuse a zip archive whose parts are damaged (torch looks at no checksum) or unpack to far more than it holds.

    A file that is no zip archive is let through.
    """
    if not zipfile.is_zipfile(path):
        return
    try:
        with zipfile.ZipFile(path) as archive:
            size, unpacked = path.stat().st_size, sum(part.file_size for part in archive.infolist())
            require(
                unpacked <= 2 * size + SLACK,
                f"{path}: expected weights, got {size:,} bytes that unpack to {unpacked:,}; do not trust it",
            )
            broken = archive.testzip()
    except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError, OSError) as error:
        raise InputError(f"{path}: expected a whole file, got {error}; fetch or save it again") from None
    require(broken is None, f"{path}: expected a whole file, got a damaged part {broken}; fetch or save it again")


@contextmanager
def tensors_only() -> Iterator[None]:
    """Let torch read tensors and plain values from pickles, never code, whatever it would do by itself.

    ``torch.export.load`` falls back to loading code where that fails; this keeps it from doing so.
    """
    name = "TORCH_FORCE_WEIGHTS_ONLY_LOAD"
    before = os.environ.get(name)
    os.environ[name] = "1"
    try:
        yield
    finally:
        if before is None:
            del os.environ[name]
        else:
            os.environ[name] = before
