"""ONNX files of any framework, run by onnxruntime on the CPU: to certify, calibrate, predict and check.

Files are not trusted: beside what ``onnx_reading`` refuses, memory is limited, and so is the time of a loop.
"""

import threading
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from heatsmooth.errors import InputError, require
from heatsmooth.models.classifier import Classifier
from heatsmooth.models.onnx_input import shown
from heatsmooth.models.onnx_reading import ONNX, OnnxContent, not_onnx, packages, printable, said_by
from heatsmooth.models.program import FixedNetwork
from heatsmooth.models.spec import NetworkSpec, Normalisation
from heatsmooth.runs import read_json, sha256, write_atomically, write_json

ONNX_FILE, SPEC_FILE = "model.onnx", "model.onnx.json"
"""In a run directory: a copy of the file, byte for byte, and its spec."""
MEMORY = 0.5
"""Share of the memory that is available at first that all files together may use."""
PATIENCE = 600.0
"""Longest time, in seconds, of the first passes of a file, and of every pass of one with a loop."""
TRIED = 4
"""Random images that a file is tried on first."""
ROUNDING = 1e-4
"""Answers of an image alone and among others agree if they differ by at most this times the largest answer."""
SUM_TOLERANCE, LEAST = 0.05, 1e-38
"""How far a sum of probabilities may be from 1, as quantised ones are, and what replaces smaller probabilities."""
FLOATS = ("tensor(float)", "tensor(float16)", "tensor(double)")
"""Types of an output that can be logits or probabilities."""
SLOW = "do not trust it, or use a faster machine"
NEEDS_GRADIENTS = (
    "expected a network with gradients, got an ONNX file, which has none; "
    "name the run directory or the weights that it was exported from"
)


@dataclass(frozen=True)
class _Way:
    """How a file is run for images of one shape."""

    pieces: int | None
    """Images that are passed together; None for any number."""
    dependent: bool
    """Whether answers depend on the other images of a batch, so that images are passed one at a time."""
    probabilities: bool
    """Whether the answers are probabilities."""


