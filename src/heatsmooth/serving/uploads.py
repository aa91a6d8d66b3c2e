"""The images of a request: its whole body, or the files of a form; never more than the limits allow in memory."""

import io
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from typing import NoReturn

import torch
from python_multipart.exceptions import FormParserError
from starlette.concurrency import run_in_threadpool
from starlette.datastructures import UploadFile
from starlette.exceptions import HTTPException
from starlette.formparsers import MultiPartException, MultiPartParser
from starlette.requests import Request
from torch import Tensor

from heatsmooth.data import as_unit_interval
from heatsmooth.data.folder import read_image
from heatsmooth.errors import InputError, require
from heatsmooth.serving.limits import BATCH, MOST_BYTES
from heatsmooth.serving.site import Site

LONGEST_NAME = 200


@dataclass(frozen=True)
class Upload:
    """An image in the size of the network, float32 in [0, 1], and the name of its file."""

    name: str
    image: Tensor


class _Form(MultiPartParser):
    spool_max_size = 2 * MOST_BYTES  # files stay in memory


async def read_uploads(request: Request, site: Site) -> list[Upload]:
    """The images, in the order of the files; the body is read only if the client may send it and a study can start."""
    assert request.client is not None
    site.count(request.client.host, 1)
    length = request.headers.get("content-length", "")
    size = int(length) if length.isdecimal() else MOST_BYTES
    if size > MOST_BYTES:
        _refuse_size()
    with site.uploading(request.client.host, size):
        files = await _files(request)
        site.count(request.client.host, len(files) - 1)
        site.worker.check_room(len(files))
        images = await run_in_threadpool(_decoded, [content for _, content in files], site.served.shape)
    return [Upload(name, image) for (name, _), image in zip(files, images, strict=True)]


async def _files(request: Request) -> list[tuple[str, bytes]]:
    if not request.headers.get("content-type", "").lower().startswith("multipart/form-data"):
        return [("image", b"".join([chunk async for chunk in _bounded(request)]))]
    try:
        form = await _Form(request.headers, _bounded(request), max_files=BATCH, max_fields=0).parse()
    except MultiPartException as error:
        raise InputError(f"expected a form of 1 to {BATCH} files, got: {error.message} Send others") from None
    except FormParserError:
        raise InputError(f"expected a form of 1 to {BATCH} files, got a broken one; send images=@FILE") from None
    try:
        files = [file for _, file in form.multi_items() if isinstance(file, UploadFile)]
        contents = [((file.filename or "image")[:LONGEST_NAME], await file.read()) for file in files]
    finally:
        await form.close()
    require(bool(contents), f"expected a form of 1 to {BATCH} files, got none; send images=@FILE")
    return contents


async def _bounded(request: Request) -> AsyncGenerator[bytes, None]:
    """The body, piece by piece, whether or not its length was announced."""
    size = 0
    async for chunk in request.stream():
        size += len(chunk)
        if size > MOST_BYTES:
            _refuse_size()
        yield chunk


def _refuse_size() -> NoReturn:
    raise HTTPException(413, f"expected at most {MOST_BYTES // 1_000_000} MB, got more; send fewer or smaller images")


def _decoded(contents: list[bytes], shape: tuple[int, int, int]) -> list[Tensor]:
    channels, height, width = shape
    images = []
    for number, content in enumerate(contents, 1):
        name = "the file" if len(contents) == 1 else f"file {number}"
        pixels = read_image(io.BytesIO(content), (height, width), channels=channels, name=name)
        images.append(as_unit_interval(torch.from_numpy(pixels)))
    return images
