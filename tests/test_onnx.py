"""ONNX files as networks: of heatsmooth, of others, quantised, and hostile."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper
from onnxruntime import quantization
from PIL import Image
from torch import Tensor, nn

import heatsmooth as hs
from heatsmooth import InputError
from heatsmooth.commands.line import run
from heatsmooth.models import onnx_file
from heatsmooth.models.onnx_file import OnnxNetwork
from heatsmooth.models.onnx_input import OnnxInput
from heatsmooth.runs import sha256
from tests.conftest import refused

SIDE, CLASSES = 8, 5
WEIGHT = np.random.default_rng(0).normal(size=(SIDE * SIDE, CLASSES)).astype(np.float32)
Dims = Sequence[int | str]


def node(kind: str, inputs: str, outputs: str, **attributes: Any) -> onnx.NodeProto:
    return helper.make_node(kind, inputs.split(), outputs.split(), **attributes)


CLASSIFIER = (node("Flatten", "x", "f"), node("MatMul", "f W", "y"))


def written(
    path: Path,
    nodes: Sequence[onnx.NodeProto] = CLASSIFIER,
    *,
    dims: Dims | None = ("n", 1, SIDE, SIDE),
    kind: int = TensorProto.FLOAT,
    outputs: Sequence[tuple[str, int, Dims | None]] = (("y", TensorProto.FLOAT, ("n", CLASSES)),),
    more: Sequence[onnx.ValueInfoProto] = (),
    stored: Sequence[onnx.TensorProto] = (),
    **constants: Any,
) -> Path:
    """A file written by hand: a linear classifier W of grey images, unless ``nodes`` say otherwise."""
    held = {"W": WEIGHT} | constants
    graph = helper.make_graph(
        nodes,
        "written",
        [helper.make_tensor_value_info("x", kind, dims), *more],
        [helper.make_tensor_value_info(*output) for output in outputs],
        [numpy_helper.from_array(np.asarray(value), name) for name, value in held.items()] + list(stored),
    )
    domains = [helper.make_opsetid("", 17), helper.make_opsetid("com.example", 1)]
    path.write_bytes(helper.make_model(graph, opset_imports=domains, ir_version=8).SerializeToString())
    return path


def expected(images: Tensor) -> Tensor:
    return images.flatten(1) @ torch.from_numpy(WEIGHT)


@pytest.fixture(scope="module")
def images() -> Tensor:
    return torch.rand(40, 1, SIDE, SIDE, generator=torch.Generator().manual_seed(1))


@pytest.fixture
def data(tmp_path: Path, images: Tensor) -> str:
    labels = expected(images).argmax(1).numpy()
    np.savez(tmp_path / "images.npz", images=images[:, 0].numpy(), labels=labels)
    return f"npz:{tmp_path}/images.npz"


def test_an_exported_file_counts_what_the_network_counts(tmp_path: Path, images: Tensor) -> None:
    layers = nn.Conv2d(1, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(8 * SIDE**2, CLASSES)
    network = nn.Sequential(*layers).eval()
    hs.export_onnx(network, tmp_path / "m.onnx", images, sigma=0.25)
    file = hs.load(tmp_path / "m.onnx")
    noisy = (images[:, None] + 0.5 * torch.randn(40, 50, 1, SIDE, SIDE)).flatten(0, 1)
    with torch.no_grad():
        ours, theirs = file(noisy).softmax(1), network(noisy).softmax(1)
    torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-5)
    first, second = theirs.topk(2, dim=1).values.T
    assert ((ours.argmax(1) == theirs.argmax(1)) | (first - second <= 1e-5)).all()
    results = [hs.certify(one, images[:8], sigma=0.5, n=300, batch_size=70) for one in (file, network)]
    assert np.array_equal(results[0].counts, results[1].counts)
    assert file.spec.config == sha256((tmp_path / "m.onnx").read_bytes())
    with pytest.raises(InputError, match="expected no `mean` and `std` beside a file of heatsmooth export"):
        hs.load(tmp_path / "m.onnx", mean=(0.5,), std=(0.5,))


def variants() -> dict[str, Callable[[Path], Path]]:
    """The same classifier in the forms that others write."""
    softmax = (node("Flatten", "x", "f"), node("MatMul", "f W", "l"), node("Softmax", "l", "y", axis=1))
    labelled = (*CLASSIFIER, node("ArgMax", "y", "label", axis=1, keepdims=0))
    unsqueezed = (node("Flatten", "x", "f"), node("MatMul", "f W", "l"), node("Unsqueeze", "l axes", "y"))
    last = (node("Transpose", "x", "t", perm=[0, 3, 1, 2]), node("Flatten", "t", "f"), node("MatMul", "f W", "y"))
    cast = (node("Cast", "x", "c", to=1), node("Flatten", "c", "f"), node("MatMul", "f W", "y"))
    labels = [("label", TensorProto.INT64, ("n",)), ("y", TensorProto.FLOAT, None)]
    pixels = ("n", 1, SIDE, SIDE)
    return {
        "as it is": lambda path: written(path),
        "nothing stated but the dimensions": lambda path: written(path, dims=("a", "b", "c", "d")),
        "one image per pass": lambda path: written(path, dims=(1, 1, SIDE, SIDE)),
        "three images per pass": lambda path: written(path, dims=(3, 1, SIDE, SIDE)),
        "channels last": lambda path: written(path, last, dims=("n", SIDE, SIDE, 1)),
        "flat": lambda path: written(path, [node("MatMul", "x W", "y")], dims=("n", SIDE**2)),
        "double": lambda path: written(path, cast, dims=pixels, kind=TensorProto.DOUBLE),
        "probabilities": lambda path: written(path, softmax),
        "with labels": lambda path: written(path, labelled, outputs=labels),
        "with two more dimensions": lambda path: written(
            path, unsqueezed, outputs=[("y", TensorProto.FLOAT, ("n", CLASSES, 1, 1))], axes=np.array([2, 3])
        ),
    }


@pytest.mark.parametrize("name", variants())
def test_files_of_others_are_certified(name: str, tmp_path: Path, images: Tensor) -> None:
    model = hs.load(variants()[name](tmp_path / "theirs.onnx"), channels=1)
    for count in (1, 2, 7):
        shares = [logits.softmax(1) for logits in (model(images[:count]), expected(images[:count]))]
        torch.testing.assert_close(*shares, rtol=1e-4, atol=1e-6)
    certified = hs.certify(model, images[:3], sigma=0.25, n=120)
    direct = hs.certify(LinearModule(), images[:3], sigma=0.25, n=120)
    assert np.array_equal(certified.counts, direct.counts)
    assert model.spec.channels == 1
    assert model.spec.size in (SIDE, None)
    shifted = hs.load(tmp_path / "theirs.onnx", channels=1, mean=(0.5,), std=(0.25,))
    with torch.no_grad():
        found, wanted = shifted(images).softmax(1), expected((images - 0.5) / 0.25).softmax(1)
    torch.testing.assert_close(found, wanted, rtol=1e-3, atol=1e-5)


class LinearModule(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.eval()

    def forward(self, x: Tensor) -> Tensor:
        return expected(x)


class Calibrating(quantization.CalibrationDataReader):  # type: ignore[misc]  # it has no types
    def __init__(self, images: Tensor) -> None:
        self.rest = iter([{"x": images.numpy()}])

    def get_next(self) -> dict[str, Any] | None:
        return next(self.rest, None)


def test_quantised_files_are_certified(tmp_path: Path, images: Tensor) -> None:
    before = written(tmp_path / "float.onnx")
    quantization.quantize_static(before, tmp_path / "static.onnx", Calibrating(images))
    quantization.quantize_dynamic(before, tmp_path / "dynamic.onnx")
    for kind in ("static", "dynamic"):
        model = hs.load(tmp_path / f"{kind}.onnx")
        network = model.network
        assert isinstance(network, OnnxNetwork)
        alone = torch.cat([model(image[None]) for image in images])
        assert torch.equal(model(images), alone), "an answer depends on the image alone"
        assert 0 < float((alone - expected(images)).abs().max()) < 0.5
        assert network.one_at_a_time == (kind == "dynamic")
        certified = hs.certify(model, images[:5], sigma=0.25, n=200)
        assert (certified.classes == alone[:5].argmax(1).numpy()).mean() >= 0.6
        assert certified.counts.sum() == 1000


def test_the_commands_take_a_file(
    tmp_path: Path, data: str, images: Tensor, capsys: pytest.CaptureFixture[str]
) -> None:
    file, out = written(tmp_path / "theirs.onnx"), tmp_path / "runs"
    digest = sha256(file.read_bytes())

    def done(words: str, *, source: Path = file) -> dict[str, Any]:
        assert run([*words.split(), "--from", str(source), "--json", "--quiet"]) == 0, capsys.readouterr()
        facts: dict[str, Any] = json.loads(capsys.readouterr().out)
        return facts

    checked = done(f"check --data {data} --mean 0.5 --std 0.25")
    assert checked["file_sha256"] == digest
    assert (checked["parameters"], checked["classes"], checked["can_be_smoothed"]) == (WEIGHT.size, CLASSES, False)
    assert checked["independent_of_the_batch"]
    assert [text for text in checked["warnings"] if "ONNX" in text]
    certify = f"certify --data {data} --mean 0.5 --std 0.25 --sigma 0.1 --n 100 --n0 10 --out {out}/c"
    assert done(certify)["images"] == 40
    recorded = json.loads((out / "c/run.json").read_text())["settings"]["networks"]["model"]
    assert (recorded["file"], recorded["architecture"]) == (digest, "onnx")
    calibrate = f"calibrate --certificates {out}/c --epsilon 0.4 --out {out}/k"
    done(f"{calibrate} --mean 0.5 --std 0.25")
    assert (out / "k/model.onnx").read_bytes() == file.read_bytes()
    Image.fromarray((255 * images[0, 0]).byte().numpy()).save(tmp_path / "i.png")
    (predicted,) = done(f"predict {tmp_path}/i.png --sigma 0.1 --noise-samples 100", source=out / "k")["predictions"]
    assert predicted["average_class"] in (predicted["class"], None), "it may abstain: the noise is secret"
    assert predicted["one_pass_radius"] >= 0
    assert done(f"one-pass --data {data} --out {out}/o", source=out / "k")["images"] == 40
    audit = f"audit --data {data} --sigma 0.1 --n 100 --images 20 --teacher {file} --out {out}/a"
    audited = done(audit, source=out / "k")
    assert (audited["agreement"]["images"], audited["verdict"]["kind"]) == (20, "caution")
    assert "average_attacks" not in audited
    assert run([*audit.split(), "--from", str(out / "k"), "--quiet"]) == 0
    assert "Nothing was attacked" in capsys.readouterr().out
    assert "Audit without attacks" in report_of(out, capsys)

    file.write_bytes(file.read_bytes() + b"\x32\x01g")  # the producer: another file with the same weights
    assert "expected the model it was started with" in refused(capsys, *certify.split(), "--from", file)
    error = refused(
        capsys, *f"calibrate --certificates {out}/c --mean 0.5 --std 0.25 --out {out}/l".split(), "--from", file
    )
    assert f"got another's ('{digest}')" in error
    (out / "k/model.onnx").write_bytes(file.read_bytes())
    assert "describes, got another one" in refused(capsys, "check", "--from", out / "k")


def report_of(out: Path, capsys: pytest.CaptureFixture[str]) -> str:
    assert run(["report", str(out), "--out", str(out / "report.html"), "--quiet"]) == 0
    capsys.readouterr()
    return (out / "report.html").read_text()


def test_what_needs_gradients_says_so(
    tmp_path: Path, data: str, images: Tensor, capsys: pytest.CaptureFixture[str]
) -> None:
    source = f"--from {written(tmp_path / 'theirs.onnx')} --quiet"
    for command in ("attack --steps 2", "smooth --sigma 0.25", "frontier --sigma 0.25"):
        error = refused(capsys, *f"{command} --data {data} {source} --out {tmp_path}/o".split())
        assert "got an ONNX file" in error
        assert "the run directory or the weights that it was exported from" in error
    assert "exported already" in refused(capsys, *f"export {source} --sigma 0.25 --out {tmp_path}/o.onnx".split())
    assert "got an ONNX file" in refused(capsys, *f"serve {source} --sigma 0.25 --port 0".split())
    assert "noise level" in refused(capsys, *f"audit --data {data} {source} --out {tmp_path}/o".split())
    assert "--model" in refused(capsys, *f"check {source} --model small".split())
    model, labels = hs.load(tmp_path / "theirs.onnx"), torch.zeros(2, dtype=torch.long)
    with pytest.raises(InputError, match="got an ONNX file, which has none"):
        hs.pgd(model, images[:2], labels, eps=1.0)
    with pytest.raises(InputError, match="audit_agreement"):
        hs.audit(model, hs.ImageSet.of("images", images, None), hs.AuditSettings(sigma=0.25))
    student = hs.distill(model, [images], student="lipschitz-tiny", epochs=1, batch_size=20)
    assert student(images).shape == (40, CLASSES)


def outside(location: str) -> onnx.TensorProto:
    tensor = numpy_helper.from_array(np.zeros(CLASSES, np.float32), "b")
    tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value=location)
    return tensor


def loop(path: Path) -> Path:
    values: dict[str, tuple[int, Any]] = {
        "i": (TensorProto.INT64, []),
        "c": (TensorProto.BOOL, []),
        "v": (TensorProto.FLOAT, None),
    }
    inputs = [helper.make_tensor_value_info(name, *kind) for name, kind in values.items()]
    outputs = [helper.make_tensor_value_info(f"{name}2", *values[name]) for name in "cv"]
    body = helper.make_graph([node("Identity", "c", "c2"), node("Identity", "v", "v2")], "body", inputs, outputs)
    nodes = (node("Flatten", "x", "f"), node("MatMul", "f W", "z"), node("Loop", "often on z", "y", body=body))
    return written(path, nodes, often=np.int64(2**62), on=np.bool_(True))


def laughs(path: Path, depth: int, inner: str = "Relu") -> Path:
    """Functions that call each other twice: 2**depth operators."""
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.example", 1)]
    model = onnx.load_from_string(written(path).read_bytes())
    for level in range(depth + 1):
        called, domain = (
            (f"f{level - 1}", "com.example") if level else (inner, "" if inner == "Relu" else "com.example")
        )
        nodes = [node(called, "a", "t", domain=domain), node(called, "t", "b", domain=domain)]
        model.functions.append(helper.make_function("com.example", f"f{level}", ["a"], ["b"], nodes, opsets))
    model.graph.node[1].output[0] = "z"
    model.graph.node.append(node(f"f{depth}", "z", "y", domain="com.example"))
    path.write_bytes(model.SerializeToString())
    return path


BIASED = (node("Flatten", "x", "f"), node("MatMul", "f W", "z"), node("Add", "z b", "y"))
HOSTILE: dict[str, tuple[Callable[[Path], object], str]] = {
    "no file": (lambda path: path, "got no such file"),
    "empty": (lambda path: path.write_bytes(b""), "got no operators"),
    "text": (lambda path: path.write_text("text " * 50), "expected an ONNX file that onnxruntime reads"),
    "torn": (lambda path: path.write_bytes(written(path).read_bytes()[:300]), "expected an ONNX file"),
    "external data": (lambda path: written(path, BIASED, stored=[outside("other.bin")]), "all weights in this one"),
    "a path that leaves": (lambda path: written(path, BIASED, stored=[outside("../../etc/passwd")]), "this one file"),
    "external data of an attribute": (
        lambda path: written(path, (*BIASED[:2], node("Constant", "", "b", value=outside("o")), BIASED[2])),
        "all weights in this one file",
    ),
    "custom operators": (
        lambda path: written(path, (BIASED[0], node("Steal\x1b[2J", "f W", "y", domain="com.example"))),
        "expected operators of ONNX and onnxruntime, got com.example:Steal?[2J",
    ),
    "unknown operators": (lambda path: written(path, (BIASED[0], node("Steal", "f W", "y"))), "Steal"),
    "no batch": (lambda path: written(path, dims=(1, SIDE, SIDE)), "one of 3 dimensions; export it with a batch"),
    "no shape": (lambda path: written(path, dims=None), "one of unknown dimensions"),
    "a batch that is not": (
        lambda path: written(path, (node("Reshape", "x one", "f"), CLASSIFIER[1]), one=np.array([1, SIDE**2])),
        "export it with a dynamic batch size",
    ),
    "answers without a batch": (
        lambda path: written(path, (*CLASSIFIER[:1], node("MatMul", "f W", "z"), node("ReduceSum", "z", "y"))),
        "expected answers (batch, classes) for 4 images, got 1×1",
    ),
    "two inputs": (
        lambda path: written(path, more=[helper.make_tensor_value_info("z", TensorProto.FLOAT, [1])]),
        "expected one input, the images, got 2",
    ),
    "two outputs": (
        lambda path: written(path, outputs=[(name, TensorProto.FLOAT, ("n", "m")) for name in "yf"]),
        "expected one output of floats (batch, classes), got y tensor(float) ?×5, f",
    ),
    "bytes": (lambda path: written(path, kind=TensorProto.UINT8), "expected images as floats"),
    "other channels": (
        lambda path: written(path, dims=("n", 3, SIDE, SIDE), W=np.zeros((3 * SIDE**2, CLASSES), np.float32)),
        f"expected images of 3×{SIDE}×{SIDE}, as the file takes, got 1×{SIDE}×{SIDE}",
    ),
    "one class": (
        lambda path: written(path, (*CLASSIFIER[:1], node("ReduceSum", "f one", "y")), one=np.array([1])),
        "expected answers for at least 2 classes, got 1",
    ),
    "not a number": (
        lambda path: written(path, (*BIASED,), b=np.full(CLASSES, np.nan, np.float32)),
        "expected finite logits, got NaN",
    ),
    "a huge constant": (
        lambda path: written(
            path,
            (node("ConstantOfShape", "many", "c"), node("ReduceSum", "c", "b", keepdims=0), *BIASED),
            many=np.array([10**12]),
        ),
        "not enough memory for a pass",
    ),
    "a huge image": (lambda path: written(path, dims=("n", 1, 10**9, 10**9)), "at most 67,108,864 numbers"),
    "functions of functions": (lambda path: laughs(path, 40), "at most 1,000,000 operators, got more"),
    "a function that calls itself": (lambda path: laughs(path, 2, "f2"), "at most 1,000,000 operators, got more"),
    "an endless loop": (loop, "expected a pass within 0.05 s, got none"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_files_get_one_line(
    name: str, tmp_path: Path, data: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(onnx_file, "PATIENCE", 0.05 if "loop" in name else 600.0)
    write, message = HOSTILE[name]
    write(tmp_path / "theirs.onnx")
    words = f"certify --from {tmp_path}/theirs.onnx --data {data} --sigma 0.25 --n 100 --out {tmp_path}/o --quiet"
    assert message in refused(capsys, *words.split())
    assert not list(tmp_path.glob("o/certificates.jsonl")) or not (tmp_path / "o/certificates.jsonl").read_bytes()


def test_a_huge_file_is_not_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with (tmp_path / "huge.onnx").open("wb") as file:
        file.truncate(2**31)
    assert "of at most 2,147,483,647 bytes, got 2,147,483,648" in refused(capsys, "check", "--from", file.name)


def test_answers_that_stop_being_probabilities_are_refused(tmp_path: Path, images: Tensor) -> None:
    nodes = (*CLASSIFIER[:1], node("MatMul", "f W", "l"), node("Softmax", "l", "p", axis=1))
    size = (node("ReduceMax", "x", "m", keepdims=0), node("Greater", "m two", "g"), node("Where", "g minus one", "s"))
    path = written(
        tmp_path / "m.onnx",
        (*nodes, *size, node("Mul", "p s", "y")),
        two=np.float32(2),
        minus=np.float32(-1),
        one=np.float32(1),
    )
    model = hs.load(path)
    torch.testing.assert_close(model(images).softmax(1), expected(images).softmax(1), rtol=1e-4, atol=1e-6)
    with pytest.raises(InputError, match="expected probabilities in every pass"):
        model(images + 3)


def test_functions_of_a_file_are_its_own_operators(tmp_path: Path, images: Tensor) -> None:
    model = hs.load(laughs(tmp_path / "m.onnx", 2))
    torch.testing.assert_close(model(images), expected(images).relu(), rtol=1e-4, atol=1e-5)


def test_the_layout_of_the_input() -> None:
    def layout(*dims: int | str) -> OnnxInput:
        return OnnxInput.of([helper.make_tensor_value_info("x", TensorProto.FLOAT, dims)], Path("m.onnx"))

    assert layout("n", 3, 20, 30).size == (20, 30)
    assert layout("n", 20, 30, 3) == OnnxInput("x", np.float32, None, 3, 20, 30, channels_last=True)
    assert not layout("n", 3, "h", 3).channels_last
    assert layout(4, "c", "h", "w").batch == 4
    assert (layout("n", 784).size, layout("n", 783).size, layout("n", "k").size) == (28, None, None)
    pixels = torch.rand(2, 3, 4, 5)
    assert np.array_equal(layout("n", 4, 5, 3).arranged(pixels), pixels.permute(0, 2, 3, 1).numpy())
