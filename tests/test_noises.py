"""Radii of all noises and norms: closed forms, published values, true radii of known networks, coverage, commands."""

import json
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy import optimize, stats

import heatsmooth as hs
from heatsmooth.certification.comparison import NamedRadii, every_radius
from heatsmooth.certification.radii import radii_of
from heatsmooth.certification.settings import Settings
from heatsmooth.commands.certified import CertifiedRun
from heatsmooth.commands.line import run
from heatsmooth.models import save
from heatsmooth.noise import Draw, fill_noise
from heatsmooth.results.certificates import Certificates, read_certificates
from heatsmooth.results.guarantees import Basis, BasisKind, Subject
from heatsmooth.settings import NORMS, Noise, Norm
from heatsmooth.statistics.bounds import Floats
from heatsmooth.statistics.noises import Smoothing, laplace_radius
from heatsmooth.training.ascent import uphill
from heatsmooth.training.settings import Heat
from tests.conftest import Linear, refused, tiny_classifier

RESULTS = Path(__file__).parents[1] / "results"
NOISES: tuple[Noise, ...] = ("gaussian", "laplace", "uniform")
SIGMA = 0.25
ONE_VALUE: dict[Noise, Any] = {
    "gaussian": stats.norm(scale=SIGMA),
    "laplace": stats.laplace(scale=SIGMA / 2**0.5),
    "uniform": stats.uniform(loc=-SIGMA * 3**0.5, scale=2 * SIGMA * 3**0.5),
}
"""The noise of one value, by scipy; each has the standard deviation σ."""
PAIRS = [(noise, norm) for noise in NOISES for norm in NORMS[noise]]


@pytest.mark.parametrize("noise", NOISES)
def test_the_l1_radius_is_the_quantile_of_the_noise_of_one_value(noise: Noise) -> None:
    """No larger radius holds for a network that depends on one value; Yang 2020, table 1."""
    p = np.linspace(0.5, 0.999, 30)
    radius, abstain = Smoothing(SIGMA, noise, "l1").one_sided(p)
    assert float(ONE_VALUE[noise].std()) == pytest.approx(SIGMA)
    np.testing.assert_allclose(radius, ONE_VALUE[noise].ppf(p), atol=1e-12)
    assert not abstain.any()
    assert Smoothing(SIGMA, noise, "l1").one_sided(0.49)[1]


def test_published_values() -> None:
    """Yang 2020: figures of p → radius for CIFAR-10 images (d = 3,072), each noise with variance 1 per value."""

    def radius(noise: Noise, norm: Norm, p: float) -> float:
        return float(Smoothing(1.0, noise, norm, 3072).one_sided(p)[0])

    assert radius("uniform", "l1", 1.0) == pytest.approx(1.732, abs=1e-3)
    assert radius("gaussian", "l1", 0.9) == pytest.approx(1.2816, abs=1e-4)
    assert radius("laplace", "l1", 0.9) == pytest.approx(1.138, abs=1e-3)
    assert radius("gaussian", "linf", 0.999) == pytest.approx(3.0902 / 3072**0.5, abs=1e-5)
    assert radius("uniform", "linf", 0.9) == pytest.approx(2 * 3**0.5 * (1 - 0.6 ** (1 / 3072)), abs=1e-9)
    crossing = optimize.brentq(lambda p: radius("uniform", "l1", p) - radius("gaussian", "l1", p), 0.6, 0.99)
    assert crossing == pytest.approx(0.932, abs=2e-3)
    order = {p: sorted(NOISES, key=lambda noise: radius(noise, "l1", p)) for p in (0.7, 0.99)}
    assert order == {0.7: ["laplace", "gaussian", "uniform"], 0.99: ["uniform", "gaussian", "laplace"]}


@pytest.mark.parametrize(("noise", "norm"), PAIRS)
def test_radii_invert_and_do_not_grow_with_the_rival(noise: Noise, norm: Norm) -> None:
    smoothing, p = Smoothing(SIGMA, noise, norm, 48), np.linspace(0.5, 0.999, 40)
    one_sided = smoothing.one_sided(p)[0]
    np.testing.assert_allclose(smoothing.probability(one_sided), p, atol=1e-9)
    np.testing.assert_allclose(smoothing.two_sided(p, 1 - p)[0], one_sided, atol=1e-9)
    assert (np.diff(one_sided) > 0).all()
    less = smoothing.two_sided(p, (1 - p) / 2)[0]
    assert (less[:-1] > one_sided[:-1]).all()
    assert smoothing.two_sided(0.4, 0.5)[1]


