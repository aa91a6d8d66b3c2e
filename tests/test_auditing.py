"""The audit finds planted lies, and nothing against what is true."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from heatsmooth.auditing import audit, audit_proofs, verdict
from heatsmooth.auditing.parts import Parts
from heatsmooth.auditing.timesteps import timestep_distances
from heatsmooth.commands.line import run
from heatsmooth.data import ImageSet, load_images
from heatsmooth.models import NetworkSpec, build, save
from heatsmooth.reporting import build_report
from heatsmooth.results import audit as measured
from heatsmooth.results.audit import AuditSettings
from heatsmooth.runs import read_records
from tests.conftest import Linear, tiny_classifier

SIGMA = 0.25


class HalfSpace(nn.Module):
    """P(class 1) = Φ(sharpness·t), t = (w·x − b)/σ: with sharpness 1 exactly the Gaussian average of 1[w·x > b]."""

    def __init__(self, sharpness: float = 1.0) -> None:
        super().__init__()
        direction = torch.zeros(16)
        direction[:2] = torch.tensor([0.6, 0.8])
        self.direction = nn.Parameter(direction)
        self.sharpness = sharpness

    def forward(self, x: Tensor) -> Tensor:
        t = self.sharpness * (x.flatten(1).double() @ self.direction.double() - 0.7) / SIGMA
        return torch.stack([torch.special.log_ndtr(-t), torch.special.log_ndtr(t)], dim=1).float()


def half_space_images(count: int = 120) -> ImageSet:
    """Images from 0.3σ to 2.6σ from the boundary on both sides."""
    away = torch.linspace(0.3, 2.6, count // 2) * SIGMA
    shift = torch.cat([away, -away])[:, None] * torch.tensor([0.6, 0.8])
    images = torch.full((count, 16), 0.5)
    images[:, :2] += shift
    return ImageSet.of("half-space", images.clamp(0, 1).view(-1, 1, 4, 4), None)


def test_an_exact_average_passes() -> None:
    step = HalfSpace(sharpness=1e4).eval()
    found = audit(HalfSpace().eval(), half_space_images(), AuditSettings(sigma=SIGMA, steps=60), teacher=step)
    assert found.verdict.kind == "holds", found
    assert found.agreement.share >= 0.97
    assert found.average_attacks.violations == 0
    assert found.average_attacks.attacked > 80
    assert found.network_attacks.inside_l_bound.broken == 0
    assert found.network_attacks.surviving_fraction.fraction >= 1
    assert 0.9 < found.lipschitz.ratio <= 1.001
    assert found.approximation.teacher is not None
    assert found.approximation.teacher.mean < 0.03
    assert found.approximation.own.mean > found.approximation.teacher.mean


def test_students_that_are_the_averages_are_at_distance_0_of_their_own() -> None:
    """The average of 1[w·x > b] over noise of variance s² is Φ((w·x − b)/s)."""
    step, students = HalfSpace(sharpness=1e4).eval(), [HalfSpace().eval(), HalfSpace(sharpness=0.5**0.5).eval()]
    found = timestep_distances(step, students, half_space_images(20), sigma=SIGMA)
    near, wide = found.average, found.wider
    assert (near.variance, wide.variance) == pytest.approx((SIGMA**2, 2 * SIGMA**2))
    assert near.distances["1"].mean < 0.02 < 0.05 < near.distances["2"].mean < near.distances["0"].mean
    assert wide.distances["2"].mean < 0.02 < 0.05 < wide.distances["1"].mean < wide.distances["0"].mean
    assert wide.closer == pytest.approx(wide.distances["0"].mean - wide.distances["2"].mean)
    assert wide.closer_interval is not None
    assert wide.closer_interval[0] > 0


def test_the_average_of_linear_logits_is_the_network_itself() -> None:
    weight = torch.zeros(2, 16)
    weight[1, :2] = torch.tensor([6.0, 8.0])
    network = Linear(weight, torch.tensor([7.0, 0.0])).eval()
    found = timestep_distances(network, [network], half_space_images(8), sigma=SIGMA, logits=True, n=4000)
    assert found.averaged == "logits"
    assert found.average.distances["1"].mean < 0.02
    assert found.wider.distances["1"].mean < 0.03
    of_probabilities = timestep_distances(network, [network], half_space_images(8), sigma=SIGMA, n=400)
    assert of_probabilities.averaged == "probabilities"
    assert of_probabilities.average.distances["1"].mean > 0.1


def test_a_sharpened_network_is_found_out() -> None:
    found = audit(HalfSpace(sharpness=20.0).eval(), half_space_images(), AuditSettings(sigma=SIGMA, steps=60))
    assert found.verdict.kind == "broken"
    assert "L-bound is false" in found.verdict.text
    assert found.network_attacks.inside_l_bound.broken > 20
    assert found.lipschitz.ratio > 5
    assert found.average_attacks.violations == 0


def test_an_over_claimed_sigma_is_found_out() -> None:
    found = audit(HalfSpace().eval(), half_space_images(), AuditSettings(sigma=3 * SIGMA, steps=60))
    assert found.verdict.kind == "broken"
    assert found.network_attacks.inside_l_bound.broken > 20
    assert found.lipschitz.ratio > 2


@pytest.mark.parametrize(
    "during", ["certifying", "averaging the teacher", "attacking the network", "attacking the average"]
)
def test_an_interrupted_audit_continues(during: str, tmp_path: Path) -> None:
    """The second part of the work on which ``during`` is told is lost, and nothing before it is done again."""
    images, settings = half_space_images(12), AuditSettings(sigma=SIGMA, n=200, steps=3, noise_samples=4, batch_size=4)
    network, step = HalfSpace().eval(), HalfSpace(sharpness=1e4).eval()
    expected = audit(network, images, settings, teacher=step)

    def interrupted(what: str, done: int, total: int, note: str = "") -> None:
        if what == during and done > 4:
            raise KeyboardInterrupt

    file = tmp_path / "parts.jsonl"
    with Parts(file) as parts, pytest.raises(KeyboardInterrupt):
        audit(network, images, settings, teacher=step, parts=parts, progress=interrupted)
    before = read_records(file)
    assert any(part["what"] == DONE[during] for part in before)
    with Parts(file) as parts:
        assert audit(network, images, settings, teacher=step, parts=parts) == expected
    after = read_records(file)
    assert after[: len(before)] == before
    assert len({json.dumps([part["what"], part["images"]]) for part in after}) == len(after) == 12 + 3 + 3 + 3


DONE = {
    "certifying": "certified",
    "averaging the teacher": "averaged the teacher",
    "attacking the network": "attacked the network",
    "attacking the average": "attacked the average",
}
"""What is told while a part is made, and what the part is called."""


def test_an_interrupted_audit_of_proofs_continues(tmp_path: Path) -> None:
    network = build(NetworkSpec("lipschitz-tiny", 10, 1, (0.5,), (1.0,), 28)).eval()
    images = load_images("fashion-mini", "test").sampled(8)
    settings, file = AuditSettings(steps=2, batch_size=3), tmp_path / "parts.jsonl"
    expected = audit_proofs(network, images, settings)

    def interrupted(what: str, done: int, total: int, note: str = "") -> None:
        if what == "attacking inside the radii" and done > 3:
            raise KeyboardInterrupt

    with Parts(file) as parts, pytest.raises(KeyboardInterrupt):
        audit_proofs(network, images, settings, parts=parts, progress=interrupted)
    assert len(read_records(file)) == 2
    with Parts(file) as parts:
        assert audit_proofs(network, images, settings, parts=parts) == expected


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = tiny_classifier()
    save(model, tmp_path / "m.safetensors")
    words = f"audit --data fashion-mini --from {tmp_path}/m.safetensors --teacher {tmp_path}/m.safetensors --sigma 0.25"
    words += f" --images 3 --n 100 --steps 3 --noise-samples 4 --device cpu --quiet --out {tmp_path}/out"
    assert run(words.split()) == 0
    shown = capsys.readouterr().out
    assert "network broken inside its L-bound" in shown
    assert run([*words.split(), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["images"] == 3
    assert json.loads((tmp_path / "out/audit.json").read_text())["verdict"] == found["verdict"]
    assert run([*words.split(), "--steps", "0"]) == 2
    assert "expected" in capsys.readouterr().err


def test_the_teacher_may_be_another_network(
    in_tmp: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A built-in student and a teacher of the user's own code: each is loaded as what it is."""
    (in_tmp / "own.py").write_text(
        "from torch import nn\ndef net(): return nn.Sequential(nn.Flatten(), nn.Linear(784, 10))\n"
    )
    monkeypatch.syspath_prepend(in_tmp)
    save(tiny_classifier(), in_tmp / "m.safetensors")
    save(build(NetworkSpec("own:net", 10, 1)), in_tmp / "t.safetensors")
    words = "audit --data fashion-mini --from m.safetensors --sigma 0.25 --images 2 --n 60 --steps 2 --noise-samples 2"
    words += " --device cpu --quiet --out out --teacher"
    assert run([*words.split(), "t.safetensors"]) == 2
    told = capsys.readouterr().err
    assert "--teacher t.safetensors --teacher-model own:net" in told
    assert run([*words.split(), "t.safetensors", "--teacher-model", "own:net"]) == 0
    assert run([*words.split(), "own:net", "--out", "again"]) == 0


