"""On a linear classifier of two classes the smallest adversarial perturbation is known."""

from collections.abc import Callable
from functools import partial

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from heatsmooth import InputError
from heatsmooth.attacks import Adversarial, GaussianAverage, ddn, is_wrong, pgd
from tests.conftest import Linear


def problem(
    count: int = 50, size: int = 6, classes: int = 2
) -> tuple[Linear, torch.Tensor, torch.Tensor, torch.Tensor]:
    """A linear model, images in the middle of the box, their classes, and the true distance to another class."""
    generator = torch.Generator().manual_seed(0)
    model = Linear(torch.randn(classes, size * size, generator=generator) / size)
    images = 0.5 + 0.1 * torch.randn(count, 1, size, size, generator=generator).clamp(-2, 2)
    logits = model(images).detach()
    labels = logits.argmax(1)
    gaps = logits.gather(1, labels[:, None]) - logits
    slopes = (model.weight[labels][:, None] - model.weight[None]).norm(dim=2).detach()
    distances = torch.where(slopes > 0, gaps / slopes.clamp_min(1e-12), torch.inf).min(1).values
    return model, images, labels, distances


@pytest.mark.parametrize(("classes", "loss"), [(2, "cross-entropy"), (5, "margin")])
def test_ddn_reaches_the_exact_distance(classes: int, loss: str) -> None:
    """With the margin, among many classes too."""
    model, images, labels, true = problem(classes=classes)
    found = ddn(model, images, labels, steps=100, loss=loss)
    inside = (found.images > 0).all(dim=(1, 2, 3)) & (found.images < 1).all(dim=(1, 2, 3))
    assert bool(found.success.all())
    assert int(inside.sum()) > 30
    ratio = found.distance[inside] / true[inside]
    print(f"DDN on {loss}, 100 steps: distance / true from {float(ratio.min()):.4f} to {float(ratio.max()):.4f}")
    assert float(ratio.min()) > 1 - 1e-4
    assert float(ratio.max()) < 1.02


def test_pgd_reaches_the_distance_within_a_step() -> None:
    model, images, labels, true = problem()
    step = 0.02
    found = pgd(model, images, labels, eps=3.0, steps=150, step_size=step)
    inside = (found.images > 0).all(dim=(1, 2, 3)) & (found.images < 1).all(dim=(1, 2, 3))
    assert bool(found.success.all())
    excess = (found.distance - true)[inside]
    assert float(excess.min()) > -1e-4
    assert float(excess.max()) < step


def test_failure_is_infinite_and_wrong_from_the_start_is_zero() -> None:
    model, images, labels, true = problem()
    wrong = 1 - labels
    for found in (pgd(model, images, wrong, eps=1e-3), ddn(model, images, wrong)):
        assert bool(found.success.all())
        assert float(found.distance.max()) == 0
    for found in (
        pgd(model, images, labels, eps=0.5 * float(true.min())),
        ddn(model, images, labels, eps=0.5 * float(true.min())),
    ):
        assert not bool(found.success.any())
        assert bool(found.distance.isinf().all())


def test_top_k_needs_the_label_out_of_the_first_k() -> None:
    model, images, labels, _ = problem(classes=4)
    one, two = (ddn(model, images, labels, steps=50, top_k=k) for k in (1, 2))
    assert bool(is_wrong(model(two.images[two.success]), labels[two.success], 2).all())
    both = one.success & two.success
    assert float((two.distance - one.distance)[both].min()) > -0.01


@settings(max_examples=25, deadline=None, derandomize=True)
@given(st.integers(0, 2**31), st.floats(0.05, 3), st.integers(1, 12), st.booleans())
def test_what_comes_back_is_in_the_box_the_ball_and_true(seed: int, eps: float, steps: int, early: bool) -> None:
    generator = torch.Generator().manual_seed(seed)
    torch.manual_seed(seed)
    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(16, 12), torch.nn.ReLU(), torch.nn.Linear(12, 3))
    images = torch.rand(8, 1, 4, 4, generator=generator).round(decimals=1)
    labels = torch.randint(0, 3, (8,), generator=generator)
    for found in (
        pgd(model, images, labels, eps=eps, steps=steps, early_stop=early),
        ddn(model, images, labels, steps=steps, eps=eps),
    ):
        assert float(found.images.min()) >= 0
        assert float(found.images.max()) <= 1
        norms = (found.images - images).flatten(1).norm(dim=1)
        assert float(norms.max()) <= eps * (1 + 1e-5)
        wrong = model(found.images).argmax(1) != labels
        assert torch.equal(found.success, wrong)
        torch.testing.assert_close(found.distance[wrong], norms[wrong])


