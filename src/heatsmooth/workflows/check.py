"""``check``: what heatsmooth understood of a network, and what looks wrong, before hours are spent on it."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from scipy.optimize import linear_sum_assignment
from torch import Tensor, nn

from heatsmooth.data import ImageSet
from heatsmooth.data.images import Size, height_and_width
from heatsmooth.device import accelerator, exact_float32
from heatsmooth.errors import InputError, require
from heatsmooth.evaluate import accuracy
from heatsmooth.models import (
    Classifier,
    channels_of,
    check_gradient,
    check_independence,
    count_classes,
    device_of,
    evaluating,
)
from heatsmooth.models.inference import folded
from heatsmooth.models.program import PROGRAM
from heatsmooth.progress import Progress, silent
from heatsmooth.workflows.inputs import Images, Network, left_out

SIZES = (32, 28, 224, 64, 96, 128, 256, 299, 384)
"""Sides tried, in this order, where the network does not say what it takes."""
BETTER = 0.15
"""A rival reading of the inputs or labels is reported if it is right on so many more of the images."""
ENOUGH = 20
"""Fewer images say nothing about rivals."""
RIVALS = {
    "without normalisation (--mean 0 --std 1)": ((0.0,), (1.0,)),
    "with inputs in [−1, 1] (--mean 0.5 --std 0.5)": ((0.5,), (0.5,)),
    "with inputs in [0, 255] (--mean 0 --std 0.00392157)": ((0.0,), (1 / 255,)),
    "with ImageNet's normalisation (--mean 0.485,0.456,0.406 --std 0.229,0.224,0.225)": (
        (0.485, 0.456, 0.406),
        (0.229, 0.224, 0.225),
    ),
}
"""Usual normalisations, by how a user asks for them."""


@exact_float32()
def check_run(
    *,
    network: Network,
    images: Images | None = None,
    tried: int = 200,
    sigma: float = 0.25,
    seed: int = 0,
    device: str | None = None,
    progress: Progress = silent,
) -> dict[str, Any]:
    """What was understood, as facts, and ``warnings``; with ``images``, also how it does on ``tried`` of them."""
    require(sigma > 0, f"--sigma: expected a positive number, got {sigma}")
    chosen = None if images is None else images.load(network.side, progress=progress).sampled(tried)
    model = network.load(chosen).to(accelerator(device).device)
    examples = _examples(model, chosen, network.size).to(device_of(model))
    facts, warnings = inspect(model, examples)
    facts = {"command": "check", "from": str(network.source), **facts}
    if images is not None and chosen is not None:
        found, more = try_out(model, chosen, sigma=sigma, seed=seed, progress=progress)
        facts |= {"data": images.data, **found, **left_out(chosen)}
        warnings += more
    return facts | {"warnings": warnings}


def _examples(network: Classifier, chosen: ImageSet | None, image_size: Size | None) -> Tensor:
    """Eight images that the network takes: of the data, or random ones of the size that it says or that is found."""
    if chosen is not None:
        return chosen.images(torch.arange(min(8, len(chosen)))).repeat(8, 1, 1, 1)[:8]
    first = channels_of(network)
    depths = [first] if first else [network.spec.channels, 1]
    sizes = [image_size or network.spec.size] if image_size or network.spec.size else list(SIZES)
    failure: InputError | None = None
    for depth, size in [(depth, size) for size in sizes if size for depth in depths]:
        random = torch.rand(8, depth, *height_and_width(size), generator=torch.Generator().manual_seed(0))
        try:
            count_classes(network, random.to(device_of(network)))
        except InputError as error:
            failure = error
            continue
        return random
    raise failure or InputError("expected an image size, got none; say --image-size")


def inspect(network: Classifier, examples: Tensor) -> tuple[dict[str, Any], list[str]]:
    """The facts of a network that takes ``examples``, and warnings about how it computes."""
    spec, classes = network.spec, count_classes(network, examples)
    norms = [m for m in network.modules() if isinstance(m, nn.modules.batchnorm._BatchNorm)]
    frozen = [norm for norm in norms if norm.running_mean is not None]
    with evaluating(network), torch.inference_mode():
        logits = network(examples)
        deterministic = torch.equal(network(examples), logits)
    probabilities = bool((logits >= 0).all()) and bool(((logits.sum(1) - 1).abs() < 1e-4).all())
    _, merged = folded(network, examples) if norms else (network, 0)
    facts = {
        "architecture": spec.architecture,
        "parameters": sum(p.numel() for p in network.parameters()),
        "input": list(examples.shape[1:]),
        "range": "[0, 1], normalised inside",
        "classes": classes,
        "mean": list(spec.mean) or [0.0],
        "std": list(spec.std) or [1.0],
        "batch_norm_layers": len(norms),
        "batch_norm_with_running_statistics": len(frozen),
        "batch_norm_folded_for_speed": merged,
        "dropout_layers": sum(isinstance(m, nn.modules.dropout._DropoutNd) for m in network.modules()),
        "deterministic": deterministic,
        "independent_of_the_batch": _holds(check_independence, network, examples),
        "gradient_to_the_pixels": _holds(check_gradient, network, examples),
        "can_be_smoothed": spec.architecture != PROGRAM,
    }
    warnings = [
        text
        for wrong, text in (
            (
                not deterministic,
                "two passes differ: dropout or other randomness is on; certificates will not repeat",
            ),
            (probabilities, "answers are probabilities: take the softmax out; smooth and the L-bound expect logits"),
            (len(frozen) < len(norms), "batch norm without running statistics: an image's class depends on its batch"),
            (not facts["independent_of_the_batch"], "logits depend on the other images of the batch: certify refuses"),
            (not facts["gradient_to_the_pixels"], "no gradient reaches the pixels: attack and audit refuse"),
        )
        if wrong
    ]
    return facts, warnings


def _holds(check: Callable[[nn.Module, Tensor], None], network: Classifier, examples: Tensor) -> bool:
    try:
        check(network, examples)
    except InputError:
        return False
    return True


def try_out(
    network: Classifier, images: ImageSet, *, sigma: float, seed: int = 0, progress: Progress = silent
) -> tuple[dict[str, Any], list[str]]:
    """How the network does on ``images``, and warnings about their range, their labels and its normalisation."""
    pixels = images.images(torch.arange(len(images)))
    logits = _logits(network, pixels, progress)
    guesses = logits.argmax(1)
    facts: dict[str, Any] = {"images": len(images), "confidence": float(logits.softmax(1).max(1).values.mean())}
    warnings = []
    if len(images) >= 10 and len(guesses.unique()) == 1:
        warnings.append(f"every image is class {int(guesses[0])}: wrong weights, range or normalisation")
    labels = images.labels_at(torch.arange(len(images)))
    if labels is None:
        return facts, warnings + _rival_confidence(network, images, pixels, facts["confidence"])
    classes, named = logits.shape[1], len(images.class_names or ())
    if int(labels.max()) >= classes:
        text = f"labels up to {int(labels.max())}, but the network has {classes} classes: give --class-index"
        return facts, [*warnings, text]
    if named not in (0, classes):
        warnings.append(f"the data has {named} classes, the network {classes}: do their numbers mean the same?")
    facts["accuracy"] = float((guesses == labels).float().mean())
    facts["accuracy_under_noise"] = accuracy(network, images, sigma=sigma, seed=seed)
    facts["sigma"] = sigma
    if len(images) < ENOUGH:
        return facts, warnings
    better = _rival_labels(guesses, labels, classes, facts["accuracy"])
    for name, rival in _rivals(network, images):
        share = float((_logits(rival, pixels).argmax(1) == labels).float().mean())
        better.append(
            (share, f"{share:.0%} are right {name}, {facts['accuracy']:.0%} as loaded: the range looks wrong")
        )
    share, text = max(better)
    warnings += [text] if share > facts["accuracy"] + BETTER else []
    return facts, warnings


def _logits(network: nn.Module, pixels: Tensor, progress: Progress = silent, batch_size: int = 50) -> Tensor:
    found: list[Tensor] = []
    with evaluating(network), torch.inference_mode():
        for some in pixels.split(batch_size):
            found.append(network(some.to(device_of(network))).cpu())
            progress("trying", sum(map(len, found)), len(pixels))
    return torch.cat(found)


def _rivals(network: Classifier, images: ImageSet) -> list[tuple[str, Classifier]]:
    """The same network behind other usual normalisations, and behind the images' own."""
    own, rivals = (network.mean.flatten().tolist(), network.std.flatten().tolist()), []
    known = {name: said for name, said in RIVALS.items() if len(said[0]) in (1, images.shape[0])}
    theirs = images.statistics()
    shown = " --std ".join(",".join(f"{value:g}" for value in values) for values in theirs)
    for name, (mean, std) in (known | {f"with the images' own statistics (--mean {shown})": theirs}).items():
        same = (np.allclose(np.resize(a, 3), np.resize(b, 3), atol=0.01) for a, b in zip(own, (mean, std), strict=True))
        if not all(same):
            spec = replace(network.spec, mean=mean, std=std)
            rivals.append((name, Classifier(network.network, spec).to(device_of(network))))
    return rivals


