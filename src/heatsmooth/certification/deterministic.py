"""Deterministic certificates: one pass of a network that is Lipschitz by construction, no noise, no samples."""

import time
from collections.abc import Iterable, Iterator, Mapping

import torch
from torch import nn

from heatsmooth.certification.radii import DIGITS
from heatsmooth.data import ImageSet
from heatsmooth.device import exact_float32
from heatsmooth.models import DeterministicRadius, check_independence, count_classes, device_of
from heatsmooth.progress import Progress, silent
from heatsmooth.results.deterministic import NetworkCertificate
from heatsmooth.statistics.radii import round_down

TOGETHER = 100
"""Images per pass."""


def certify_network(
    model: nn.Module,
    images: ImageSet,
    *,
    known: Mapping[int, NetworkCertificate] | None = None,
    positions: Iterable[int] | None = None,
    progress: Progress = silent,
) -> Iterator[NetworkCertificate]:
    """One certificate per image, batch by batch; the parameters are those of ``certificates.certify_each``.

    Guarantee: one pass of ``model`` has this class everywhere within the radius, see ``DeterministicRadius``. A network
    that is not Lipschitz by construction is refused.
    """
    proven = DeterministicRadius(model)
    asked = list(range(len(images)) if positions is None else positions)
    todo = [position for position in asked if int(images.indices[position]) not in (known or {})]
    if not todo:
        return
    examples = images.images(torch.tensor(todo[:4])).to(device_of(model))
    images.check_classes(count_classes(model, examples))
    check_independence(model, examples)
    done, abstained = len(asked) - len(todo), sum(item.abstain for item in (known or {}).values())
    for some in torch.tensor(todo).split(TOGETHER):
        begin = time.monotonic()
        pixels, labels = images.images(some), images.labels_at(some)
        with exact_float32(), torch.inference_mode():
            on_device = pixels.to(device_of(model))
            logits = model(on_device)
            radii = proven(on_device, logits).cpu()
        finite, classes = logits.isfinite().all(1).tolist(), logits.argmax(1).tolist()
        seconds = round((time.monotonic() - begin) / len(some), 6)
        done += len(some)
        for i, position in enumerate(some.tolist()):
            radius = float(round_down(float(radii[i]), DIGITS))
            abstained += radius == 0
            yield NetworkCertificate(
                index=int(images.indices[position]),
                label=None if labels is None else int(labels[i]),
                predicted=classes[i] if finite[i] else None,
                radius=radius,
                abstain=radius == 0,
                seconds=seconds,
            )
        progress("certifying", done, len(asked), f"{1 / max(seconds, 1e-6):.0f} images/s, {abstained} without radius")