class OnnxNetwork(FixedNetwork):
    """Logits (batch, classes) of an ONNX file for images (batch, channels, height, width), by onnxruntime.

    Probabilities become their logarithms. A fixed number of images per pass is kept to, with black images added to the
    last pass. Where an answer depends on the other images of a batch, as by dynamic quantisation, images are passed one
    at a time. Threads may share the network; each pass uses one.
    """

    kind = "an ONNX file"
    keeps_its_input = True
    remedy = "name the run directory or the weights that it was exported from"

    def __init__(self, file: OnnxContent) -> None:
        super().__init__()
        self.path, self.input, self.weights = file.path, file.input, file.weights
        self._alone = any(name.startswith("DynamicQuantize") for name in file.operators)
        self._timed = "Loop" in file.operators
        self._session = _session(file)
        self._output = _output(file.path, self._session)
        self._ways: dict[tuple[int, ...], _Way] = {}
        self.training = False

    @property
    def one_at_a_time(self) -> bool:
        """Whether answers were found to depend on the other images of a batch."""
        return any(way.dependent for way in self._ways.values())

    def forward(self, images: Tensor) -> Tensor:
        require(not (torch.is_grad_enabled() and images.requires_grad), NEEDS_GRADIENTS)
        shape = tuple(images.shape[1:])
        way = self._ways.get(shape)
        if way is None:
            way = self._ways.setdefault(shape, self._tried(shape))
        answers = self._answers(images, way.pieces)
        return (_logarithms(self.path, answers) if way.probabilities else answers).to(images.device)

    def _tried(self, shape: tuple[int, ...]) -> _Way:
        """How to run the file, from fixed random images of this shape."""
        self.input.check(shape, self.path)
        images = torch.rand(TRIED, *shape, generator=torch.Generator().manual_seed(0))
        fixed = self.input.batch
        together = self._answers(images, 1 if self._alone and fixed is None else fixed)
        dependent = fixed is None and (self._alone or _differ(together, self._answers(images, 1)))
        require(
            together.shape[1] >= 2,
            f"{self.path}: expected answers for at least 2 classes, got 1; export it with one output per class",
        )
        return _Way(1 if dependent else fixed, dependent, _are_probabilities(together))

    def _answers(self, images: Tensor, pieces: int | None) -> Tensor:
        """(batch, classes), float32, from passes of exactly ``pieces`` images."""
        array = self.input.arranged(images)
        if pieces is None:
            return self._passed(array)
        rest = -len(array) % pieces
        padded = np.concatenate([array, np.zeros((rest, *array.shape[1:]), array.dtype)]) if rest else array
        passes = [self._passed(padded[first : first + pieces]) for first in range(0, len(padded), pieces)]
        return torch.cat(passes)[: len(array)]

    def _passed(self, array: NDArray[Any]) -> Tensor:
        """(batch, classes) of one pass."""
        try:
            (answers,) = self._run(array)
        except Exception as error:  # onnxruntime's exceptions have no common base class
            said = said_by(error)
            require(
                "terminate flag" not in said, f"{self.path}: expected a pass within {PATIENCE:g} s, got none; {SLOW}"
            )
            if "memory" in str(error) or "bad_alloc" in str(error):
                raise RuntimeError(f"{self.path}: not enough memory for a pass of {len(array)} images") from None
            raise InputError(
                f"{self.path}: expected a file that takes {len(array)} images of {shown(array.shape[1:])}, got {said}; "
                "export it with a dynamic batch size for images of this size"
            ) from None
        shape = np.shape(answers)
        require(
            shape[:1] == (len(array),) and len(shape) > 1 and set(shape[2:]) <= {1},
            f"{self.path}: expected answers (batch, classes) for {len(array)} images, got {shown(shape)}; "
            "export it with a batch dimension",
        )
        return torch.from_numpy(np.asarray(answers, np.float32).reshape(len(array), -1))

    def _run(self, array: NDArray[Any]) -> list[Any]:
        """The answers, within ``PATIENCE`` if the file is tried or has a loop."""
        feeds: dict[str, Any] = {self.input.name: array}
        if self._ways and not self._timed:
            answers: list[Any] = self._session.run([self._output], feeds)
            return answers
        options = packages(self.path)[1].RunOptions()
        timer = threading.Timer(PATIENCE, lambda: setattr(options, "terminate", True))
        timer.daemon = True
        timer.start()
        try:
            answers = self._session.run([self._output], feeds, options)
        finally:
            timer.cancel()
        return answers


def onnx_source(source: Path) -> Path | None:
    """The ONNX file that a source names, itself or by its run directory; None if it names something else."""
    if source.suffix.lower() == ".onnx" and not source.is_dir():
        return source
    file = source / ONNX_FILE
    return file if file.is_file() and (source / SPEC_FILE).is_file() else None


def load_onnx(
    file: Path, *, model: str | None = None, normalisation: Normalisation | None = None, channels: int | None = None
) -> Classifier:
    """The classifier that an ONNX file is. Its spec holds the SHA-256 of the file.

    ``normalisation``: of the input of a file that has none inside. ``channels``: where the file does not state them.
    """
    require(model in (None, ONNX), f"{file}: expected no `model` beside an ONNX file, got {model}; leave it out")
    content = OnnxContent.read(file)
    recorded = _recorded(file, content)
    spec = content.spec(normalisation, channels) if recorded is None else recorded.normalised(normalisation)
    return Classifier(OnnxNetwork(content), spec).eval()


def onnx_spec(file: Path) -> NetworkSpec:
    """What an ONNX file, or the run directory that it is in, states about its network; it is not run."""
    content = OnnxContent.read(file)
    return _recorded(file, content) or content.spec()


def is_onnx(model: nn.Module) -> bool:
    """Whether a network is an ONNX file, which has no gradients."""
    return any(isinstance(module, OnnxNetwork) for module in model.modules())


