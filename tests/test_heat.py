"""Closed forms: linear models for the estimators, trigonometric functions for the heat equation."""

import itertools
import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from heatsmooth.data import ImageSet
from heatsmooth.models import Classifier, NetworkSpec, copy_of, model_hash, normalising_deviation
from heatsmooth.noise import Draw
from heatsmooth.training.batches import Batch, LoaderFeed
from heatsmooth.training.execution import Teacher
from heatsmooth.training.field import Consistency, task
from heatsmooth.training.heat import ESTIMATORS, HOTTEST, PENALISED, SURE, heat_smoothing, temperature_of
from heatsmooth.training.methods import fitted, smooth
from heatsmooth.training.settings import Heat, preset
from tests.conftest import Linear, tiny_classifier

SIGMA = 0.25
LOGITS = Heat(SIGMA, distance="squared-logits", penalty="logits", estimator="none", noisy_images="none", weight=1.0)
"""Clean images and logits all through: to be given an estimator."""


def estimates(heat: Heat, model: nn.Module, draws: int, images: int = 64) -> Tensor:
    """σ²/2·‖∇‖² as the estimator sees it, for every image of many draws."""
    x = torch.rand(images, 1, 4, 4, generator=torch.Generator().manual_seed(1))
    found = [ESTIMATORS[heat.estimator](model, x, Draw(i), heat)[1].detach() for i in range(draws)]
    return heat.sigma**2 / 2 * torch.cat(found)


@pytest.mark.parametrize(
    ("estimator", "scaling", "projections"),
    [
        ("projection", "unbiased", 10),
        ("projection", "paper", 10),
        ("projection", "paper", 3),
        ("direction", "unbiased", 1),
        ("direction", "unbiased", 3),
    ],
)
@pytest.mark.parametrize("delta", [None, 0.1])
def test_every_estimator_has_the_right_mean_on_a_linear_model(
    linear: Linear, estimator: str, scaling: str, projections: int, delta: float | None
) -> None:
    heat = replace(LOGITS, estimator=estimator, scaling=scaling, projections=projections, delta=delta)  # type: ignore[arg-type]
    found = estimates(heat, linear, draws=200)
    true = SIGMA**2 / 2 * float(linear.weight.detach().square().sum())
    if scaling == "paper":
        true *= projections / len(linear.weight)
    # Images share no draw, but on a linear model each image sees the same Jacobian: all values are independent.
    error = float(found.std()) / math.sqrt(len(found))
    print(f"{estimator} {scaling} κ={projections} δ={delta}: {found.mean():.4f} ± {error:.4f}, exact {true:.4f}")
    assert abs(float(found.mean()) - true) < 3 * error


def test_exact_is_exact_on_a_linear_model(linear: Linear) -> None:
    found = estimates(replace(LOGITS, estimator="exact"), linear, draws=1)
    true = SIGMA**2 / 2 * linear.weight.detach().square().sum()
    torch.testing.assert_close(found, true.expand_as(found), rtol=1e-5, atol=0)


@pytest.mark.parametrize("penalty", ["logits", "probabilities", "fisher"])
def test_small_differences_agree_with_the_exact_jacobian(penalty: str) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(16, 32), nn.Tanh(), nn.Linear(32, 5)).double()
    x = torch.rand(400, 1, 4, 4, dtype=torch.float64)
    exact = ESTIMATORS["exact"](model, x, Draw(0), Heat(SIGMA, penalty=penalty, estimator="exact"))[1].detach()  # type: ignore[arg-type]
    for estimator in ("projection", "direction"):
        heat = Heat(SIGMA, penalty=penalty, estimator=estimator, projections=100, delta=1e-3)  # type: ignore[arg-type]
        found = ESTIMATORS[estimator](model, x, Draw(0), heat)[1].detach()
        spread = float((found - exact).std()) / 20
        assert abs(float((found - exact).mean())) < 3 * spread + 1e-3 * float(exact.mean())


def test_fisher_metric_is_the_trace_of_the_fisher_information() -> None:
    torch.manual_seed(0)
    logits = torch.randn(4, dtype=torch.float64)
    jacobian = torch.autograd.functional.jacobian(lambda z: PENALISED["fisher"](z[None])[0], logits)
    p = logits.softmax(0)
    torch.testing.assert_close(jacobian.T @ jacobian, torch.diag(p) - p[:, None] * p)


