"""The methods of others: each loss computed a second time, plainly, on tiny inputs; labels are never read."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy.stats import norm
from torch import Tensor, nn

import heatsmooth as hs
from heatsmooth.commands.line import run
from heatsmooth.data import load_images
from heatsmooth.errors import InputError
from heatsmooth.models import Classifier, Denoised, OneStepDiffusion, build, denoised, load, model_hash, save
from heatsmooth.models.denoisers import DnCnn
from heatsmooth.models.spec import NetworkSpec
from heatsmooth.noise import Draw
from heatsmooth.runs import read_json
from heatsmooth.training.batches import Batch
from heatsmooth.training.consistency import consistency
from heatsmooth.training.denoising import denoising
from heatsmooth.training.field import Consistency, Denoising, Macer, Rival, SmoothMix, task
from heatsmooth.training.macer import macer
from heatsmooth.training.smoothmix import smoothmix
from tests.conftest import Linear, tiny_classifier

SIGMA = 0.25


def batch(images: int = 6) -> Batch:
    return Batch(torch.rand(images, 1, 4, 4, generator=torch.Generator().manual_seed(1)), None, Draw(0, "step"), 0.0)


def copies_of(images: Tensor, copies: int) -> Tensor:
    """The noisy copies of a fresh batch, (copies, images, …)."""
    noise = Draw(0, "step").normal((len(images), copies, *images.shape[1:])).transpose(0, 1)
    return images + SIGMA * noise


@pytest.fixture
def teacher() -> Linear:
    return Linear(3 * torch.randn(5, 16, generator=torch.Generator().manual_seed(2)))


def test_consistency_is_the_papers_loss_with_the_teachers_probabilities(linear: Linear, teacher: Linear) -> None:
    choices, images = Consistency(consistency=7.0, entropy=0.3, consistency_copies=3), batch().images
    terms = consistency(linear, batch(), teacher=teacher, sigma=SIGMA, choices=choices)
    p = torch.stack([linear(x).softmax(1) for x in copies_of(images, 3)])
    mean, target = p.mean(0), teacher(images).softmax(1)
    torch.testing.assert_close(terms["distance"], -(target * p.log()).sum(-1).mean())
    torch.testing.assert_close(terms["consistency"], 7 * (mean * (mean / p).log()).sum(-1).mean())
    torch.testing.assert_close(terms["entropy"], -0.3 * (mean * mean.log()).sum(-1).mean())


def test_macer_is_the_papers_loss_with_the_teachers_class(linear: Linear, teacher: Linear) -> None:
    choices, images = Macer(radius_weight=3.0, largest_margin=4.0, sharpness=2.0, radius_copies=8), batch(40).images
    terms = macer(linear, batch(40), teacher=teacher, sigma=SIGMA, choices=choices)
    logits, classes = torch.stack([linear(x) for x in copies_of(images, 8)]), teacher(images).argmax(1)
    p, q = logits.softmax(-1).mean(0), (2 * logits).softmax(-1).mean(0)
    lost, wrong = 0.0, 0
    for row, label in zip(q.detach().double(), classes.tolist(), strict=True):
        (first, second), best = row.topk(2).values.tolist(), int(row.argmax())
        margin = norm.ppf(first) - norm.ppf(second)
        wrong += best != label
        lost += (4.0 - margin) if best == label and margin <= 4.0 else 0.0
    assert 0 < wrong < 40
    assert float(terms["radius"].detach()) == pytest.approx(3 * SIGMA / 2 * lost / 40, rel=1e-4)
    own = p[torch.arange(40), classes]
    torch.testing.assert_close(terms["distance"], -own.log().mean(), rtol=1e-4, atol=1e-5)


def test_macer_has_finite_gradients_where_probabilities_saturate(teacher: Linear) -> None:
    student = Linear(1e4 * torch.randn(5, 16))
    terms = macer(student, batch(), teacher=teacher, sigma=SIGMA, choices=Macer())
    sum(terms.values(), torch.zeros(())).backward()
    assert student.weight.grad is not None
    assert bool(student.weight.grad.isfinite().all())


def test_smoothmix_is_the_papers_loss_with_the_teachers_probabilities(linear: Linear, teacher: Linear) -> None:
    choices, images = SmoothMix(mix_weight=2.0, mix_steps=2, mix_step=0.5, mix_copies=2), batch(20).images
    terms = smoothmix(linear, batch(20), teacher=teacher, sigma=SIGMA, choices=choices)
    draw = Draw(0, "step")
    noise = SIGMA * draw.normal((20, 2, 1, 4, 4)).transpose(0, 1)
    share = draw.uniform((20, 1)) / 2
    answer = teacher(images).detach()
    classes = answer.argmax(1)

    def average(x: Tensor) -> Tensor:
        return torch.stack([linear(x + one).softmax(1) for one in noise]).mean(0)

    far = images.clone()
    for _ in range(2):
        far.requires_grad_(True)
        loss = -average(far)[torch.arange(20), classes].log().sum()
        (gradient,) = torch.autograd.grad(loss, far)
        step = gradient / gradient.flatten(1).norm(dim=1).view(-1, 1, 1, 1)
        far = (far.detach() + 0.5 * SIGMA * step).clamp(0, 1)
    weights = share.view(-1, 1, 1, 1)
    mixed, mean = (1 - weights) * images + weights * far, average(images)
    target = (1 - share) * mean + share / 5
    agreed = (mean.argmax(1) == classes).float()
    assert 0 < float(agreed.mean()) < 1
    kl = torch.stack([(target * (target / linear(mixed + one).softmax(1)).log()).sum(1) for one in noise])
    torch.testing.assert_close(terms["mixed"], 2 * (agreed * kl).mean(), rtol=1e-4, atol=1e-6)
    ce = torch.stack([-(answer.softmax(1) * linear(images + one).log_softmax(1)).sum(1) for one in noise])
    torch.testing.assert_close(terms["distance"], ce.mean())


def test_a_new_denoiser_changes_nothing_and_both_its_losses_are_the_papers() -> None:
    teacher, images = tiny_classifier(), torch.rand(8, 1, 28, 28)
    student = denoised("dncnn", teacher).train()
    torch.testing.assert_close(student.eval()(images), teacher.eval()(images), rtol=1e-4, atol=1e-5)
    student.train()
    step = Batch(images, None, Draw(0, "step"), 0.0)
    terms = denoising(student, step, teacher=teacher, sigma=SIGMA, choices=Denoising())
    noise = Draw(0, "step").normal((8, 1, 1, 28, 28))[:, 0]
    assert float(terms["mse"].detach()) == pytest.approx(float(noise.square().mean()), rel=1e-4)
    expected = nn.functional.cross_entropy(teacher(images + SIGMA * noise), teacher(images).argmax(1))
    torch.testing.assert_close(terms["stability"], expected, rtol=1e-4, atol=1e-5)
    sum(terms.values(), torch.zeros(())).backward()
    assert isinstance(student.network, Denoised)
    assert all(p.grad is not None for p in student.network.denoiser.parameters())
    assert all(p.grad is None for p in student.network.classifier.parameters())
    assert set(denoising(student, step, teacher=teacher, sigma=SIGMA, choices=Denoising(denoiser_loss="mse"))) == {
        "mse"
    }


RIVALS: list[Rival] = [
    Consistency(),
    Macer(radius_copies=2),
    SmoothMix(mix_steps=1),
    Denoising(),
    Denoising(denoiser_loss="stability"),
]


@pytest.mark.parametrize("rival", RIVALS, ids=str)
def test_labels_change_nothing_and_the_network_stays(rival: Rival) -> None:
    teacher, images = tiny_classifier(), load_images("fashion-mini", "train").sampled(64)
    before = model_hash(teacher)
    how: dict[str, Any] = {"sigma": SIGMA, "method": rival, "device": "cpu", "batch_size": 32}
    one, other = (hs.smooth(teacher, some, **how) for some in (images, images.without_labels()))
    assert model_hash(teacher) == before
    assert model_hash(one) == model_hash(other) != before
    if isinstance(rival, Denoising):
        assert isinstance(one, Classifier)
        kept = {f"classifier.{name}": value for name, value in teacher.network.state_dict().items()}
        state = one.network.state_dict()
        assert all(torch.equal(state[name], value) for name, value in kept.items())


def test_the_denoiser_learns_to_denoise() -> None:
    images = load_images("fashion-mini", "train").sampled(320)
    result = hs.smooth(
        tiny_classifier(),
        images,
        sigma=SIGMA,
        method=Denoising(denoiser_loss="mse"),
        device="cpu",
        batch_size=32,
        epochs=6,
    )
    assert isinstance(result, Classifier)
    assert isinstance(result.network, Denoised)
    some = load_images("fashion-mini", "test").images(torch.arange(64))
    noisy = some + SIGMA * torch.randn(some.shape)
    with torch.no_grad():
        error = (result.network.denoiser(noisy) - some).square().mean() / SIGMA**2
    print(f"squared error of the denoiser, share of the noise: {float(error):.3f}")
    assert float(error) < 0.5


def test_a_denoised_network_is_saved_and_loaded_like_any_other(tmp_path: Path) -> None:
    network = denoised("dncnn", build(NetworkSpec("small", 10, 3, (0.5, 0.4, 0.3), (0.2, 0.25, 0.3)))).eval()
    nn.init.normal_(network.network.denoiser.noise[-1].weight)  # type: ignore[union-attr, index]
    save(network, tmp_path / "model.safetensors")
    images = torch.rand(4, 3, 32, 32)
    for model in (None, "dncnn+small"):
        again = load(tmp_path, model=model)
        assert model_hash(again) == model_hash(network)
        torch.testing.assert_close(again(images), network(images))
    with pytest.raises(InputError, match="expected none for a network with a denoiser"):
        load(tmp_path, mean=(0.5,), std=(0.5,))
    with pytest.raises(InputError, match="expected weights of `model` small, got weights of dncnn"):
        load(tmp_path, model="small")


def test_code_of_a_denoiser_runs_only_if_it_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "brought_denoiser.py").write_text("from torch import nn\n\nblur = lambda: nn.AvgPool2d(3, 1, 1)\n")
    monkeypatch.syspath_prepend(tmp_path)
    classifier = tiny_classifier().eval()
    save(classifier, tmp_path / "plain.safetensors")
    name = "brought_denoiser:blur+small"
    front = load(tmp_path / "plain.safetensors", model=name)
    images = torch.rand(2, 1, 28, 28)
    torch.testing.assert_close(front(images), classifier(nn.AvgPool2d(3, 1, 1)(images)), rtol=1e-4, atol=1e-5)
    save(front, tmp_path / "front.safetensors")
    with pytest.raises(InputError, match=f"expected `model` {name.replace('+', '.')}, got none"):
        load(tmp_path / "front.safetensors")
    torch.testing.assert_close(load(tmp_path / "front.safetensors", model=name)(images), front(images))


class Oracle(nn.Module):
    """Knows the clean image, in [−1, 1], so that the noise it predicts is exact."""

    def __init__(self, clean: Tensor, kept: float) -> None:
        super().__init__()
        self.clean, self.kept = clean, kept

    def forward(self, x: Tensor, timestep: Tensor) -> Tensor:
        self.timestep = timestep
        noise: Tensor = (x - self.kept**0.5 * self.clean) / (1 - self.kept) ** 0.5
        return noise


def test_one_step_of_diffusion_with_the_exact_noise_gives_the_clean_image() -> None:
    kept = torch.linspace(0.999, 0.01, 1000)
    images = torch.rand(4, 3, 8, 8)
    step = OneStepDiffusion(nn.Identity(), kept, SIGMA)
    step.unet = Oracle(2 * images - 1, step.kept)
    torch.testing.assert_close(step(images + SIGMA * torch.randn(images.shape)), images, rtol=1e-4, atol=1e-5)
    assert math.sqrt((1 - step.kept) / step.kept) == pytest.approx(2 * SIGMA, rel=0.02)
    assert step.unet.timestep.tolist() == [step.timestep] * 4
    with pytest.raises(InputError, match="`sigma`: expected above 0, at most"):
        OneStepDiffusion(nn.Identity(), kept, 100.0)


def test_a_model_of_diffusers_fits_the_slot() -> None:
    diffusers = pytest.importorskip("diffusers", reason="diffusers is not installed; it is optional")
    unet = diffusers.UNet2DModel(
        sample_size=28,
        in_channels=1,
        out_channels=1,
        layers_per_block=1,
        block_out_channels=(8, 8),
        norm_num_groups=4,
        down_block_types=("DownBlock2D", "DownBlock2D"),
        up_block_types=("UpBlock2D", "UpBlock2D"),
    )
    denoiser = OneStepDiffusion(unet, diffusers.DDPMScheduler().alphas_cumprod, SIGMA).eval()
    network = Denoised(denoiser, tiny_classifier(), torch.zeros(1, 1, 1), torch.ones(1, 1, 1))
    images = torch.rand(2, 1, 28, 28)
    assert denoiser(images).shape == images.shape
    assert 0 <= float(denoiser(images).min()) <= float(denoiser(images).max()) <= 1
    certified = hs.certify(network, images, sigma=SIGMA, n=50, n0=10)
    assert len(certified.radii) == 2


@pytest.fixture(scope="module")
def network(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The weights of a network, beside images without labels."""
    path = tmp_path_factory.mktemp("network") / "plain.safetensors"
    save(tiny_classifier(), path)
    np.savez(path.parent / "images.npz", images=np.random.default_rng(0).random((64, 28, 28)))
    return path


