"""What heatsmooth understood of a network, and what looks wrong, before hours are spent on it."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from scipy.optimize import linear_sum_assignment
from torch import Tensor, nn

from heatsmooth.data import ImageSet
from heatsmooth.data.images import Size, height_and_width
from heatsmooth.errors import InputError
from heatsmooth.evaluate import accuracy
from heatsmooth.models import (
    Classifier,
    channels_of,
    check_gradient,
    check_independence,
    count_classes,
    device_of,
    evaluating,
    is_onnx,
)
from heatsmooth.models.inference import folded
from heatsmooth.models.onnx_file import OnnxNetwork
from heatsmooth.models.onnx_reading import ONNX
from heatsmooth.models.program import PROGRAM
from heatsmooth.progress import Progress, silent

SIZES = (32, 28, 224, 64, 96, 128, 256, 299, 384)
"""Sides tried, in this order, where the network does not say what it takes."""
BETTER = 0.15
"""Another reading of the inputs or labels is reported if it is right on so many more of the images."""
ENOUGH = 20
"""Fewer images say nothing about other readings."""


@dataclass(frozen=True)
class Normalisation:
    """A usual normalisation of inputs."""

    name: str
    mean: tuple[float, ...]
    std: tuple[float, ...]
    makes_inputs_larger: bool = False
    """Larger inputs always make a network more confident, so that its confidence is no evidence."""

    def __str__(self) -> str:
        shown = (",".join(f"{value:g}" for value in values) for values in (self.mean, self.std))
        return "{} (--mean {} --std {})".format(self.name, *shown)


USUAL = (
    Normalisation("without normalisation", (0.0,), (1.0,)),
    Normalisation("with inputs in [−1, 1]", (0.5,), (0.5,)),
    Normalisation("with inputs in [0, 255]", (0.0,), (0.00392157,), makes_inputs_larger=True),
    Normalisation("with ImageNet's normalisation", (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
)


@dataclass(frozen=True, kw_only=True)
class NetworkFacts:
    """What was understood of a network."""

    architecture: str
    parameters: int
    input: tuple[int, ...]
    """(channels, height, width)."""
    range: str = "[0, 1], normalised inside"
    classes: int
    mean: tuple[float, ...]
    std: tuple[float, ...]
    batch_norm_layers: int
    batch_norm_with_running_statistics: int
    batch_norm_folded_for_speed: int
    dropout_layers: int
    deterministic: bool
    independent_of_the_batch: bool
    gradient_to_the_pixels: bool
    can_be_smoothed: bool
    file_sha256: str | None = None
    """Of an ONNX file or a program."""


@dataclass(frozen=True, kw_only=True)
class Trial:
    """How a network does on some images; accuracies where these have labels."""

    images: int | None = None
    confidence: float | None = None
    """Mean probability of the predicted class."""
    accuracy: float | None = None
    accuracy_under_noise: float | None = None
    sigma: float | None = None
    left_out: tuple[str, ...] | None = None
    """Images that could not be read."""


@dataclass(frozen=True, kw_only=True)
class NetworkCheck(Trial, NetworkFacts):
    """The result of a check: facts, a trial on images if there were any, and warnings."""

    command: str = "check"
    source: str = field(metadata={"name": "from"})
    data: str | None = None
    warnings: tuple[str, ...]


def examples_for(network: Classifier, images: ImageSet | None, image_size: Size | None) -> Tensor:
    """Eight images that the network takes: some of ``images``, or random ones.

    The size of random images is ``image_size``, or that which the network records, or the first usual one it takes.
    """
    if images is not None:
        return images.images(torch.arange(min(8, len(images)))).repeat(8, 1, 1, 1)[:8]
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
    raise failure or InputError("expected an image size, got none; name `image_size`")


def inspect(network: Classifier, examples: Tensor) -> tuple[NetworkFacts, list[str]]:
    """The facts of a network that takes ``examples``, and warnings about how it computes."""
    norms = [m for m in network.modules() if isinstance(m, nn.modules.batchnorm._BatchNorm)]
    with evaluating(network), torch.inference_mode():
        logits = network(examples)
        deterministic = torch.equal(network(examples), logits)
    spec = network.spec
    facts = NetworkFacts(
        architecture=spec.architecture,
        parameters=parameters_of(network),
        input=tuple(examples.shape[1:]),
        classes=count_classes(network, examples),
        mean=spec.mean or (0.0,),
        std=spec.std or (1.0,),
        batch_norm_layers=len(norms),
        batch_norm_with_running_statistics=sum(norm.running_mean is not None for norm in norms),
        batch_norm_folded_for_speed=folded(network, examples)[1] if norms else 0,
        dropout_layers=sum(isinstance(m, nn.modules.dropout._DropoutNd) for m in network.modules()),
        deterministic=deterministic,
        independent_of_the_batch=_holds(check_independence, network, examples),
        gradient_to_the_pixels=_holds(check_gradient, network, examples),
        can_be_smoothed=spec.architecture not in (ONNX, PROGRAM),
        file_sha256=spec.config if spec.architecture in (ONNX, PROGRAM) else None,
    )
    probabilities = bool((logits >= 0).all()) and bool(((logits.sum(1) - 1).abs() < 1e-4).all())
    without_statistics = facts.batch_norm_with_running_statistics < facts.batch_norm_layers
    one_at_a_time = isinstance(network.network, OnnxNetwork) and network.network.one_at_a_time
    warnings = {
        "two passes differ: dropout or other randomness is on; certificates will not repeat": not deterministic,
        "answers are probabilities: remove the softmax; smooth and the L-bound expect logits": probabilities,
        "batch norm without running statistics: the class of an image depends on its batch": without_statistics,
        "logits depend on the other images of the batch: certify refuses": not facts.independent_of_the_batch,
        "answers of the file depend on the other images of a batch, so images pass one at a time: use it like this, "
        "certificates cover nothing else": one_at_a_time,
        "no gradient reaches the pixels: attack and audit refuse": not facts.gradient_to_the_pixels
        and not is_onnx(network),
        "an ONNX file has no gradients: attack refuses, audit attacks nothing": is_onnx(network),
    }
    return facts, [text for text, applies in warnings.items() if applies]


def parameters_of(network: Classifier) -> int:
    """How many numbers the weights of a network have."""
    if isinstance(network.network, OnnxNetwork):
        return network.network.weights
    return sum(p.numel() for p in network.parameters())


def _holds(check: Callable[[nn.Module, Tensor], None], network: Classifier, examples: Tensor) -> bool:
    try:
        check(network, examples)
    except InputError:
        return False
    return True


def try_out(
    network: Classifier, images: ImageSet, *, sigma: float, seed: int = 0, progress: Progress = silent
) -> tuple[Trial, list[str]]:
    """How the network does on ``images``, and warnings about their range, their labels and its normalisation.

    ``sigma``: standard deviation of the noise to try, in [0, 1] pixels. ``seed``: of the noise.
    """
    pixels = images.images(torch.arange(len(images)))
    logits = _logits(network, pixels, progress)
    predicted = logits.argmax(1)
    trial = Trial(
        images=len(images),
        confidence=float(logits.softmax(1).max(1).values.mean()),
        left_out=images.left_out or None,
    )
    warnings = []
    if len(images) >= 10 and len(predicted.unique()) == 1:
        warnings.append(f"every image is class {int(predicted[0])}: wrong weights, range or normalisation")
    labels = images.labels_at(torch.arange(len(images)))
    if labels is None:
        return trial, warnings + _more_confident(network, images, pixels, trial.confidence or 0.0)
    classes, named = logits.shape[1], len(images.class_names or ())
    if int(labels.max()) >= classes:
        text = f"labels up to {int(labels.max())}, but the network has {classes} classes: give --class-index"
        return trial, [*warnings, text]
    if named not in (0, classes):
        warnings.append(f"the data has {named} classes, the network {classes}: do their numbers mean the same?")
    correct = float((predicted == labels).float().mean())
    noisy = accuracy(network, images, sigma=sigma, seed=seed)
    trial = replace(trial, accuracy=correct, accuracy_under_noise=noisy, sigma=sigma)
    if len(images) < ENOUGH:
        return trial, warnings
    readings = _other_numberings(predicted, labels, classes, correct)
    for normalisation, other in _other_normalisations(network, images):
        share = float((_logits(other, pixels).argmax(1) == labels).float().mean())
        text = f"{share:.0%} are right {normalisation}, {correct:.0%} as loaded: the range looks wrong"
        readings.append((share, text))
    share, text = max(readings)
    return trial, warnings + ([text] if share > correct + BETTER else [])


def _logits(network: nn.Module, pixels: Tensor, progress: Progress = silent, batch_size: int = 50) -> Tensor:
    logits: list[Tensor] = []
    with evaluating(network), torch.inference_mode():
        for some in pixels.split(batch_size):
            logits.append(network(some.to(device_of(network))).cpu())
            progress("trying", sum(map(len, logits)), len(pixels))
    return torch.cat(logits)


def _other_normalisations(network: Classifier, images: ImageSet) -> list[tuple[Normalisation, Classifier]]:
    """The same network behind other usual normalisations, and behind that of the images' own statistics."""
    own = network.mean.flatten().tolist(), network.std.flatten().tolist()
    usual = [item for item in USUAL if len(item.mean) in (1, images.shape[0])]
    others = []
    for item in (*usual, Normalisation("with the images' own statistics", *images.statistics())):
        pairs = zip(own, (item.mean, item.std), strict=True)
        if not all(np.allclose(np.resize(a, 3), np.resize(b, 3), atol=0.01) for a, b in pairs):
            spec = replace(network.spec, mean=item.mean, std=item.std)
            others.append((item, Classifier(network.network, spec).to(device_of(network))))
    return others


