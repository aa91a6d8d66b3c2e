"""``distill``: labels are never read, an interrupted training continues, and the whole way by command line."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional as F

import heatsmooth as hs
from heatsmooth.commands.line import run
from heatsmooth.models import Classifier, is_lipschitz, load_state
from heatsmooth.noise import Draw
from heatsmooth.results.deterministic import NetworkCertificate, NetworkCertificates
from heatsmooth.results.guarantees import Basis, BasisKind
from heatsmooth.results.schema import from_json, to_json
from heatsmooth.training.batches import Batch
from heatsmooth.training.distill import distillation, logit_gain
from heatsmooth.training.settings import Distillation, Saving
from tests.conftest import Linear, refused, tiny_classifier

FAST: dict[str, Any] = {"student": "lipschitz-tiny", "epochs": 1, "batch_size": 16, "device": "cpu"}


def images(count: int = 64) -> hs.ImageSet:
    pixels = torch.rand(count, 1, 28, 28, generator=torch.Generator().manual_seed(0))
    return hs.ImageSet.of("random", pixels, torch.zeros(count, dtype=torch.int64))


def test_the_objective_is_the_cross_entropy_with_an_offset_in_units_of_radius() -> None:
    student, teacher = Linear(torch.randn(3, 16)), Linear(torch.randn(3, 16))
    x = torch.rand(5, 1, 4, 4)
    batch = Batch(x, None, Draw(0, "step", 0), 0.0)
    choices = Distillation(radius=0.3, temperature=0.1)
    terms = distillation(student, batch, teacher=teacher, choices=choices)
    p = teacher(x).softmax(1)
    expected = -(p * (student(x) - 3 * p).log_softmax(1)).sum(1).mean()
    torch.testing.assert_close(terms["loss"], expected)
    assert Distillation(radius=0.4).softness == 0.2
    rows = torch.eye(3) * logit_gain(choices)
    assert float((rows[0] - rows[1]).norm() * choices.softness) == pytest.approx(1)


def test_a_student_learns_without_labels_and_leaves_its_teacher_alone() -> None:
    teacher = tiny_classifier()
    before = {name: tensor.clone() for name, tensor in teacher.state_dict().items()}
    loader = [(some, "labels are never read") for some in images().images(torch.arange(64)).split(16)]
    student = hs.distill(teacher, loader, **FAST)
    assert is_lipschitz(student)
    assert isinstance(student, Classifier)
    assert not any(module.training for module in student.modules())
    assert all(torch.equal(tensor, before[name]) for name, tensor in teacher.state_dict().items())
    assert student.spec.size == 28
    proven = hs.certify(student, images(8))
    assert proven.labels is not None
    assert proven.radii.shape == (8,)


def test_an_interrupted_training_ends_with_the_same_student(tmp_path: Path) -> None:
    teacher = tiny_classifier()

    def interrupt(what: str, done: int, total: int, note: str = "") -> None:
        if done == 3:
            raise KeyboardInterrupt

    often = Saving(checkpoint_seconds=0, log_every=1)
    whole = hs.distill(teacher, images(96), **FAST, out=tmp_path / "whole")
    with pytest.raises(KeyboardInterrupt):
        hs.distill(teacher, images(96), **FAST, out=tmp_path / "killed", saving=often, progress=interrupt)
    assert load_state(tmp_path / "killed/state.safetensors")[1]["step"] == 2
    again = hs.distill(teacher, images(96), **FAST, out=tmp_path / "killed")
    assert all(torch.equal(tensor, again.state_dict()[name]) for name, tensor in whole.state_dict().items())
    finished = hs.distill(teacher, images(96), **FAST, out=tmp_path / "killed")
    assert all(torch.equal(tensor, finished.state_dict()[name]) for name, tensor in whole.state_dict().items())


def test_bad_choices_are_refused_in_one_line() -> None:
    with pytest.raises(hs.InputError, match=r"`student`: expected lipschitz-tiny, .*got 'small'"):
        hs.distill(tiny_classifier(), images(), student="small")
    with pytest.raises(hs.InputError, match="`radius`: expected a positive number, got 0"):
        Distillation(radius=0)
    with pytest.raises(hs.InputError, match="`temperature`"):
        Distillation(temperature=float("inf"))


@pytest.fixture(scope="module")
def student(fashion: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A student distilled by the command line, in a directory beside its teacher."""
    place = tmp_path_factory.mktemp("distilled")
    hs.save(tiny_classifier(), place / "teacher.safetensors")
    words = f"distill --data {fashion} --model lipschitz-tiny --epochs 1 --limit-train 512 --batch-size 64 --device cpu"
    teacher = ["--from", str(place / "teacher.safetensors"), "--quiet", "--json"]
    assert run([*words.split(), *teacher, "--out", str(place / "student")]) == 0
    return place / "student"