def _rival_confidence(network: Classifier, images: ImageSet, pixels: Tensor, own: float) -> list[str]:
    """Without labels: a hint where another usual range makes the network much surer. Larger inputs always do."""
    for name, rival in _rivals(network, images):
        sure = float(_logits(rival, pixels).softmax(1).max(1).values.mean())
        if "255" not in name and sure > own + 2 * BETTER:
            return [f"the network is surer {name}, {sure:.0%}, than as loaded, {own:.0%}: is the input range right?"]
    return []


def _rival_labels(guesses: Tensor, labels: Tensor, classes: int, right: float) -> list[tuple[float, str]]:
    """How many guesses fit the labels by other numberings, shifted by one or permuted, and what to say of it."""
    found = []
    for shift in (1, -1):
        share = float((guesses == labels + shift).float().mean())
        text = f"{share:.0%} are right with labels shifted by {shift:+d}, {right:.0%} as given: give --class-index"
        found.append((share, text))
    if len(labels) < 4 * len(labels.unique()):
        return found
    seen = np.zeros((classes, classes), dtype=np.int64)
    np.add.at(seen, (labels[::2].numpy(), guesses[::2].numpy()), 1)
    order = torch.from_numpy(linear_sum_assignment(-seen)[1])
    share = float((guesses[1::2] == order[labels[1::2]]).float().mean())
    label = int((torch.from_numpy(seen.sum(1)) * (order != torch.arange(classes))).argmax())
    text = (
        f"{share:.0%} are right under another numbering (label {label} is the network's class {int(order[label])}), "
        f"{right:.0%} as given: give --class-index"
    )
    return [*found, (share, text)]