def refuse_constant(name: str) -> None:
    pytest.fail(f"{name} is not JSON")


def test_one_image_has_no_interval_and_the_file_is_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    save(tiny_classifier(), tmp_path / "m.safetensors")
    words = f"audit --data fashion-mini --from {tmp_path}/m.safetensors --sigma 0.25 --images 1 --n 100 --steps 3"
    words += f" --noise-samples 4 --device cpu --quiet --out {tmp_path}/out"
    assert run(words.split()) == 0
    assert " [–]" in capsys.readouterr().out
    file = tmp_path / "out/audit.json"
    found = json.loads(file.read_text(), parse_constant=refuse_constant)
    assert found["approximation"]["self"]["interval"] is None
    build_report([tmp_path / "out"], tmp_path / "report.html")
    page = (tmp_path / "report.html").read_text()
    assert f"{found['approximation']['self']['mean']:.3f}</" in page
    file.write_text(file.read_text().replace('"interval": null', '"interval": [-Infinity, Infinity]'))
    assert run(words.split()) == 0, "an older file"
    assert " [–]" in capsys.readouterr().out


MEASURES = measured.AuditMeasures(
    sigma=SIGMA,
    alpha=0.001,
    images=100,
    n=1000,
    seed=0,
    agreement=measured.Agreement.of(100, 100),
    approximation=measured.Approximation(
        own=measured.Distances(mean=0.1, interval=None, median=0.1, largest=0.1), teacher=None
    ),
    average_attacks=measured.AverageAttacks(attacked=50, violations=0, expected_at_most=0.1),
    network_attacks=measured.NetworkAttacks(
        inside_l_bound=measured.Broken.of(0, 50),
        inside_average_radius=measured.Broken.of(0, 50),
        surviving_fraction=measured.SurvivingFraction(share=0.99, fraction=1.0, images=50),
    ),
    lipschitz=measured.Slope(steepest=2.9, assumed=3.2, ratio=0.9),
)


