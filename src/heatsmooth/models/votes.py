"""Voters: they predict, from one pass without noise, which classes the network gives to noisy copies of the image.

The *votes* of an image are the classes of its noisy copies. There are two voters. A *head* sees the input of the
network's last linear layer (the features) and the logits; it starts as the network's own answer and learns a
correction. A *copy* of the network learns in all its layers, and sees the image itself. The network does not change.
"""

import copy
from abc import ABC, abstractmethod
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

VOTES_FILE = "votes.safetensors"
FORMAT, FORMAT_OF_COPY = 1, 2
"""Of the file of a head, and of a copy, so that older versions refuse the latter."""
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


class Voter(nn.Module, ABC):
    """Predicts the vote shares of a network from one pass without noise."""

    basis: str
    """How the votes were found, for people."""

    @abstractmethod
    def answers(self, model: nn.Module, images: Tensor) -> tuple[Tensor, Tensor]:
        """Logits of the network, and those of the predicted vote shares, (batch, classes) each."""

    @abstractmethod
    def votes(self, model: nn.Module, images: Tensor) -> Tensor:
        """The second of the answers alone, in one pass."""

    @abstractmethod
    def facts(self) -> dict[str, Any]:
        """What its file states beside the weights."""


class VoteCopy(Voter):
    """A copy of the network whose logits, times a constant, are those of the predicted vote shares."""

    basis = "one pass of a copy that learnt the votes"
    scale: Tensor

    def __init__(self, network: nn.Module, scale: float = 1.0) -> None:
        super().__init__()
        self.network = network
        self.register_buffer("scale", torch.tensor([scale]))

    def forward(self, images: Tensor) -> Tensor:
        votes: Tensor = self.scale * self.network(images)
        return votes

    def answers(self, model: nn.Module, images: Tensor) -> tuple[Tensor, Tensor]:
        """From one pass of the network, and one of the copy."""
        return model(images), self(images)

    def votes(self, model: nn.Module, images: Tensor) -> Tensor:  # noqa: ARG002  # a head needs the network
        """From one pass of the copy."""
        votes: Tensor = self(images)
        return votes

    def facts(self) -> dict[str, Any]:
        """Only the format: the shape is that of the network."""
        return {"format": FORMAT_OF_COPY}


class VoteHead(Voter):
    """Logits of the predicted vote shares, (batch, classes), from what ``observe`` gives of one pass."""

    basis = "one pass, predicted by a head"

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

    def answers(self, model: nn.Module, images: Tensor) -> tuple[Tensor, Tensor]:
        """From one pass of the network."""
        observed = observe(model, self.spec.layer, images)
        return observed[:, self.spec.features :], self(observed)

    def votes(self, model: nn.Module, images: Tensor) -> Tensor:
        """From one pass of the network."""
        return self.answers(model, images)[1]

    def facts(self) -> dict[str, Any]:
        """The format and the shape."""
        return {"format": FORMAT, **asdict(self.spec)}


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
def one_pass_and_votes(model: nn.Module, voter: Voter | None, images: Tensor) -> tuple[Tensor, Tensor]:
    """Logits of the network, and those of the predicted vote shares; without a voter, the network's own.

    ``model`` and ``voter``: in evaluation mode, on one device, as ``images`` (batch, channels, height, width).
    """
    if voter is None:
        logits: Tensor = model(images)
        return logits, logits
    return voter.answers(model, images)


@torch.inference_mode()
def votes_of(model: nn.Module, voter: Voter | None, images: Tensor) -> Tensor:
    """The second part of ``one_pass_and_votes``, without passes that only the first part needs."""
    votes: Tensor = model(images) if voter is None else voter.votes(model, images)
    return votes


def save_voter(voter: Voter, path: Path) -> None:
    """Write the voter to ``path``, atomically; ``load_voter`` reads it."""
    write_atomically(path, serialise(voter.state_dict(), voter.facts()))


def load_voter(path: Path, model: nn.Module) -> Voter:
    """The voter of a file, in evaluation mode; it must fit the network."""
    state, metadata = load_state(path)
    if metadata.get("format") == FORMAT_OF_COPY:
        twin = VoteCopy(copy.deepcopy(model))
        load_strictly(twin, state, path)
        return twin.eval()
    head = VoteHead(_read_spec(path, metadata))
    load_strictly(head, state, path)
    layer = head.spec.layer
    known = layer is None or layer in dict(model.named_modules())
    require(known, f"{path}: expected a head of this network, got one for a layer {layer!r}; calibrate again")
    return head.eval()


def voter_hash(voter: Voter) -> str:
    """A hash of the weights of a voter."""
    return model_hash(voter)


def require_voter(known: str | None, voter: Voter | None) -> None:
    """Refuse another voter than that of a calibration; ``known``: its hash, None for a calibration without one."""
    own = None if voter is None else voter_hash(voter)
    require(own == known, f"`head`: expected the one of the calibration ({known}), got another ({own}); use that one")


def _read_spec(path: Path, metadata: Mapping[str, Any]) -> HeadSpec:
    facts = dict(metadata)
    number = facts.pop("format", None)
    require(
        number == FORMAT,
        f"{path}: expected votes of format {FORMAT} or {FORMAT_OF_COPY}, got {number!r}; calibrate again",
    )
    try:
        return HeadSpec(**facts)
    except TypeError:
        raise InputError(f"{path}: expected the shape of a head, got other metadata; calibrate again") from None