def test_the_laplace_radius_is_the_larger_of_both_bounds() -> None:
    scale = SIGMA / 2**0.5
    assert laplace_radius(0.5, 0.1, sigma=SIGMA)[0] == pytest.approx(scale / 2 * np.log(5))
    assert laplace_radius(0.9, 0.1, sigma=SIGMA)[0] == pytest.approx(-scale * np.log(0.2))


def test_uniform_noise_moves_out_of_its_cube_by_the_product_formula() -> None:
    """The share of a cube that is left after a shift by r in each of d values, by sampling, is 1 − 2·(p − ½)."""
    values, p = 3, 0.9
    r = float(Smoothing(SIGMA, "uniform", "linf", values).one_sided(p)[0])
    noise = torch.empty(200_000, values)
    fill_noise(noise, "uniform", SIGMA, torch.Generator().manual_seed(0))
    left = ((noise + r).abs() <= SIGMA * 3**0.5).all(1).float().mean()
    assert float(left) == pytest.approx(1 - (p - 0.5), abs=4e-3)


@pytest.mark.parametrize("noise", NOISES)
def test_the_noise_has_its_distribution_and_does_not_depend_on_processes(noise: Noise) -> None:
    numbers = torch.empty(40_000)
    fill_noise(numbers, noise, SIGMA, torch.Generator().manual_seed(3))
    assert stats.kstest(numbers.double().numpy(), ONE_VALUE[noise].cdf).pvalue > 0.01
    drawn = SIGMA * Draw(5).noise(noise, (40_000,))
    assert stats.kstest(drawn.double().numpy(), ONE_VALUE[noise].cdf).pvalue > 0.01
    halves = [Draw(5, rank=rank, world=2).noise(noise, (2, 3)) for rank in (0, 1)]
    assert torch.equal(torch.cat(halves), Draw(5).noise(noise, (4, 3)))


def false_share(noise: Noise, factor: float) -> float:
    """How often the certified radius, times a factor, exceeds the true one: of a network that sees one value."""
    truth = np.array([0.05, 0.12, 0.3])
    p = ONE_VALUE[noise].cdf(truth)
    counts = np.random.default_rng(0).binomial(400, p, (20_000, 3)).T.reshape(-1)
    settings = Settings(SIGMA, n=400, alpha=0.05, noise=noise, norm="l1")
    radius, _ = radii_of(np.stack([counts, 400 - counts], 1), np.zeros(len(counts), dtype=np.int64), settings)
    return float((factor * radius.reshape(3, -1) > truth[:, None]).mean(1).max())


@pytest.mark.parametrize("noise", NOISES)
def test_certificates_of_each_noise_are_false_with_probability_at_most_alpha(noise: Noise) -> None:
    """Simulated coverage; a radius that is 10 % too large would be noticed."""
    assert 0.03 < false_share(noise, 1.0) < 0.05 + 4 * (0.05 * 0.95 / 20_000) ** 0.5
    assert false_share(noise, 1.1) > 0.1


@pytest.mark.parametrize(("noise", "norm"), PAIRS)
def test_certificates_of_a_network_with_known_radii_are_true_and_close(noise: Noise, norm: Norm) -> None:
    """Class 1 where one value (l1), or the sum of all (l2, linf), is above a threshold."""
    size = 4
    weight = torch.zeros(2, size)
    weight[1, :1] = 1.0
    if norm != "l1":
        weight[1] = 1.0
    images, gap = torch.full((6, 1, 2, 2), 0.5), 0.15
    slope = {"l1": 1.0, "l2": size**0.5, "linf": float(size)}[norm]
    model = Linear(weight, torch.tensor([0.0, gap * slope - 0.5 * float(weight[1].sum())])).eval()
    certified = hs.certify(model, images, sigma=SIGMA, n=2000, class_from="clean", noise=noise, norm=norm)
    assert (certified.classes == 1).all()
    assert certified.basis == Basis(BasisKind.STATISTICAL, alpha=0.001, noise=noise, norm=norm)
    assert (certified.radii <= gap).all()
    assert (certified.radii >= (0.6 if (noise, norm) != ("uniform", "linf") else 0.25) * gap).all()
    fewer = hs.certify(model, images[:1], sigma=SIGMA, n=2000, class_from="clean", noise=noise, adaptive=True)
    assert 0 < fewer.radii[0] <= gap * (1 if norm == fewer.basis.norm else 4)