def _more_confident(network: Classifier, images: ImageSet, pixels: Tensor, own: float) -> list[str]:
    """Without labels: a hint where another usual normalisation makes the network much more confident."""
    for item, other in _other_normalisations(network, images):
        confidence = float(_logits(other, pixels).softmax(1).max(1).values.mean())
        if not item.makes_inputs_larger and confidence > own + 2 * BETTER:
            text = f"the network is more confident {item}, {confidence:.0%}, than as loaded, {own:.0%}"
            return [f"{text}: is the input range right?"]
    return []


def _other_numberings(predicted: Tensor, labels: Tensor, classes: int, correct: float) -> list[tuple[float, str]]:
    """How many predictions fit the labels by other numberings, shifted by one or permuted, and what to say about it."""
    readings = []
    for shift in (1, -1):
        share = float((predicted == labels + shift).float().mean())
        text = f"{share:.0%} are right with labels shifted by {shift:+d}, {correct:.0%} as given: give --class-index"
        readings.append((share, text))
    if len(labels) < 4 * len(labels.unique()):
        return readings
    seen = np.zeros((classes, classes), dtype=np.int64)
    np.add.at(seen, (labels[::2].numpy(), predicted[::2].numpy()), 1)
    order = torch.from_numpy(linear_sum_assignment(-seen)[1])
    share = float((predicted[1::2] == order[labels[1::2]]).float().mean())
    label = int((torch.from_numpy(seen.sum(1)) * (order != torch.arange(classes))).argmax())
    text = (
        f"{share:.0%} are right under another numbering (label {label} is the network's class {int(order[label])}), "
        f"{correct:.0%} as given: give --class-index"
    )
    return [*readings, (share, text)]