def test_estimators_reach_the_weights_from_both_ends() -> None:
    """d/dW of the penalty on a linear model is σ²·W: nothing but the direction is detached."""
    for estimator, projections in (("projection", 4000), ("direction", 4000), ("exact", 1)):
        model = Linear(torch.tensor([[1.0, 2.0], [-1.0, 0.5]]))
        heat = replace(LOGITS, estimator=estimator, projections=projections)  # type: ignore[arg-type]
        batch = Batch(torch.rand(1, 1, 1, 2), None, Draw(0), 0.0)
        heat_smoothing(model, batch, teacher=copy_of(model), heat=heat)["penalty"].backward()
        assert model.weight.grad is not None
        torch.testing.assert_close(model.weight.grad, SIGMA**2 * model.weight.detach(), rtol=0.15, atol=0.01)


@pytest.mark.parametrize("estimator", ["projection", "direction", "pair", "exact"])
@pytest.mark.parametrize("penalty", ["logits", "probabilities", "fisher"])
def test_a_zero_gradient_gives_zero_and_no_nan(estimator: str, penalty: str) -> None:
    model = Linear(torch.zeros(5, 16))
    heat = Heat(SIGMA, penalty=penalty, estimator=estimator)  # type: ignore[arg-type]
    terms = heat_smoothing(model, Batch(torch.rand(3, 1, 4, 4), None, Draw(0), 0.0), teacher=copy_of(model), heat=heat)
    assert float(terms["penalty"].detach()) == 0
    sum(terms.values(), torch.zeros(())).backward()
    assert model.weight.grad is not None
    assert bool(model.weight.grad.isfinite().all())


def test_saturated_probabilities_give_no_nan() -> None:
    model = Linear(1e4 * torch.randn(5, 16))
    for estimator in ("projection", "direction", "pair", "exact"):
        heat = Heat(SIGMA, estimator=estimator)
        terms = heat_smoothing(
            model, Batch(torch.rand(3, 1, 4, 4), None, Draw(0), 0.0), teacher=copy_of(model), heat=heat
        )
        sum(terms.values(), torch.zeros(())).backward()
        assert model.weight.grad is not None
        assert bool(model.weight.grad.isfinite().all())


class Watching(Linear):
    """Remembers what it was shown."""

    def __init__(self, weight: Tensor) -> None:
        super().__init__(weight)
        self.seen: list[Tensor] = []

    def forward(self, x: Tensor) -> Tensor:
        self.seen.append(x.detach())
        return super().forward(x)


@pytest.mark.parametrize("noise", ["none", "fraction", "copy"])
def test_noise_is_on_the_named_images(noise: str) -> None:
    torch.manual_seed(0)
    model = Watching(torch.randn(5, 16))
    images = torch.rand(1000, 1, 4, 4)
    heat = Heat(SIGMA, noisy_images=noise, estimator="none", ascent=0.0)  # type: ignore[arg-type]
    heat_smoothing(model, Batch(images, None, Draw(0), 0.0), teacher=Linear(torch.randn(5, 16)), heat=heat)
    moved = (model.seen[0][-1000:] - images).flatten(1)
    noisy = moved.abs().sum(1) > 0
    expected = {"none": 0, "fraction": 0.5, "copy": 1}[noise]
    assert abs(float(noisy.float().mean()) - expected) < 0.06
    if noise != "none":
        assert abs(float(moved[noisy].std()) - SIGMA) < 0.01
    if noise == "copy":
        assert torch.equal(model.seen[0][:1000], images)


def test_pairs_have_the_right_mean_on_a_linear_model(linear: Linear) -> None:
    heat = Heat(SIGMA, penalty="logits", weight=1.0, ascent=0.0)
    teacher, images = copy_of(linear), torch.rand(64, 1, 4, 4)
    found = torch.stack(
        [
            heat_smoothing(linear, Batch(images, None, Draw(i), 0.0), teacher=teacher, heat=heat)["penalty"].detach()
            for i in range(300)
        ]
    )
    true = SIGMA**2 / 2 * float(linear.weight.detach().square().sum())
    assert abs(float(found.mean()) - true) < 3 * float(found.std()) / math.sqrt(len(found))