def test_the_command_line_distils_certifies_and_reports(
    student: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    info = json.loads((student / "run.json").read_text())
    assert info["settings"]["student"]["architecture"] == "lipschitz-tiny"
    assert info["summary"]["command"] == "distill"
    data = ["--data", "fashion-mini", "--from", student, "--images", 20, "--quiet", "--device", "cpu"]
    certify = [str(word) for word in ["certify", *data, "--out", tmp_path / "proven", "--json"]]
    assert run(certify) == 0
    summary = json.loads(capsys.readouterr().out)
    assert (summary["subject"], summary["basis"]) == ("network", "deterministic")
    assert "sigma" not in summary
    proven = NetworkCertificates.read(tmp_path / "proven")
    library = hs.certify(hs.load(student), hs.load_images("fashion-mini", "test").strided(1, 20))
    np.testing.assert_allclose(proven.radii, library.radii, atol=1e-6)
    lines = (tmp_path / "proven/certificates.jsonl").read_text().splitlines()
    (tmp_path / "proven/certificates.jsonl").write_text("\n".join(lines[:7]) + "\n")
    assert run(certify) == 0
    again = NetworkCertificates.read(tmp_path / "proven")
    assert (again.radii == proven.radii).all()
    capsys.readouterr()
    assert run(["report", str(student), str(tmp_path / "proven"), "--out", str(tmp_path / "r.html"), "--quiet"]) == 0
    page = (tmp_path / "r.html").read_text()
    assert "network, in one pass · deterministic" in page
    assert "average · statistical" not in page
    capsys.readouterr()
    assert "got deterministic ones" in refused(capsys, "recompute", "--from", tmp_path / "proven", "--alpha", 0.1)
    assert "--sigma: expected a value beside --n" in refused(capsys, *certify[:-1], "--n", 50)
    assert "--tsv: expected --sigma beside it" in refused(capsys, *certify[:-1], "--tsv", tmp_path / "log.tsv")


def test_predict_shows_the_proven_radius(student: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shoe = Path(__file__).parents[1] / "examples/shoe.png"
    assert run(["predict", "--from", str(student), str(shoe), "--quiet", "--device", "cpu"]) == 0
    assert "proven: deterministic" in capsys.readouterr().out


def test_the_exported_radius_is_the_bound_and_never_exceeds_it(student: Path, tmp_path: Path) -> None:
    onnx, onnxruntime = pytest.importorskip("onnx"), pytest.importorskip("onnxruntime")
    model, some = hs.load(student), images(50).images(torch.arange(50))
    exported = hs.export_onnx(model, tmp_path / "model.onnx", some)
    assert exported.outputs == ("probabilities", "class", "certified_radius")
    assert exported.metadata["certified_radius.basis"] == "deterministic"
    kinds = {one.name: one.data_type for one in onnx.load(tmp_path / "model.onnx").graph.initializer}
    near_one_or_zero = {
        "below",
        "proven.rate",
        "proven.most_rate",
        "proven.up",
        "proven.growth",
        "proven.feature_offset",
    }
    assert near_one_or_zero <= {name for name, kind in kinds.items() if kind == onnx.TensorProto.DOUBLE}  # not dropped
    session = onnxruntime.InferenceSession(tmp_path / "model.onnx", providers=["CPUExecutionProvider"])
    _, classes, radii = session.run(None, {"images": some.numpy()})
    proven = hs.certify(model, some)
    assert (classes == proven.classes).all()
    np.testing.assert_allclose(radii, proven.radii, atol=1e-5)
    network: Any = model.network
    with torch.inference_mode():
        features = network.layers(some.double() - 0.5).flatten(1)
        rows = network.last.rows(torch.float64)
        logits = F.linear(features, rows, network.last.bias.double())
        distances = torch.cdist(rows, rows, compute_mode="donot_use_mm_for_euclid_dist")
    for one, logit, own in zip(radii, logits, classes, strict=True):
        exact = min(float((logit[own] - logit[j]) / distances[own, j]) for j in range(10) if j != own)
        assert one <= exact


def test_a_certificate_without_counts_is_read_as_it_was_written() -> None:
    item = NetworkCertificate(index=3, label=None, predicted=1, radius=0.25, abstain=False, seconds=0.5)
    written = to_json(item)
    assert written["basis"] == "deterministic"
    assert from_json(NetworkCertificate, written, "expected one", "remove it") == item
    assert Basis.read("deterministic").kind is BasisKind.DETERMINISTIC
    for change in (
        {"radius": 0.0},
        {"class": None},
        {"subject": "average"},
        {"basis": "statistical, alpha=0.1, top-2"},
    ):
        with pytest.raises(hs.InputError, match="contradicts itself"):
            from_json(NetworkCertificate, written | change, "expected one", "remove it")
