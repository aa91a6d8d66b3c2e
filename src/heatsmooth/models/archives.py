"""Checks on a file that torch wrote, before torch opens it: damage, zip bombs and code are refused."""

import os
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from heatsmooth.errors import InputError, require

SLACK = 16 * 2**20
"""Bytes that an archive may unpack to, in addition to twice its size: its text may be compressed strongly."""

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
"""What torch raises for a file that is not a valid pickle."""


def check_archive(path: Path) -> None:
    """Refuse a zip archive with damaged parts (torch checks no checksum), or that unpacks to far more than its size.

    A file that is not a zip archive passes.
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
        raise InputError(f"{path}: expected a whole file, got {error}; download or save it again") from None
    require(broken is None, f"{path}: expected a whole file, got a damaged part {broken}; download or save it again")


@contextmanager
def tensors_only() -> Iterator[None]:
    """Inside this context, torch reads only tensors and plain values from pickles, never code.

    Without it, ``torch.export.load`` falls back to loading code when that fails.
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