@pytest.mark.parametrize("temperature", [1.0, 3.0])
def test_the_temperature_softens_both_answers_and_keeps_the_scale_of_the_gradient(temperature: float) -> None:
    """The derivative of T²·CE(v/T, f/T) by the logits v is T·(softmax(v/T) − softmax(f/T))."""
    student, teacher = Linear(torch.randn(5, 16)), Linear(torch.randn(5, 16))
    images = torch.rand(8, 1, 4, 4)
    heat = Heat(SIGMA, temperature=temperature, estimator="none", noisy_images="none")
    heat_smoothing(student, Batch(images, None, Draw(0), 0.0), teacher=teacher, heat=heat)["distance"].backward()
    softened = [(net(images).detach() / temperature).softmax(1) for net in (student, teacher)]
    expected = temperature * (softened[0] - softened[1]).T @ images.flatten(1) / 8
    assert student.weight.grad is not None
    torch.testing.assert_close(student.weight.grad, expected, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("estimator", ["none", "pair", "direction", "projection", "exact"])
def test_a_temperature_is_the_same_as_networks_with_smaller_logits(estimator: str) -> None:
    """Every term is T² times that of both networks with their logits divided by T, whatever is penalised."""
    torch.manual_seed(3)
    student, teacher, images = Linear(torch.randn(5, 16)), Linear(torch.randn(5, 16)), torch.rand(8, 1, 4, 4)
    smaller = [Linear(network.weight.detach() / 4) for network in (student, teacher)]
    heat = Heat(SIGMA, temperature=4.0, estimator=estimator, noisy_images="copy")  # type: ignore[arg-type]
    found = heat_smoothing(student, Batch(images, None, Draw(0), 0.0), teacher=teacher, heat=heat)
    expected = heat_smoothing(
        smaller[0], Batch(images, None, Draw(0), 0.0), teacher=smaller[1], heat=replace(heat, temperature=1.0)
    )
    for term in found:
        torch.testing.assert_close(found[term], 16 * expected[term])


@pytest.mark.parametrize("classes", [2, 10, 1000])
@pytest.mark.parametrize("scale", [0.1, 3.0, 30.0, 300.0])
def test_the_chosen_temperature_is_the_smallest_with_which_a_teacher_is_not_too_sure(
    classes: int, scale: float
) -> None:
    logits = scale * torch.randn(50, classes, generator=torch.Generator().manual_seed(classes)).double()

    def confidence(temperature: float) -> float:
        return float((logits / temperature).softmax(1).amax(1).mean())

    found = temperature_of(logits)
    assert found == round(found, 1) >= 1
    assert confidence(found) <= SURE or found == HOTTEST
    assert found == 1 or confidence(found - 0.11) > SURE


def test_the_temperature_is_chosen_from_the_teacher_once() -> None:
    """A sure teacher gets one, an unsure one does not; what a person names stays, and so does that of other presets."""
    torch.manual_seed(0)
    sure, unsure = Linear(1000 * torch.randn(5, 16)), Linear(torch.randn(5, 16))
    images = ImageSet.of("images", torch.rand(300, 1, 4, 4), None)

    def chosen(model: nn.Module, **changes: Any) -> float | None:
        objective = fitted(task(SIGMA, **changes), model, images, seed=0).objective
        assert isinstance(objective, Heat)
        return objective.temperature

    assert chosen(unsure) == 1
    assert 10 < (chosen(sure) or 0) == chosen(sure)
    assert chosen(sure, temperature=2.0) == 2
    assert {chosen(sure, preset=name) for name in ("bootcamp-strong", "paper-cifar10", "paper-imagenet")} == {1}
    assert fitted(task(SIGMA, method=Consistency()), sure, images, seed=0).objective == Consistency()


def test_noisy_copies_step_uphill_by_the_named_length() -> None:
    """On a linear model the gradient of ½‖Wx − t‖² is Wᵀ(Wx − t)."""
    torch.manual_seed(0)
    model, teacher = Watching(torch.randn(5, 16)), Linear(torch.randn(5, 16))
    images = torch.rand(100, 1, 4, 4)
    heat = Heat(SIGMA, distance="squared-logits", ascent=1.5)
    heat_smoothing(model, Batch(images, None, Draw(0), 0.0), teacher=teacher, heat=heat)
    noisy, pairs = model.seen
    assert torch.equal(pairs[:100], images)
    weight = model.weight.detach()
    gradient = (noisy.flatten(1) @ weight.T - teacher(images).detach()) @ weight
    steps = (pairs[100:] - noisy).flatten(1)
    torch.testing.assert_close(steps, 1.5 * SIGMA * nn.functional.normalize(gradient), rtol=1e-4, atol=1e-5)


def test_looking_uphill_leaves_batch_norm_alone() -> None:
    student = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(16, 5)).train()
    teacher, images = copy_of(student).eval(), torch.rand(8, 1, 4, 4)
    for ascent in (0.0, 1.0):
        heat_smoothing(student, Batch(images, None, Draw(0), 0.0), teacher=teacher, heat=Heat(SIGMA, ascent=ascent))
    assert student.training
    assert student[1].training
    assert int(student[1].num_batches_tracked) == 2  # type: ignore[arg-type]


