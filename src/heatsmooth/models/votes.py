"""A head that predicts, from one pass without noise, which classes the network gives to noisy copies of the image.

The *votes* of an image are the classes of its noisy copies. The head sees the input of the network's last linear layer
(the features) and the logits. It starts as the network's own answer and learns a correction. The network does not
change.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from heatsmooth.errors import InputError, require
from heatsmooth.models.checkpoint import load_state, load_strictly, model_hash, serialise
from heatsmooth.models.classifier import evaluating
from heatsmooth.runs import write_atomically

HEAD_FILE = "votes.safetensors"
FORMAT = 1
HIDDEN, DROPPED = 256, 0.3
"""Width of the hidden layer, and share of its inputs that are dropped while it learns."""
MOST = 1_000_000
"""Largest number of features or classes that a file may state."""


@dataclass(frozen=True)
class HeadSpec:
    """The shape of a head."""

    layer: str | None
    """Name of the linear layer whose inputs are the features; None: logits alone, as for ONNX files."""
    features: int
    classes: int
    hidden: int = HIDDEN

    def __post_init__(self) -> None:
        counts = (self.features + 1, self.classes, self.hidden)
        sound = all(type(count) is int and 1 <= count <= MOST for count in counts)
        named = isinstance(self.layer, str) if self.features else self.layer is None
        require(sound and named, f"votes: expected the shape of a head, got {self}; calibrate again")


class VoteHead(nn.Module):
    """Logits of the predicted vote shares, (batch, classes), from what ``observe`` gives of one pass."""

    def __init__(self, spec: HeadSpec) -> None:
        super().__init__()
        self.spec = spec
        inputs = spec.features + spec.classes
        self.scale = nn.Parameter(torch.ones(1))
        last = nn.Linear(spec.hidden, spec.classes)
        nn.init.zeros_(last.weight)
        nn.init.zeros_(last.bias)
        self.correction = nn.Sequential(
            nn.BatchNorm1d(inputs, affine=False),
            nn.Dropout(DROPPED),
            nn.Linear(inputs, spec.hidden),
            nn.ReLU(),
            last,
        )

    def forward(self, observed: Tensor) -> Tensor:
        logits = observed[:, self.spec.features :]
        corrected: Tensor = self.scale * logits + self.correction(observed)
        return corrected


def observe(model: nn.Module, layer: str | None, images: Tensor) -> Tensor:
    """Features, then logits, of one pass: (batch, features + classes). ``layer``: as in ``HeadSpec``."""
    if layer is None:
        logits: Tensor = model(images)
        return logits
    seen: list[Tensor] = []
    handle = model.get_submodule(layer).register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
    try:
        logits = model(images)
    finally:
        handle.remove()
    return torch.cat([seen[-1], logits], 1)


def new_head(model: nn.Module, images: Tensor) -> VoteHead:
    """A head that gives the network's own answer; its hidden weights are from the global torch generator.

    Its features are the inputs of the linear layer whose output is the logits, as seen in a pass of ``images``. Where
    there is none, it sees logits alone.
    """
    seen: dict[str, tuple[Tensor, Any]] = {}

    def watch(name: str) -> Any:
        return lambda _, inputs, output: seen.__setitem__(name, (inputs[0], output))

    layers = [(name, module) for name, module in model.named_modules() if isinstance(module, nn.Linear)]
    handles = [module.register_forward_hook(watch(name)) for name, module in layers]
    try:
        with evaluating(model), torch.inference_mode():
            logits = model(images)
    finally:
        for handle in handles:
            handle.remove()
    classes = int(logits.shape[1])
    for name, (inputs, output) in reversed(seen.items()):
        if inputs.ndim == 2 and output.shape == logits.shape and torch.equal(output, logits):
            return VoteHead(HeadSpec(name, int(inputs.shape[1]), classes))
    return VoteHead(HeadSpec(None, 0, classes))


@torch.inference_mode()
def one_pass_and_votes(model: nn.Module, head: VoteHead | None, images: Tensor) -> tuple[Tensor, Tensor]:
    """Logits of the network, and those of the predicted vote shares; without a head, the network's own.

    ``model`` and ``head``: in evaluation mode, on one device, as ``images`` (batch, channels, height, width).
    """
    if head is None:
        logits: Tensor = model(images)
        return logits, logits
    observed = observe(model, head.spec.layer, images)
    return observed[:, head.spec.features :], head(observed)


def save_head(head: VoteHead, path: Path) -> None:
    """Write the head to ``path``, atomically; ``load_head`` reads it."""
    write_atomically(path, serialise(head.state_dict(), {"format": FORMAT, **asdict(head.spec)}))


def load_head(path: Path, model: nn.Module) -> VoteHead:
    """The head of a file, in evaluation mode; it must fit the network."""
    state, metadata = load_state(path)
    head = VoteHead(_read_spec(path, metadata))
    load_strictly(head, state, path)
    layer = head.spec.layer
    known = layer is None or layer in dict(model.named_modules())
    require(known, f"{path}: expected a head of this network, got one for a layer {layer!r}; calibrate again")
    return head.eval()


def head_hash(head: VoteHead) -> str:
    """A hash of the weights of a head."""
    return model_hash(head)


def require_head(known: str | None, head: VoteHead | None) -> None:
    """Refuse another head than that of a calibration; ``known``: its hash, None for a calibration without a head."""
    own = None if head is None else head_hash(head)
    require(own == known, f"`head`: expected the head of the calibration ({known}), got another ({own}); use that one")


def _read_spec(path: Path, metadata: Mapping[str, Any]) -> HeadSpec:
    facts = dict(metadata)
    number = facts.pop("format", None)
    require(number == FORMAT, f"{path}: expected a head of format {FORMAT}, got {number!r}; calibrate again")
    try:
        return HeadSpec(**facts)
    except TypeError:
        raise InputError(f"{path}: expected the shape of a head, got other metadata; calibrate again") from None
