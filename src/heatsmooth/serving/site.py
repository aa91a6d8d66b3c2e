"""What all requests share: the network, its worker, the page, and how much is in use."""

import math
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property

import torch
from starlette.exceptions import HTTPException

from heatsmooth.data import ImageSet
from heatsmooth.serving.limits import BURST, SECONDS, STUDIES, UPLOADED, UPLOADED_BY_ONE, Rate
from heatsmooth.serving.metrics import Metrics
from heatsmooth.serving.page import Page, api_page, page
from heatsmooth.serving.studies import ServedNetwork, png_bytes
from heatsmooth.serving.worker import BusyError, Worker

EXAMPLES = 10


class Site:
    """The state of one server; ``examples`` are images that the page offers."""

    def __init__(self, served: ServedNetwork, examples: ImageSet | None) -> None:
        self.served = served
        self.examples = _pictures(examples)
        self.page: Page = page(served, examples=len(self.examples))
        self.rate = Rate(BURST, SECONDS)
        self.worker = Worker(served.sampler(), most=STUDIES)
        self.metrics = Metrics(self.worker)
        self._uploading: Counter[str] = Counter()

    @cached_property
    def api_page(self) -> Page:
        """The page about the JSON interface."""
        return api_page(self.served)

    def count(self, client: str, images: int) -> None:
        """Count images of a client; status 429 if they are too many."""
        wait = math.ceil(self.rate.wait(client, images)) if images else 0
        if wait > 0:
            raise HTTPException(429, f"too many images; try again in {wait} s", {"Retry-After": str(wait)})
        self.metrics.images.inc(images)

    @contextmanager
    def uploading(self, client: str, size: int) -> Iterator[None]:
        """While ``size`` bytes of a client's upload are in memory; ``BusyError`` without room for them, or a study."""
        self.worker.check_room()
        held = self._uploading
        if held.total() + size > UPLOADED or held[client] + size > UPLOADED_BY_ONE:
            raise BusyError
        held[client] += size
        try:
            yield
        finally:
            held[client] -= size
            if not held[client]:
                del held[client]


def _pictures(examples: ImageSet | None) -> dict[str, bytes]:
    """Some images of a set, by number, as PNG files: the first of each class if there are labels."""
    if examples is None:
        return {}
    positions = torch.arange(min(len(examples), EXAMPLES))
    if examples.labels is not None:
        labels = examples.known_labels()
        first = [int((labels == label).nonzero()[0]) for label in labels.unique()[:EXAMPLES]]
        positions = torch.tensor(first)
    pixels = (examples.images(positions) * 255).round().to(torch.uint8).permute(0, 2, 3, 1).numpy()
    return {str(number): png_bytes(image) for number, image in enumerate(pixels)}