class Trigonometric(nn.Module):
    """v(x) = Σ_k a_k sin(2πkx) on the circle: Gaussian averages and heat steps act on each a_k alone."""

    frequencies: Tensor

    def __init__(self, amplitudes: Tensor) -> None:
        super().__init__()
        self.amplitudes = nn.Parameter(amplitudes.clone())
        self.register_buffer("frequencies", 2 * math.pi * torch.arange(1, len(amplitudes) + 1, dtype=torch.float64))

    def forward(self, x: Tensor) -> Tensor:
        return (torch.sin(x.flatten(1) * self.frequencies) @ self.amplitudes)[:, None]


def minimise(student: nn.Module, objective: Callable[[nn.Module], dict[str, Tensor]]) -> None:
    optimizer = torch.optim.LBFGS(
        student.parameters(), lr=1, max_iter=200, tolerance_grad=1e-12, tolerance_change=1e-14
    )

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = torch.stack(list(objective(student).values())).sum()
        loss.backward()
        return loss

    optimizer.step(closure)


def heated(start: Tensor, heat: Heat) -> Tensor:
    """The amplitudes after heat.timesteps minimisations of the objective itself, each to convergence."""
    student = Trigonometric(start)
    batch = Batch((torch.arange(64, dtype=torch.float64) / 64).view(-1, 1, 1, 1), None, Draw(0), 0.0)
    for _ in range(heat.timesteps):
        minimise(student, partial(heat_smoothing, batch=batch, teacher=copy_of(student), heat=heat))
    return student.amplitudes.detach()


@pytest.mark.parametrize(("weight", "variance_factor"), [(0.5, 1.0), (1.0, 2.0)])
def test_timesteps_approach_the_gaussian_average(weight: float, variance_factor: float) -> None:
    """Theorem 2. The heat equation's own weight tends to variance σ², the paper's vector form to 2σ²."""
    sigma, start = 0.08, torch.tensor([1.0, -0.6, 0.4, 0.3], dtype=torch.float64)
    frequencies = Trigonometric(start).frequencies
    average = start * torch.exp(-variance_factor * sigma**2 * frequencies**2 / 2)
    errors = []
    for timesteps in (1, 2, 4, 8, 16):
        heat = Heat(
            sigma,
            distance="squared-logits",
            penalty="logits",
            estimator="exact",
            noisy_images="none",
            weight=weight,
            timesteps=timesteps,
        )
        found = heated(start, heat)
        implicit = start * (1 + variance_factor * sigma**2 * frequencies**2 / (2 * timesteps)) ** -timesteps
        torch.testing.assert_close(found, implicit, rtol=1e-5, atol=1e-8)
        errors.append(float((found - average).abs().max()))
    print(f"weight {weight}, n_T = 1, 2, 4, 8, 16: largest error {', '.join(f'{e:.4f}' for e in errors)}")
    assert all(later < 0.65 * earlier for earlier, later in itertools.pairwise(errors))


def loaders() -> dict[str, list[object]]:
    generator = torch.Generator().manual_seed(0)
    images = [torch.rand(16, 1, 28, 28, generator=generator) for _ in range(4)]
    labels = [torch.randint(0, 10, (16,), generator=generator) for _ in range(4)]
    return {
        "labelled": list(zip(images, labels, strict=True)),
        "permuted": list(zip(images, [label.flip(0) for label in labels], strict=True)),
        "unlabelled": list(images),
        "dicts": [{"pixel_values": image} for image in images],
    }


@pytest.mark.parametrize("name", ["bootcamp", "paper-imagenet"])
def test_labels_change_nothing_bit_for_bit_and_the_teacher_stays(name: str) -> None:
    teacher = tiny_classifier()
    before = model_hash(teacher)
    hashes = {
        kind: model_hash(smooth(teacher, loader, sigma=SIGMA, preset=name, device="cpu", projections=1))
        for kind, loader in loaders().items()
    }
    assert model_hash(teacher) == before
    assert set(hashes.values()) != {before}
    assert len(set(hashes.values())) == 1


