import pytest
import torch
from torch import Tensor

from heatsmooth import InputError
from heatsmooth.data import load_images
from heatsmooth.evaluate import accuracy
from heatsmooth.noise import Draw
from heatsmooth.training.baselines import METHODS
from heatsmooth.training.batches import Batch
from heatsmooth.training.methods import train
from heatsmooth.training.settings import Baseline, Plan
from tests.conftest import Linear, tiny_classifier

SIGMA = 0.25


class Watching(Linear):
    """Remembers what it was given and in which mode."""

    def __init__(self) -> None:
        super().__init__(torch.randn(3, 16, generator=torch.Generator().manual_seed(0)))
        self.seen: list[tuple[bool, Tensor]] = []

    def forward(self, x: Tensor) -> Tensor:
        self.seen.append((self.training, x.detach()))
        return super().forward(x)


def batch(epoch: float = 100.0) -> Batch:
    generator = torch.Generator().manual_seed(1)
    return Batch(
        torch.rand(20, 1, 4, 4, generator=generator), torch.randint(0, 3, (20,), generator=generator), Draw(0), epoch
    )


def test_gaussian_adds_noise_of_the_right_size() -> None:
    model, step = Watching(), batch()
    METHODS["gaussian"](model, step, Baseline("gaussian", sigma=SIGMA))
    assert abs(float((model.seen[0][1] - step.images).std()) - SIGMA) < 0.03


@pytest.mark.parametrize("attack", ["pgd", "ddn"])
def test_adversarial_images_lie_in_the_ball_and_raise_the_loss(attack: str) -> None:
    model, step = Watching(), batch()
    terms = METHODS["adversarial"](model, step, Baseline("adversarial", eps=0.3, attack=attack))  # type: ignore[arg-type]
    training, x = model.seen[-1]
    assert training
    assert not any(mode for mode, _ in model.seen[:-1])
    assert float((x - step.images).flatten(1).norm(dim=1).max()) <= 0.3 + 1e-5
    assert float(terms["loss"].detach()) > float(METHODS["clean"](model, step, Baseline())["loss"].detach())


@pytest.mark.parametrize("attack", ["pgd", "ddn"])
def test_smoothadv_trains_on_the_noise_it_attacked_with(attack: str) -> None:
    model, step, draws = Watching(), batch(), 3
    METHODS["smoothadv"](model, step, Baseline("smoothadv", sigma=SIGMA, eps=0.3, noise_draws=draws, attack=attack))  # type: ignore[arg-type]
    first, last = model.seen[0][1].unflatten(0, (draws, 20)), model.seen[-1][1].unflatten(0, (draws, 20))
    assert model.seen[-1][0]
    assert not model.seen[0][0]
    noise = first - step.images
    shift = (last - noise) - step.images
    torch.testing.assert_close(shift[0], shift[2], rtol=0, atol=1e-5)
    assert abs(float(noise.std()) - SIGMA) < 0.03
    assert 0.01 < float(shift[0].flatten(1).norm(dim=1).max()) <= 0.3 + 1e-4


def test_the_radius_warms_up() -> None:
    choices = Baseline("adversarial", eps=0.5, warmup_epochs=10)
    assert choices.radius(5) == 0.25
    assert choices.radius(20) == 0.5
    assert 0 < choices.radius(0) < 0.01


@pytest.mark.parametrize("method", list(METHODS))
def test_every_method_learns(method: str) -> None:
    images = load_images("fashion-mini", "train").sampled(1000)
    model = tiny_classifier()
    choices = Baseline(method, sigma=SIGMA if method in ("gaussian", "smoothadv") else 0.0, steps=1, warmup_epochs=2)  # type: ignore[arg-type]
    trained = train(model, images, choices=choices, plan=Plan(epochs=2, batch_size=50, lr=0.05), device="cpu")
    test = load_images("fashion-mini", "test").sampled(300)
    assert accuracy(trained, test) > 0.4
    assert accuracy(model, test) < 0.3


def test_unlabelled_images_and_bad_choices_are_refused() -> None:
    images = load_images("fashion-mini", "train").without_labels()
    with pytest.raises(InputError, match="labels"):
        train(tiny_classifier(), images, choices=Baseline(), plan=Plan())
    for bad in (
        {"method": "x"},
        {"method": "gaussian"},
        {"eps": 0.0},
        {"steps": 0},
        {"attack": "x"},
        {"noise_draws": 0},
    ):
        with pytest.raises(InputError, match="expected"):
            Baseline(**bad)
