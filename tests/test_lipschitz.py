"""Networks that are Lipschitz by construction: the bound holds, and a bug in any layer is caught."""

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional as F

import heatsmooth as hs
from heatsmooth.models import Classifier, DeterministicRadius, NetworkSpec, build, is_lipschitz
from heatsmooth.models import lipschitz as layers
from heatsmooth.models.lipschitz import SLL, LastLayer, LipschitzNetwork, MoreChannels, OnePixel, Projection
from heatsmooth.models.lipschitz_bounds import feature_bound, layer_bound
from tests.conftest import tiny_classifier

FEW = settings(max_examples=25, deadline=None)
SEEDS = st.integers(0, 10**6)
SCALES = st.sampled_from([1e-6, 1e-2, 1.0, 1e3])
ALMOST_ONE = 1 + 1e-9


def randomised(module: nn.Module, seed: int, scale: float) -> Any:
    """The module with random parameters of this scale, in evaluation mode; q within a factor of 50."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            size = 1.0 if name.endswith("log_q") else scale
            parameter.copy_(size * torch.randn(parameter.shape, generator=generator))
    return module.train().eval()


def jacobian_norm(function: Callable[[Tensor], Tensor], x: Tensor) -> float:
    """The spectral norm of the Jacobian at one input, computed in double precision."""
    jacobian = torch.autograd.functional.jacobian(lambda one: function(one[None])[0].flatten(), x.double())
    assert isinstance(jacobian, Tensor)
    return float(torch.linalg.matrix_norm(jacobian.reshape(jacobian.shape[0], -1), 2))


LAYERS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "convolution": (lambda: SLL(3), (3, 5, 5)),
    "dense": (lambda: SLL(8, 1), (8, 1, 1)),
    "projection": (lambda: Projection(12, 5), (12, 2, 2)),
    "more channels": (lambda: MoreChannels(3), (2, 3, 3)),
    "one pixel": (OnePixel, (2, 3, 3)),
    "unshuffle": (lambda: nn.PixelUnshuffle(2), (2, 4, 4)),
}


@pytest.mark.parametrize("name", LAYERS)
@given(seed=SEEDS, scale=SCALES)
@FEW
def test_every_layer_is_1_lipschitz_for_every_value_of_its_parameters(name: str, seed: int, scale: float) -> None:
    make, shape = LAYERS[name]
    layer = randomised(make(), seed, scale)
    x = torch.randn(shape, generator=torch.Generator().manual_seed(seed)) * 10
    assert jacobian_norm(layer, x) <= ALMOST_ONE
    assert layer_bound(layer, shape[1] * shape[2]).constant == 1
    layer.train()
    assert jacobian_norm(layer, x) <= 1 + 1e-5  # T in float32


@pytest.mark.parametrize("name", ["convolution", "dense"])
@given(seed=SEEDS, scale=SCALES)
@FEW
def test_weights_changed_after_the_scale_was_stored_enlarge_the_constant(name: str, seed: int, scale: float) -> None:
    make, shape = LAYERS[name]
    layer = randomised(make(), seed, scale)
    with torch.no_grad():
        layer.weight *= 3
    bound = layer_bound(layer, shape[1] * shape[2]).constant
    x = torch.randn(shape, generator=torch.Generator().manual_seed(seed)) * 10
    assert bound > 1
    assert jacobian_norm(layer, x) <= bound


@pytest.mark.parametrize("name", ["convolution", "dense"])
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_negative_scales_enlarge_the_constant(name: str, seed: int) -> None:
    make, shape = LAYERS[name]
    layer = randomised(make(), seed, 1.0)
    layer.scale[::2] *= -1
    x = torch.randn(shape, generator=torch.Generator().manual_seed(seed)) * 10
    bound = layer_bound(layer, shape[1] * shape[2])
    assert jacobian_norm(layer, x) <= bound.constant
    assert bound.error.slope > 0


def test_what_the_proof_does_not_cover_is_refused() -> None:
    even, steep = SLL(3, 2).eval(), randomised(SLL(3), 0, 1.0)
    with torch.no_grad():
        steep.log_q[0] = -400
    for layer in (even, steep):
        with pytest.raises(hs.InputError, match="expected odd kernels and log q"):
            layer_bound(layer, 25)
    model, images = small(), torch.rand(2, 3, 4, 4)
    for images_as, logits_as in ((torch.float16, torch.float32), (torch.float32, torch.bfloat16)):
        with pytest.raises(hs.InputError, match="expected images and logits in float32"):
            DeterministicRadius(model)(images.to(images_as), torch.rand(2, 4).to(logits_as))


def small(seed: int = 0, scale: float = 0.3, std: tuple[float, ...] = (0.5,), depth: int = 2) -> Any:
    """A network of 4×4 images into 4 classes."""
    layout = layers.Layout(4, (depth, depth, depth), 12)
    network = LipschitzNetwork(layout, classes=4, channels=3, size=4)
    return randomised(Classifier(network, NetworkSpec("example", 4, 3, (0.4,) * len(std), std)), seed, scale)


@given(seed=SEEDS, scale=st.sampled_from([0.1, 1.0, 30.0]), size=st.sampled_from([1.0, 1e3]), depth=st.integers(1, 12))
@FEW
def test_no_pair_of_images_violates_the_radius(seed: int, scale: float, size: float, depth: int) -> None:
    """Deep stacks, images up to 1e3, float32 images and logits: inside the radius, the class stays."""
    model = small(seed, scale, (0.2, 0.5, 0.3), depth)
    generator = torch.Generator().manual_seed(seed)
    images = size * torch.rand(4, 3, 4, 4, generator=generator)
    with torch.inference_mode():
        logits = model(images)
        radii = DeterministicRadius(model)(images, logits)
    for image, radius, logit in zip(images, radii.tolist(), logits, strict=True):
        x = image[None].clone().requires_grad_(True)
        first, second = logit.topk(2).indices.tolist()
        out = model(x)
        (gradient,) = torch.autograd.grad(out[0, second] - out[0, first], x)
        random = torch.randn(16, 3, 4, 4, generator=generator)
        steps = torch.cat([gradient, random])
        steps = steps / steps.flatten(1).norm(dim=1).clamp_min(1e-30)[:, None, None, None]
        moved = (image.double() + radius * steps.double()).float()
        inside = (moved.double() - image.double()).flatten(1).norm(dim=1) <= radius
        with torch.inference_mode():
            assert (model(moved).argmax(1) == first)[inside].all()


@given(seed=SEEDS, size=st.sampled_from([1.0, 1e3]))
@FEW
def test_the_error_bound_covers_what_rounding_does(seed: int, size: float) -> None:
    """A float32 pass differs from the double one by less than the bound for the roundoff of float32 says."""
    network = small(seed).network
    assert isinstance(network, LipschitzNetwork)
    x = size * torch.randn(8, 3, 4, 4, generator=torch.Generator().manual_seed(seed))
    bound = feature_bound(network, 2.0**-24)
    with torch.inference_mode():
        norms = x.double().flatten(1).norm(dim=1)
        error = (network.layers(x) - network.layers(x.double())).flatten(1).norm(dim=1)
        features = network.layers(x.double()).flatten(1).norm(dim=1)
    assert (error <= bound.error.slope * norms + bound.error.offset).all()
    assert (features <= bound.norm.slope * norms + bound.norm.offset).all()


def test_the_radius_of_a_linear_network_is_the_distance_to_its_boundary() -> None:
    model = small(std=(0.25, 0.5, 0.5), depth=0)
    model.network.layers = nn.Sequential(OnePixel()).eval()
    model.network.last = randomised(LastLayer(48, 4), 0, 1.0)
    images = torch.rand(20, 3, 4, 4)
    with torch.inference_mode():
        logits = model(images).double()
        radii = DeterministicRadius(model)(images, logits)
    rows = model.network.last.rows(torch.float64).detach()
    for logit, radius in zip(logits, radii.tolist(), strict=True):
        first = int(logit.argmax())
        exact = min(
            float(logit[first] - logit[j]) / float((rows[first] - rows[j]).norm()) for j in range(4) if j != first
        )
        assert 0.25 * exact * (1 - 1e-4) - 1e-4 <= radius < 0.25 * exact  # 0.25: the smallest deviation


def straight(seed: int = 0) -> Any:
    """A linear network with different deviations per channel: its radius is nearly the distance to the boundary."""
    model = small(std=(0.25, 0.5, 0.5), depth=0)
    model.network.layers = nn.Sequential(OnePixel()).eval()
    model.network.last = randomised(LastLayer(48, 4), seed, 1.0)
    return model


def lost(model: Any, images: Tensor, radii: Tensor) -> int:
    """How many images change their class within their radius, at the nearest float32 points along the gradients."""
    changed = 0
    for image, radius in zip(images, radii.tolist(), strict=True):
        x = image[None].clone().requires_grad_(True)
        out = model(x)[0]
        own = int(out.argmax())
        for other in set(range(4)) - {own}:
            (gradient,) = torch.autograd.grad(out[other] - out[own], x, retain_graph=True)
            step = gradient.double() / gradient.double().norm()
            for share in (1.0, 1 - 1e-6, 1 - 1e-4):
                moved = (image.double() + share * radius * step).float()
                inside = float((moved.double() - image.double()).norm()) <= radius
                changed += inside and int(model(moved).argmax()) != own
    return changed


@given(seed=SEEDS, size=st.sampled_from([1.0, 1e3]))
@FEW
def test_a_tight_radius_holds_in_float32(seed: int, size: float) -> None:
    """The radius is nearly the distance to the boundary, so that an error of a few units in the last place shows."""
    model = straight(seed)
    model.network.last.weight.data[:, 16:] = 0.0  # the channel whose deviation is the smallest decides
    model.network.last.train().eval()
    images = size * torch.rand(3, 3, 4, 4, generator=torch.Generator().manual_seed(seed))
    radii = DeterministicRadius(model)(images, model(images))
    assert lost(model, images, radii) == 0
    assert lost(model, images, radii * 1.001 + 1e-4 * size) > 0


@pytest.mark.parametrize(
    ("number", "factor"),
    [("rate", 4.0), ("inverse_distances", math.sqrt(2)), ("inverse_distances", 2.0)],
    ids=["no deviation", "length of a row instead of a distance", "half of the margin forgotten"],
)
def test_a_planted_bug_in_the_radius_is_caught(number: str, factor: float) -> None:
    model = straight()
    model.std.fill_(0.25)  # in every channel, so that the radius is as large as it can be
    images = torch.rand(8, 3, 4, 4, generator=torch.Generator().manual_seed(1))
    proven = DeterministicRadius(model)
    assert lost(model, images, proven(images, model(images))) == 0
    planted = proven.get_buffer(number)
    planted *= factor
    assert lost(model, images, proven(images, model(images))) > 0


class RepeatedChannels(MoreChannels):
    """The first channels again instead of zeros."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([x, x[:, : self.more]], 1)