@pytest.mark.parametrize("method", ["consistency", "macer", "smoothmix", "denoised"])
def test_every_method_is_a_command_whose_network_can_be_certified(method: str, network: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    data = f"npz:{network.parent}/images.npz"
    words = f"smooth --data {data} --from {network} --sigma 0.25 --method {method} --quiet"
    words += f" --batch-size 32 --radius-copies 2 --mix-steps 1 --device cpu --out {out}"
    assert run(words.split()) == 0
    info = read_json(out / "run.json")
    assert info["settings"]["choices"]["method"] == info["summary"]["method"] == method
    assert "heat" not in info["settings"]
    certify = f"certify --data {data} --from {out} --sigma 0.25 --n 50 --n0 10 --images 2 --quiet --device cpu"
    assert run([*certify.split(), "--out", str(tmp_path / "certified")]) == 0


def test_options_of_another_method_are_refused(capsys: pytest.CaptureFixture[str], network: Path) -> None:
    words = f"smooth --data fashion-mini --from {network} --sigma 0.25 --method macer --out nowhere --quiet".split()
    assert run([*words, "--penalty-weight", "2"]) == 2
    assert "--penalty-weight: expected only with --method heat, got macer" in capsys.readouterr().err
    assert run([*words, "--preset", "bootcamp"]) == 2
    assert "--preset: expected none beside --method macer" in capsys.readouterr().err
    for wrong in (
        lambda: Consistency(consistency_copies=1),
        lambda: Macer(sharpness=0),
        lambda: SmoothMix(mix_steps=0),
        lambda: Denoising(denoiser="x"),
        lambda: task(0.0, method=Macer()),
    ):
        with pytest.raises(InputError, match="expected"):
            wrong()


def test_the_built_in_denoiser_takes_any_channels() -> None:
    for channels in (1, 3):
        images = torch.rand(2, channels, 8, 9)
        assert torch.equal(DnCnn(channels)(images), images)


def test_a_large_share_to_keep_leaves_the_statistics_of_batch_norm_alone() -> None:
    assert task(0.25, keep=0.95).plan.batch_norm == "frozen"
    assert task(0.25, keep=0.95, batch_norm="train").plan.batch_norm == "train"
    assert {task(0.25, keep=keep).plan.batch_norm for keep in (0.75, 0.85, None)} == {"train"}
    assert task(0.25, keep=0.95, preset="bootcamp-strong").plan.batch_norm == "train"