@pytest.mark.parametrize(
    ("attacked", "violations", "broken", "slope", "kind", "says"),
    [
        (100, 0, 0, 0.9, "holds", "found nothing against the certificates of the average or against the L-bound."),
        (100, 1, 0, 0.9, "caution", "Attacks broke 1 certificates of the average, no more than chance allows."),
        (100, 5, 0, 0.9, "broken", "The statistical certificates are false"),
        (0, 0, 0, 0.9, "caution", "There was no certificate of the average to test."),
        (100, 0, 2, 0.9, "caution", "so its L-bound is false"),
        (100, 0, 50, 0.9, "broken", "so its L-bound is false"),
        (100, 0, 0, 6.0, "caution", "so its L-bound is not justified"),
    ],
)
def test_the_verdict_says_what_was_found(
    attacked: int, violations: int, broken: int, slope: float, kind: str, says: str
) -> None:
    found = verdict(
        replace(
            MEASURES,
            average_attacks=measured.AverageAttacks(attacked=attacked, violations=violations, expected_at_most=0.2),
            network_attacks=replace(MEASURES.network_attacks, inside_l_bound=measured.Broken.of(broken, 100)),
            lipschitz=replace(MEASURES.lipschitz, ratio=slope),
        )
    )
    assert found.kind == kind
    assert says in found.text


@pytest.mark.parametrize(
    ("count", "least", "says"),
    [
        (50, 0.929, "average. There are too few images to show that one pass agrees with the average on 95 %."),
        (47, 0.835, "average. One pass may disagree with the average too often."),
    ],
)
def test_the_verdict_tells_few_images_from_disagreement(count: int, least: float, says: str) -> None:
    agreement = measured.Agreement.of(count, 50)
    assert agreement.interval[0] == pytest.approx(least, abs=1e-3)
    found = verdict(replace(MEASURES, images=50, agreement=agreement))
    assert found.kind == "caution"
    assert says in found.text