@pytest.mark.parametrize(("classes", "std"), [(10, 0.25), (1000, 0.226), (3, 1.0)])
def test_the_penalty_of_paper_imagenet_is_that_of_the_public_code(classes: int, std: float) -> None:
    """Σ over κ = 6 of (w·∇v)², w ~ N(0, I)/√classes, in normalised coordinates: 6/classes · std² · ‖∇v‖² on average."""
    torch.manual_seed(0)
    linear = nn.Linear(8, classes)
    network = Classifier(nn.Sequential(nn.Flatten(), linear), NetworkSpec("x:y", classes, 1, mean=(0.5,), std=(std,)))
    heat, _ = preset("paper-imagenet", SIGMA, deviation=normalising_deviation(network))
    assert (heat.projections, heat.scaling) == (6, "paper")
    batch = Batch(torch.rand(20_000, 1, 2, 4), None, Draw(0, "step", 0), 0.0)
    squared = float(linear.weight.detach().square().sum()) / std**2  # ‖∇v‖² with respect to pixels in [0, 1]
    penalty = float(heat_smoothing(network, batch, teacher=network, heat=heat)["penalty"].detach())
    assert penalty == pytest.approx(SIGMA**2 / 2 * 6 / classes * std**2 * squared, rel=0.03)


def test_timesteps_hand_the_student_over() -> None:
    """Two timesteps of h = ½ at √2·σ are two smoothings at σ, the second with the first one's result as teacher."""
    model, loader = tiny_classifier(), loaders()["unlabelled"]
    choices = {"penalty": "probabilities", "estimator": "exact", "noisy_images": "none", "device": "cpu"}
    once = smooth(smooth(model, loader, sigma=SIGMA, **choices), loader, sigma=SIGMA, **choices)  # type: ignore[arg-type]
    twice = smooth(model, loader, sigma=math.sqrt(2) * SIGMA, timesteps=2, **choices)  # type: ignore[arg-type]
    for a, b in zip(once.parameters(), twice.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-4)


def test_a_restarted_student_has_random_weights_of_its_timestep_and_seed() -> None:
    """Steps that are too small to move anything show where each timestep began."""
    model, images = nn.Sequential(nn.Flatten(), nn.Linear(16, 5)), [torch.rand(4, 1, 4, 4)]
    how = partial(smooth, model, images, sigma=SIGMA, restart=True, lr=1e-12, optimizer="sgd", device="cpu")
    one, two, again = how(timesteps=1), how(timesteps=2), how(timesteps=2)
    start, first, second = (network.get_parameter("1.weight") for network in (model, one, two))
    assert not torch.allclose(first, start, atol=1e-3)
    assert not torch.allclose(first, second, atol=1e-3)
    assert model_hash(two) == model_hash(again)


def test_weights_that_no_layer_can_draw_are_named() -> None:
    from heatsmooth import InputError

    with pytest.raises(InputError, match="`restart`: expected layers that can draw new weights, got none for weight"):
        smooth(Linear(torch.randn(5, 16)), [torch.rand(4, 1, 4, 4)], sigma=SIGMA, restart=True, device="cpu")


def test_bad_choices_are_refused() -> None:
    from heatsmooth import InputError

    good = Heat(SIGMA)
    for change in (
        {"sigma": 0.0},
        {"sigma": -1.0},
        {"delta": 0.0},
        {"projections": 0},
        {"penalty": "x"},
        {"noise_fraction": 2.0},
        {"timesteps": 0},
        {"ascent": -1.0},
        {"noisy_images": "none"},
    ):
        with pytest.raises(InputError, match="expected"):
            replace(good, **change)
    with pytest.raises(InputError, match="loader"):
        _ = LoaderFeed(iter([]), 0).steps_per_epoch


def test_the_teacher_answers_as_the_network_does_and_stays_as_it_is() -> None:
    model, images = tiny_classifier(), torch.rand(16, 1, 28, 28)
    teacher, before = Teacher(model), model_hash(model)
    with torch.no_grad():
        torch.testing.assert_close(teacher(images), model.eval()(images), rtol=1e-4, atol=1e-4)
    assert not any(weight.requires_grad for weight in teacher.parameters())
    assert model_hash(model) == before
