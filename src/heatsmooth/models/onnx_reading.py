"""What is in an ONNX file, before it is run. Files are not trusted.

The bytes are read once, so the hash that a run records is that of the network that was run. Weights in other files, and
operators that neither ONNX nor onnxruntime has, are refused.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import Any

from heatsmooth.errors import InputError, first_line, require
from heatsmooth.models.onnx_input import OnnxInput
from heatsmooth.models.spec import NetworkSpec, Normalisation
from heatsmooth.runs import sha256

ONNX = "onnx"
"""The architecture of a network that is an ONNX file."""
LARGEST = 2**31 - 1
"""Most bytes of a file: what a protobuf message can hold."""
MOST_OPERATORS = 1_000_000
"""Operators that a graph may have."""
DOMAINS = {"", "ai.onnx", "ai.onnx.ml", "com.microsoft", "com.microsoft.nchwc"}
"""Whose operators are run: those of ONNX and of onnxruntime."""


@dataclass(frozen=True)
class OnnxContent:
    """A file that holds nothing but a graph of known operators and its weights."""

    path: Path
    content: bytes
    input: OnnxInput
    weights: int
    """Numbers in the weights."""
    operators: frozenset[str]
    made_here: bool
    """Whether ``heatsmooth export`` wrote it: then it takes images in [0, 1]."""

    @classmethod
    def read(cls, path: Path) -> "OnnxContent":
        """The file at ``path``; everything that can be refused without running it is."""
        require(path.is_file(), f"{path}: expected an ONNX file, got no such file; check the path")
        size = path.stat().st_size
        require(
            size <= LARGEST,
            f"{path}: expected an ONNX file of at most {LARGEST:,} bytes, got {size:,}; store the weights as float16 "
            "or int8",
        )
        content = path.read_bytes()
        try:
            model = packages(path)[0].ModelProto.FromString(content)
        except InputError:
            raise
        except Exception as error:  # protobuf's exceptions are not part of its interface
            raise not_onnx(path, error) from None
        require(len(model.graph.node) > 0, f"{path}: expected an ONNX file, got no operators; export it again")
        _check_messages(path, model)
        stored = {tensor.name for tensor in model.graph.initializer}
        return cls(
            path,
            content,
            OnnxInput.of([value for value in model.graph.input if value.name not in stored], path),
            sum(math.prod(tensor.dims) for tensor in model.graph.initializer),
            frozenset(node.op_type for node in _messages(model, "NodeProto")),
            any(fact.key == "heatsmooth_version" for fact in model.metadata_props),
        )

    def spec(self, normalisation: Normalisation | None = None, channels: int | None = None) -> NetworkSpec:
        """What the file states about its network; its hash is the configuration.

        ``channels``: of the images, where the file does not state them.
        """
        require(
            not (self.made_here and normalisation),
            f"{self.path}: expected no `mean` and `std` beside a file of heatsmooth export, which has them inside, "
            "got some; leave them out",
        )
        spec = NetworkSpec(
            ONNX, channels=self.input.channels or channels or 3, size=self.input.size, config=sha256(self.content)
        )
        return spec.normalised(normalisation)


def packages(path: Path) -> tuple[Any, Any]:
    """The modules onnx and onnxruntime; an error that names the extra to install if one is missing."""
    try:
        import onnx
        import onnxruntime
    except ImportError as error:
        raise InputError(
            f"{path}: expected onnx and onnxruntime, got no {error.name}; pip install 'heatsmooth[export]'"
        ) from None
    return onnx, onnxruntime


def _check_messages(path: Path, model: Any) -> None:
    """Refuse weights in other files, wherever in the graph, and operators that neither ONNX nor onnxruntime has."""
    for tensor in _messages(model, "TensorProto"):
        require(
            not tensor.external_data and tensor.data_location == 0,
            f"{path}: expected all weights in this one file, got some in another one; join them with "
            "onnx.save(onnx.load(FILE), NEW)",
        )
    operators = _expanded(model)
    require(
        operators is not None and operators <= MOST_OPERATORS,
        f"{path}: expected functions that expand to at most {MOST_OPERATORS:,} operators, got more; do not trust it",
    )
    own = {(function.domain, function.name) for function in model.functions}
    for node in _messages(model, "NodeProto"):
        known = node.domain in DOMAINS or (node.domain, node.op_type) in own
        name = printable(f"{node.domain}:{node.op_type}")
        require(
            known,
            f"{path}: expected operators of ONNX and onnxruntime, got {name}; export it without custom operators",
        )


def _expanded(model: Any) -> int | None:
    """How many operators the graph has after every function is replaced by its content; None if one calls itself."""
    calls: dict[tuple[str, str], list[tuple[str, str]]] = {}
    for function in model.functions:
        inside = [(node.domain, node.op_type) for node in _messages(function, "NodeProto")]
        calls.setdefault((function.domain, function.name), []).extend(inside)
    sizes: dict[tuple[str, str], int] = {}
    try:
        for name in TopologicalSorter(
            {name: calls.keys() & set(called) for name, called in calls.items()}
        ).static_order():
            sizes[name] = min(MOST_OPERATORS + 1, sum(sizes.get(called, 1) for called in calls[name]))
    except CycleError:
        return None
    return sum(sizes.get((node.domain, node.op_type), 1) for node in _messages(model.graph, "NodeProto"))


def _messages(message: Any, kind: str) -> Iterator[Any]:
    """All protobuf messages of a kind inside ``message``, at any depth."""
    waiting = [message]
    while waiting:
        one = waiting.pop()
        if one.DESCRIPTOR.name == kind:
            yield one
        for field, value in one.ListFields():
            if field.message_type is not None:
                waiting.extend([value] if hasattr(value, "ListFields") else value)


def not_onnx(path: Path, error: Exception) -> InputError:
    """What to raise for a file that cannot be read."""
    return InputError(
        f"{path}: expected an ONNX file that onnxruntime reads, got {said_by(error)}; export it again, or update "
        "onnxruntime"
    )


def said_by(error: Exception) -> str:
    """What onnxruntime says, in one line of printable characters, without its own prefix."""
    return printable(first_line(error).rpartition("[ONNXRuntimeError] : ")[2])


def printable(text: str) -> str:
    """Text from a file that is not trusted, short and without control characters."""
    return "".join(c if c.isprintable() else "?" for c in text)[:200]