def test_a_flat_network_is_not_attacked_and_gives_no_nan() -> None:
    model = Linear(torch.zeros(3, 16), torch.tensor([1.0, 0.0, 0.0]))
    images, labels = torch.rand(4, 1, 4, 4), torch.zeros(4, dtype=torch.long)
    for found in (pgd(model, images, labels, eps=1.0), ddn(model, images, labels)):
        assert not bool(found.success.any())
        assert bool(found.images.isfinite().all())


@pytest.mark.parametrize("attack", [partial(pgd, eps=1.0), ddn])
def test_pixels_that_are_not_finite_are_refused(attack: Callable[..., Adversarial]) -> None:
    images = torch.rand(2, 1, 4, 4)
    images[1, 0, 0, 0] = torch.nan
    with pytest.raises(InputError, match="expected finite pixels"):
        attack(Linear(torch.randn(3, 16)), images, torch.zeros(2, dtype=torch.int64))


def test_the_network_is_left_as_it_was() -> None:
    model, images, labels, _ = problem(4)
    pgd(model, images, labels, eps=1.0)
    ddn(model, images, labels)
    assert all(p.grad is None for p in model.parameters())


def test_the_gaussian_average_is_the_monte_carlo_mean_and_stays_fixed() -> None:
    model, images, labels, _ = problem(5)
    average = GaussianAverage(model, sigma=0.5, samples=64)
    expected = torch.stack([model(images + noise).softmax(1) for noise in (average(images), average.noise)[1]]).mean(0)  # type: ignore[union-attr]
    torch.testing.assert_close(average(images).exp(), expected)
    assert torch.equal(average(images), average(images))
    assert torch.equal(average(images)[2:3], average(images[2:3]))
    assert bool(ddn(average, images, labels, steps=60).success.any())


@pytest.mark.parametrize("loss", ["cross-entropy", "per-sample", "margin"])
def test_the_average_of_a_linear_model_is_attacked_at_its_closed_form(loss: str) -> None:
    """Averaging a linear model of two classes over noise leaves its boundary, and so its distances, where they are."""
    model, images, labels, true = problem(20)
    average = GaussianAverage(model, sigma=0.25, samples=100)
    found = ddn(average, images, labels, steps=100, loss=loss)
    inside = (found.images > 0).all(dim=(1, 2, 3)) & (found.images < 1).all(dim=(1, 2, 3))
    ratio = found.distance[inside] / true[inside]
    assert int(inside.sum()) > 10
    assert float(ratio.min()) > 1 - 1e-3
    assert float(ratio.max()) < 1.02


def test_the_paper_gradient_is_the_sum_over_the_draws() -> None:
    from heatsmooth.attacks import LOSSES

    model, images, labels, _ = problem(3)
    average = GaussianAverage(model, sigma=0.5, samples=10)
    x = images.clone().requires_grad_(True)
    (found,) = torch.autograd.grad(LOSSES["per-sample"](average, x, labels, 1)[1], x)
    assert average.noise is not None
    each = [torch.nn.functional.cross_entropy(model(x + noise), labels, reduction="sum") for noise in average.noise]
    (expected,) = torch.autograd.grad(torch.stack(each).sum(), x)
    torch.testing.assert_close(found, expected)


def test_the_average_keeps_its_memory_bounded() -> None:
    """No more than AT_ONCE noisy images are evaluated together, and chunks give the same gradient as all at once."""
    from heatsmooth import attacks

    rows: list[int] = []

    class Watching(Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            rows.append(len(x))
            return super().forward(x)

    model, images, labels, _ = problem(30)
    watching = Watching(model.weight.detach(), model.bias.detach())
    average = GaussianAverage(watching, sigma=0.5, samples=100)
    x = images.clone().requires_grad_(True)
    (chunked,) = torch.autograd.grad(torch.nn.functional.cross_entropy(average(x), labels), x)
    assert max(rows) <= attacks.AT_ONCE
    assert sum(rows) == 2 * 30 * 100
    assert average.noise is not None
    whole = torch.stack([model(x + noise).softmax(1) for noise in average.noise]).mean(0).log()
    (expected,) = torch.autograd.grad(torch.nn.functional.nll_loss(whole, labels), x)
    torch.testing.assert_close(chunked, expected, rtol=1e-4, atol=1e-6)


def test_each_image_may_have_a_radius_of_its_own() -> None:
    model, images, labels, true = problem(10)
    found = pgd(model, images, labels, eps=true * torch.tensor([0.9, 1.2]).repeat(5), steps=40)
    assert found.success.tolist() == [False, True] * 5


def test_bad_settings_are_refused() -> None:
    model, images, labels, _ = problem(2)
    for bad in ({"eps": 0.0}, {"eps": 1.0, "steps": 0}):
        with pytest.raises(InputError, match="expected"):
            pgd(model, images, labels, **bad)  # type: ignore[arg-type]
    for sigma, samples in ((0.0, 3), (0.1, 0)):
        with pytest.raises(InputError, match="expected"):
            GaussianAverage(model, sigma=sigma, samples=samples)