class SummedPixels(nn.PixelUnshuffle):
    """Neighbouring pixels are added, not kept side by side."""

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002  # as the base class names it
        return 4 * F.avg_pool2d(input, 2)


class RepeatedPixel(OnePixel):
    """All features twice."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([super().forward(x)] * 2, 1)


class WrongTranspose(SLL):
    """The kernel is not mirrored on the way back."""

    def forward(self, x: Tensor) -> Tensor:
        weight = self.weight.to(x.dtype)
        hidden = (self.present_scale(x) * F.conv2d(x, weight, padding=1)).relu()
        return x - F.conv2d(hidden, weight.transpose(0, 1), padding=1)


@pytest.mark.parametrize(
    ("wrong", "shape"),
    [
        (lambda: RepeatedChannels(2), (2, 3, 3)),
        (lambda: SummedPixels(2), (2, 4, 4)),
        (RepeatedPixel, (2, 3, 3)),
        (lambda: WrongTranspose(3), (3, 5, 5)),
    ],
    ids=["more channels", "unshuffle", "one pixel", "transpose"],
)
def test_a_planted_bug_in_a_layer_is_caught_by_the_jacobian(
    wrong: Callable[[], nn.Module], shape: tuple[int, ...]
) -> None:
    layer = randomised(wrong(), 0, 1.0)
    assert max(jacobian_norm(layer, 10 * torch.randn(shape)) for _ in range(3)) > 1.01


def test_ties_and_logits_that_are_not_finite_have_no_radius() -> None:
    model = small()
    images = torch.rand(3, 3, 4, 4)
    logits = torch.tensor([[1.0, 1.0, 0.0, 0.0], [math.nan, 1.0, 0.0, 0.0], [1.0, math.nextafter(1, 0), 0.0, 0.0]])
    assert DeterministicRadius(model)(images, logits).tolist() == [0, 0, 0]


class MissingFactor(SLL):
    """The scale 4 / T instead of 2 / T."""

    def scale_of(self, t: Tensor) -> Tensor:
        return 4 / t


class ReplicatedPadding(SLL):
    """Pixels repeated at the border instead of zeros."""

    def forward(self, x: Tensor) -> Tensor:
        weight, padded = self.weight.to(x.dtype), F.pad(x, (1, 1, 1, 1), mode="replicate")
        hidden = (self.present_scale(x) * F.conv2d(padded, weight)).relu()
        full = F.conv_transpose2d(hidden, weight)
        pulled_back: Any = torch.func.vjp(lambda one: F.pad(one, (1, 1, 1, 1), mode="replicate"), x)[1]
        result: Tensor = x - pulled_back(full)[0]
        return result


class ReshapedKernel(SLL):
    """T as the squared spectral norm of the reshaped kernel, by a power iteration of a few steps."""

    def scale_of(self, t: Tensor) -> Tensor:
        flat = self.weight.detach().double().flatten(1)
        v = torch.ones(flat.shape[1], dtype=torch.float64)
        for _ in range(3):
            v = flat.T @ (flat @ v)
            v = v / (v.norm() + 1e-3)
        return 2 / (flat @ v).square().sum().clamp_min(1e-12).expand_as(t)


class NotOrthonormal(Projection):
    """Rows of length 1 that are not orthogonal."""

    def orthonormal(self, weight: Tensor) -> Tensor:
        return F.normalize(weight, dim=1)


@pytest.mark.parametrize("wrong", [MissingFactor, ReshapedKernel])
def test_a_planted_bug_in_a_scale_enlarges_the_proven_constant(wrong: type[SLL]) -> None:
    layer = randomised(wrong(3), 0, 1.0)
    with torch.no_grad():
        layer.weight.abs_()  # no cancellation: the bound is nearly reached
    layer.train().eval()
    largest = max(jacobian_norm(layer, 100 * torch.ones(3, 5, 5)), jacobian_norm(layer, torch.randn(3, 5, 5)))
    assert 1.01 < largest <= layer_bound(layer, 25).constant


def test_a_planted_bug_in_a_projection_enlarges_the_proven_constant() -> None:
    layer = randomised(NotOrthonormal(12, 5), 0, 0.1)
    assert 1.01 < jacobian_norm(layer, torch.randn(12, 2, 2)) <= layer_bound(layer, 4).constant


def test_wrong_padding_is_caught_by_the_jacobian() -> None:
    layer = randomised(ReplicatedPadding(1), 0, 1.0)
    with torch.no_grad():
        layer.weight.abs_()
    layer.train().eval()
    assert jacobian_norm(layer, 10 * torch.ones(1, 3, 3)) > 1.01
    right = randomised(SLL(1), 0, 1.0)
    right.load_state_dict(layer.state_dict())
    assert jacobian_norm(right, 10 * torch.ones(1, 3, 3)) <= ALMOST_ONE


def test_a_kind_of_layer_that_is_not_known_is_refused() -> None:
    model = small()
    model.network.layers.append(nn.Conv2d(12, 12, 1).eval())
    with pytest.raises(hs.InputError, match="Lipschitz by construction, got Conv2d"):
        DeterministicRadius(model)


@pytest.mark.parametrize(("channels", "size"), [(1, 28), (3, 32), (3, 64), (1, 224), (3, (32, 48))])
def test_students_take_the_usual_images(channels: int, size: int | tuple[int, int]) -> None:
    spec = NetworkSpec("lipschitz-tiny", 7, channels, (0.5,), (1.0,), size)
    model = build(spec)
    sides = (size, size) if isinstance(size, int) else size
    images = torch.rand(2, channels, *sides)
    trained = model(images)
    logits = model.eval()(images)
    assert logits.shape == (2, 7)
    assert logits.dtype == torch.float32
    torch.testing.assert_close(logits, trained, rtol=0, atol=2e-3)
    assert DeterministicRadius(model).constant < ALMOST_ONE * (1 + 1e-8)


def test_other_sizes_and_other_images_are_refused_in_one_line() -> None:
    with pytest.raises(hs.InputError, match="multiples of 4, got 30×30; name `image_size`, as 32"):
        build(NetworkSpec("lipschitz-tiny", 10, 3, size=30))
    model = build(NetworkSpec("lipschitz-tiny", 10, 3, size=32)).eval()
    with pytest.raises(hs.InputError, match="expected images of 3×32×32, got 3×28×28; resize"):
        hs.certify(model, torch.rand(1, 3, 28, 28))


def test_a_network_that_is_not_lipschitz_needs_a_noise_level() -> None:
    assert not is_lipschitz(tiny_classifier())
    with pytest.raises(hs.InputError, match=r"`sigma`: expected the noise level, got none; .*heatsmooth distill"):
        hs.certify(tiny_classifier().eval(), torch.rand(1, 1, 28, 28))
    with pytest.raises(hs.InputError, match="`sigma`: expected the noise level beside n"):
        hs.certify(small(), torch.rand(1, 3, 4, 4), n=100)  # type: ignore[call-overload]
    with pytest.raises(hs.InputError, match="evaluation mode"):
        hs.certify(small().train(), torch.rand(1, 3, 4, 4))


@pytest.mark.parametrize("attack", [hs.pgd, hs.ddn])
def test_attacks_break_nothing_inside_the_radius(attack: Any) -> None:
    model = small(3, 1.0)
    images = torch.rand(32, 3, 4, 4)
    proven = hs.certify(model, images)
    assert proven.subject == "network"
    assert str(proven.basis) == "deterministic"
    assert (proven.radii > 0).mean() > 0.9
    found = attack(model, images, torch.from_numpy(proven.classes), steps=30, eps=2.0)
    distances = (found.images.double() - images.double()).flatten(1).norm(dim=1).numpy()
    changed = model(found.images).argmax(1).numpy() != proven.classes
    assert changed.any()
    assert (distances[changed] > proven.radii[changed]).all()


def test_a_student_is_saved_and_loaded_with_its_radius(tmp_path: Any) -> None:
    spec = NetworkSpec("lipschitz-tiny", 10, 1, (0.5,), (1.0,), 28)
    torch.manual_seed(1)
    model, images = build(spec).eval(), torch.rand(5, 1, 28, 28)
    hs.save(model, tmp_path / "student.safetensors")
    again = hs.load(tmp_path / "student.safetensors")
    assert (hs.certify(again, images).radii == hs.certify(model, images).radii).all()
    assert replace(again.spec, size=28) == spec


def test_numbers_that_overflow_float32_claim_nothing() -> None:
    """Where a logit or a pixel of some image within the radius could be infinite, its class would be lost."""
    model, images = small(), torch.full((2, 3, 4, 4), 0.9)
    with torch.no_grad():
        radii = DeterministicRadius(model)(images, model(images))
        model.network.last.bias[0] = 3.39e38
        model.network.last.gain.fill_(1e37)
        model.network.last.train().eval()
        assert (radii > 0).all()
        assert (DeterministicRadius(model)(images, model(images)) == 0).all()
    with pytest.raises(hs.InputError, match="normalisation has ordinary numbers"):
        DeterministicRadius(small(std=(2.9e-39,)))


def test_the_radius_is_of_this_network_and_its_own_images_alone() -> None:
    model = small()
    with pytest.raises(hs.InputError, match=r"expected images of 3×4×4, got 1×4×4"):
        DeterministicRadius(model)(torch.zeros(1, 1, 4, 4), torch.zeros(1, 4))

    class Other(SLL):
        """May compute anything."""

    changed = small()
    changed.network.layers.append(Other(12, 1).eval())
    with pytest.raises(hs.InputError, match="Lipschitz by construction, got Other"):
        DeterministicRadius(changed)
    model.network.layers[1].register_forward_pre_hook(lambda module, inputs: None)
    with pytest.raises(hs.InputError, match="without hooks"):
        DeterministicRadius(model)