def named(kinds: list[NamedRadii], name: str, norm: Norm = "l2", subject: Subject = Subject.AVERAGE) -> Floats:
    (found,) = (k for k in kinds if (k.name, k.basis.norm, k.subject) == (name, norm, subject))
    return found.radii


@pytest.mark.parametrize("bound", ["one-sided", "two-sided"])
def test_the_order_of_radii_holds_on_every_published_image(bound: Any) -> None:
    """PixelDP, Rényi ≤ Cohen; L-bound of the mean ≤ radius of the mean; the norms are in their exact ratio."""
    runs = [RESULTS / "cifar10-adaptive/adaptive", RESULTS / "imagenet-sample/seed-0/bootcamp-certified"]
    runs += sorted((RESULTS / "fashion-small/seed-0").glob("*-certified"))
    images = 0
    for directory in runs:
        counted = CertifiedRun.read(directory, "source")
        settings = Settings.from_json(counted.settings.describe() | {"bound": bound}, directory)
        certificates = Certificates.of(read_certificates(directory))
        kinds = every_radius(certificates, settings, pixels=counted.pixels)
        cohen = named(kinds, "Cohen")
        for older in ("PixelDP", "Rényi"):
            assert (named(kinds, older) <= cohen).all()
            assert named(kinds, older).sum() > 0
        if certificates.sums is not None:
            assert (named(kinds, "L-bound (mean)") <= named(kinds, "Salman (mean)")).all()
        if bound == "one-sided":
            np.testing.assert_array_equal(cohen, certificates.radii)
        np.testing.assert_array_equal(named(kinds, "Cohen", "l1"), cohen)
        np.testing.assert_allclose(named(kinds, "Cohen", "linf"), cohen / counted.pixels**0.5, atol=1e-9)
        images += len(certificates)
    assert images > 1500


