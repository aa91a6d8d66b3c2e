"""The audit of deterministic radii: it finds planted lies, and nothing against what is proven."""

from pathlib import Path
from typing import Any

import pytest
import torch

import heatsmooth as hs
from heatsmooth.attacks import ddn, pgd
from heatsmooth.auditing.proofs import Target, attack_inside, limited, proof_verdict, starting_points
from heatsmooth.auditing.single_precision import SinglePrecision
from heatsmooth.commands.line import run
from heatsmooth.models import NetworkSpec, build
from heatsmooth.results.audit import AuditResult, Broken
from heatsmooth.results.proof_audit import ProofAudit, ProofAuditMeasures, read_audit
from heatsmooth.results.schema import to_json
from heatsmooth.runs import write_json
from tests.conftest import tiny_classifier
from tests.test_lipschitz import small


def target(factor: float = 1.0, count: int = 12) -> Target:
    """Images whose claimed radii are ``factor`` times the proven ones."""
    model = small(3, 1.0).requires_grad_(False)
    images = torch.rand(count, 3, 4, 4, generator=torch.Generator().manual_seed(0))
    proven = hs.certify(model, images)
    radii, classes = torch.from_numpy(proven.radii) * factor, torch.from_numpy(proven.classes)
    return Target(model, torch.arange(count), images, classes, radii)


@pytest.mark.parametrize("attack", [pgd, ddn])
def test_only_claims_beyond_the_proof_are_broken(attack: Any) -> None:
    honest = attack_inside(target(), limited(attack, 15), restarts=2)
    assert not honest.broken.any()
    assert (honest.used() < 1).all()
    lie = attack_inside(target(12.0), limited(attack, 15), restarts=2)
    assert lie.broken.any()
    assert (lie.used()[lie.broken] >= 1).any()


def test_gradients_are_of_nearly_the_same_network() -> None:
    some = target()
    images, factors = some.images.clone().requires_grad_(True), torch.randn(len(some.images), 4)

    def logits_and_slope(network: torch.nn.Module) -> torch.Tensor:
        logits = network(images)
        (slope,) = torch.autograd.grad((logits * factors).sum(), images)
        return torch.cat([logits.detach(), slope.flatten(1)], 1)

    exact = logits_and_slope(some.model)
    assert float(exact[:, 4:].abs().max()) > 0.01
    assert float((exact - logits_and_slope(SinglePrecision(some.model))).abs().max()) < 1e-4
    again = Target(some.model, some.indices[5:], some.images[5:], some.classes[5:], some.radii[5:])
    assert torch.equal(starting_points(some, 3, 0)[5:], starting_points(again, 3, 0))
    moved = (starting_points(some, 1, 0) - some.images).flatten(1).norm(dim=1)
    assert (moved <= some.radii * (1 + 1e-5)).all()


def measured(broken: int, attacked: int) -> ProofAuditMeasures:
    counts = {"PGD": Broken.of(0, attacked), "DDN": Broken.of(broken, attacked)}
    return ProofAuditMeasures(images=20, steps=5, restarts=2, seed=0, broken=counts, tightness=None)


@pytest.mark.parametrize(
    ("broken", "attacked", "kind", "says"),
    [
        (0, 20, "holds", "PGD broke 0, DDN broke 0 of 20 images"),
        (1, 20, "broken", "are false: do not use them"),
        (0, 0, "caution", "No image has a deterministic radius"),
    ],
)
def test_one_break_refutes_a_proof(broken: int, attacked: int, kind: str, says: str) -> None:
    verdict = proof_verdict(measured(broken, attacked))
    assert verdict.kind == kind
    assert says in verdict.text


@pytest.fixture(scope="module")
def student(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.manual_seed(0)
    place = tmp_path_factory.mktemp("student") / "student.safetensors"
    hs.save(build(NetworkSpec("lipschitz-tiny", 10, 1, (0.5,), (1.0,), 28)).eval(), place)
    return place


def refused(capsys: pytest.CaptureFixture[str], words: str) -> str:
    assert run(words.split()) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    return error


def test_the_command_audits_without_noise_and_the_report_shows_it(
    student: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = (
        f"audit --data fashion-mini --from {student} --images 6 --steps 3 --device cpu --quiet --out {tmp_path}/audit"
    )
    assert run(words.split()) == 0
    shown = capsys.readouterr().out
    assert "broken by PGD inside the radius" in shown
    assert "HOLDS. The attacks found nothing against the deterministic radii" in shown
    audit = read_audit(tmp_path / "audit")
    assert isinstance(audit, ProofAudit)
    assert audit.broken["DDN"].broken == 0
    assert audit.tightness is not None
    assert audit.tightness.margin_used < 1
    write_json(tmp_path / "audit.json", to_json(audit) | {"broken": {"PGD": {"share": 2}}})
    with pytest.raises(hs.InputError, match="expected an audit, got broken"):
        read_audit(tmp_path)
    page = tmp_path / "r.html"
    assert run(["report", str(tmp_path / "audit"), "--out", str(page), "--quiet"]) == 0
    assert "Audit of the deterministic radii" in page.read_text()
    assert "audit --data D" not in page.read_text()


def test_what_a_proven_radius_does_not_need_is_refused_in_one_line(
    student: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    hs.save(tiny_classifier(), tmp_path / "m.safetensors")
    common = f"--data fashion-mini --from {student} --quiet --device cpu --out {tmp_path}/out"
    assert "audited without noise" in refused(capsys, f"audit {common} --from {tmp_path}/m.safetensors")
    assert "--teacher: expected --sigma" in refused(capsys, f"audit {common} --teacher {tmp_path}/m.safetensors")
    assert "it needs no calibration: use heatsmooth certify" in refused(capsys, f"one-pass {common}")
    assert "it needs no smoothing: use heatsmooth certify" in refused(capsys, f"smooth {common} --sigma 0.25")
    images = hs.load_images("fashion-mini", "test").strided(1, 2)
    with pytest.raises(hs.InputError, match="`sigma`: expected the noise level, got none"):
        hs.audit(tiny_classifier().eval(), images, hs.AuditSettings())


def test_older_audits_are_read_as_they_are(tmp_path: Path) -> None:
    published = Path(__file__).parents[1] / "results"
    file = next(published.rglob("audit.json"))
    assert isinstance(read_audit(file.parent), AuditResult)