def save_onnx(classifier: Classifier, directory: Path) -> None:
    """Copy the file of a classifier, byte for byte, into a run directory, with its spec; ``load_onnx`` reads both."""
    network = classifier.network
    assert isinstance(network, OnnxNetwork)
    content = network.path.read_bytes()
    require(
        sha256(content) == classifier.spec.config,
        f"{network.path}: expected the file that was loaded, got another one; repeat the command",
    )
    write_atomically(directory / ONNX_FILE, content)
    write_json(directory / SPEC_FILE, classifier.spec.describe())


def _recorded(file: Path, content: OnnxContent) -> NetworkSpec | None:
    """The spec beside the copy of a file in a run directory; None for a file elsewhere."""
    path = file.with_name(SPEC_FILE)
    if file.name != ONNX_FILE or not path.is_file():
        return None
    facts, stated = read_json(path), content.spec()
    if facts.get("architecture") != ONNX:
        return None
    require(
        facts.get("config") == stated.config,
        f"{file}: expected the file that {path.name} describes, got another one; calibrate again",
    )
    try:
        mean, std = (tuple(map(float, facts[name])) for name in ("mean", "std"))
        sides = facts["size"] if isinstance(facts["size"], list) else [facts["size"]]
        size = None if sides == [None] else tuple(map(int, sides))
        recorded = replace(stated, mean=mean, std=std, channels=int(facts["channels"]))
    except (KeyError, TypeError, ValueError) as error:
        raise InputError(f"{path}: expected the spec of a network, got {error!r}; calibrate again") from None
    if size is None:
        return recorded
    return replace(recorded, size=size[0] if len(size) == 1 else (size[0], size[1]))


@cache
def _allocator() -> None:
    """Limit the memory that onnxruntime may use, once for all files."""
    import onnxruntime

    where = onnxruntime.OrtMemoryInfo(
        "Cpu", onnxruntime.OrtAllocatorType.ORT_ARENA_ALLOCATOR, 0, onnxruntime.OrtMemType.DEFAULT
    )
    most = int(MEMORY * psutil.virtual_memory().available)
    onnxruntime.create_and_register_allocator(where, onnxruntime.OrtArenaCfg({"max_mem": most}))


def _session(file: OnnxContent) -> Any:
    """The file in onnxruntime: in its own format only, on one thread, within the limit of memory, without messages."""
    runtime = packages(file.path)[1]
    _allocator()
    options = runtime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 4
    options.add_session_config_entry("session.load_model_format", "ONNX")
    options.add_session_config_entry("session.use_env_allocators", "1")
    try:
        return runtime.InferenceSession(file.content, options, providers=["CPUExecutionProvider"])
    except Exception as error:  # onnxruntime's exceptions have no common base class
        raise not_onnx(file.path, error) from None


def _output(path: Path, session: Any) -> str:
    """The name of the one output that can be (batch, classes)."""
    outputs = session.get_outputs()
    fitting = [output for output in outputs if output.type in FLOATS and len(output.shape) != 1]
    known = ", ".join(f"{output.name} {output.type} {shown(output.shape)}" for output in outputs)
    require(
        len(fitting) == 1,
        f"{path}: expected one output of floats (batch, classes), got {printable(known)}; keep one with "
        "onnx.utils.extract_model (scikit-learn: zipmap=False)",
    )
    return str(fitting[0].name)


def _differ(together: Tensor, alone: Tensor) -> bool:
    """Whether answers differ by more than rounding; what is not finite is refused later."""
    scale = float(together.abs().max().clamp_min(1))
    return bool((together - alone).abs().max() > ROUNDING * scale)


def _are_probabilities(answers: Tensor) -> bool:
    inside = bool(((answers >= 0) & (answers <= 1 + SUM_TOLERANCE)).all())
    return inside and bool(((answers.sum(1) - 1).abs() <= SUM_TOLERANCE).all())


def _logarithms(path: Path, probabilities: Tensor) -> Tensor:
    """Logits whose softmax are the ``probabilities`` (batch, classes), divided by their sum; NaN stays NaN."""
    wrong = (probabilities < 0).any(1) | (probabilities.amax(1) <= 0)
    require(
        not bool(wrong.any()),
        f"{path}: expected probabilities in every pass, as in the first one, got others; export it with logits",
    )
    return probabilities.clamp_min(LEAST).log()