@pytest.fixture(scope="module")
def network(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("network") / "model.safetensors"
    save(tiny_classifier(), path)
    return path


def words(network: Path, out: Path, *more: str) -> list[str]:
    usual = ["--data", "fashion-mini", "--from", str(network), "--sigma", "0.25", "--images", "1", "--n", "60"]
    return ["certify", *usual, "--n0", "20", "--out", str(out), "--quiet", *more]


def test_certified_recomputed_compared_and_reported_in_other_norms(
    network: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("heatsmooth.certification.certificates.clever", partial(hs.clever, samples=4, rivals=2))
    out = tmp_path / "uniform"
    assert run(words(network, out, "--noise", "uniform", "--clever", "2", "--json")) == 0
    summary = json.loads(capsys.readouterr().out)
    assert (summary["noise"], summary["norm"]) == ("uniform", "l1")
    assert "uniform noise, l1 radius" in summary["basis"]
    record = read_certificates(out)[0]
    assert (record.noise, record.pixels, record.basis.norm) == ("uniform", 784, "l1")
    assert run(["recompute", "--from", str(out), "--norm", "linf", "--out", str(tmp_path / "linf"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["norm"] == "linf"
    assert read_certificates(tmp_path / "linf")[0].clever is None
    assert run(["radii", "--from", str(out), "--json"]) == 0
    compared = json.loads(capsys.readouterr().out)
    assert [(kind["name"], kind["norm"], kind["subject"]) for kind in compared["kinds"]] == [
        ("Yang", "l1", "average"),
        ("Yang", "linf", "average"),
        ("CLEVER", "l1", "network"),
    ]
    assert "no guarantee" in compared["kinds"][2]["basis"]
    assert len(compared["images"]) == 1
    assert all(len(image["radii"]) == 3 for image in compared["images"])
    assert run(["radii", "--from", str(out)]) == 0
    shown = capsys.readouterr().out
    assert "uniform noise, l1 radius" in shown
    assert len(shown.splitlines()) == 1 + 3 + 1 + 1 + 1
    page = tmp_path / "report.html"
    assert run(["report", str(tmp_path), "--out", str(page)]) == 0
    text = page.read_text()
    for said in ("L1 radius r, images", "L∞ radius r, images", "average over uniform noise", "L∞ norm up to"):
        assert said in text, said
    assert "L2 perturbations" not in text
    html = Certificates.read(tmp_path / "linf")._repr_html_()
    assert "L∞ radius r" in html
    assert "over uniform noise" in html


def test_what_other_noises_do_not_have_is_one_line(
    network: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    certify = words(network, tmp_path / "x")
    assert "expected l1 with laplace noise, got l2" in refused(capsys, *certify, "--noise", "laplace", "--norm", "l2")
    assert "expected 1 with uniform noise" in refused(capsys, *certify, "--noise", "uniform", "--top-k", "2")
    assert "recompute --norm linf" in refused(capsys, *certify, "--norm", "linf", "--adaptive")
    assert run(words(network, tmp_path / "l1", "--norm", "l1")) == 0
    capsys.readouterr()
    assert "cannot express" in refused(capsys, *words(network, tmp_path / "l1", "--norm", "l1", "--tsv", "x.tsv"))
    calibrate = ("calibrate", "--from", network, "--certificates", tmp_path / "l1", "--out", tmp_path / "c")
    assert "expected L2 radii of Gaussian noise" in refused(capsys, *calibrate)
    smooth = ("smooth", "--data", "fashion-mini", "--from", network, "--sigma", "0.25", "--out", tmp_path / "s")
    assert "use --noisy-images none" in refused(capsys, *smooth, "--noise", "none")
    assert "expected gaussian where no image" in refused(
        capsys, *smooth, "--noise", "laplace", "--noisy-images", "none", "--estimator", "direction"
    )
    with pytest.raises(hs.InputError, match="`noisy_images` copy"):
        Heat(SIGMA, noise="copy")  # type: ignore[arg-type]


def test_smoothing_for_another_noise(
    network: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("heatsmooth.commands.training.TESTED", 10)
    out = tmp_path / "smoothed"
    smooth = ["smooth", "--data", "fashion-mini", "--from", str(network), "--sigma", "0.25", "--noise", "laplace"]
    assert run([*smooth, "--limit-train", "32", "--batch-size", "16", "--out", str(out), "--quiet"]) == 0
    recorded = json.loads((out / "run.json").read_text())["settings"]["heat"]
    assert (recorded["noise"], recorded["distribution"], recorded["norm"]) == ("copy", "laplace", "l1")
    capsys.readouterr()
    assert run([*words(out, tmp_path / "certified", "--json")]) == 0
    note = json.loads(capsys.readouterr().out)["note"]
    assert note == "smoothed for laplace noise of σ=0.25, certified with σ=0.25"
    usual = Heat(SIGMA).describe()
    assert usual["noise"] == "copy"
    assert not {"distribution", "norm", "noisy_images"} & usual.keys()


@pytest.mark.parametrize("norm", ["l2", "l1", "linf"])
def test_ascent_is_steepest_in_its_norm(norm: Norm, linear: Linear) -> None:
    x = torch.rand(3, 1, 4, 4)
    step = (uphill(linear, x, lambda v: v[:, 0], 0.5, norm) - x).flatten(1)
    torch.testing.assert_close(step.norm(dim=1), torch.full((3,), 0.5))
    rise = (step @ linear.weight[0]) / torch.linalg.vector_norm(
        step, {"l2": 2, "l1": 1, "linf": torch.inf}[norm], dim=1
    )
    dual = torch.linalg.vector_norm(linear.weight[0], {"l2": 2, "l1": torch.inf, "linf": 1}[norm])
    torch.testing.assert_close(rise, dual.expand(3))


@pytest.mark.parametrize("basis", [Basis(BasisKind.STATISTICAL, alpha=0.001, noise=n, norm=m) for n, m in PAIRS])
def test_noise_and_norm_are_part_of_the_text_of_a_basis(basis: Basis) -> None:
    assert Basis.read(str(basis)) == basis
