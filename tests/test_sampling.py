"""The same counts however they are computed."""

import numpy as np
import pytest
import torch
from torch import Tensor

from heatsmooth import InputError
from heatsmooth.certification.pace import TURNS, Pace
from heatsmooth.certification.sampling import CHUNK, CLEAN, Ask, Job, Procedure, Sampler, Tally, tallied
from heatsmooth.models import for_inference, inference
from tests.conftest import Linear, tiny_classifier


def drawing(*asks: Ask) -> Procedure[list[Tally]]:
    tallies = []
    for ask in asks:
        tally = yield ask
        tallies += [tally]
    return tallies


def images(count: int, size: int = 28) -> Tensor:
    return torch.rand(count, 1, size, size, generator=torch.Generator().manual_seed(5))


def network() -> torch.nn.Module:
    """Random weights, with batch norm statistics and a spread of classes."""
    model = tiny_classifier()
    model(images(64))
    with torch.no_grad():
        noisy = images(64) + 0.5 * torch.randn(64, 1, 28, 28, generator=torch.Generator().manual_seed(2))
        model.eval().network.get_parameter("fc.bias").sub_(model(noisy).mean(0))
    return model


def counted(
    batch_size: int | None, which: list[int], *, n: int = 130, seed: int = 0, sigma: float = 0.5
) -> dict[int, Tally]:
    sampler = Sampler(network(), sigma=sigma, classes=10, seed=seed, batch_size=batch_size)
    pictures = images(6)
    jobs = (Job(i, pictures[i], drawing(Ask(CLEAN, 1), Ask("selection", 30), Ask("estimation", n))) for i in which)
    return {job.index: tallies[2] for job, tallies in sampler.run(jobs)}


@pytest.mark.parametrize("batch_size", [7, 256, 1000])
@pytest.mark.parametrize("which", [[0, 1, 2, 3, 4, 5], [5, 3, 1], [4]])
def test_counts_do_not_depend_on_the_batch_or_on_other_images(batch_size: int, which: list[int]) -> None:
    expected, found = counted(100, list(range(6))), counted(batch_size, which)
    assert found.keys() == set(which)
    for index, tally in found.items():
        assert tally.counts.tolist() == expected[index].counts.tolist()
        assert tally.sums.tolist() == expected[index].sums.tolist()
    assert sum(tally.counts.max() < 130 for tally in expected.values()) >= 3


@pytest.mark.parametrize("images_of_a_pass", [0.5, 3, 13])
def test_counts_do_not_depend_on_how_many_images_pass_at_once(
    images_of_a_pass: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = counted(100, list(range(6)))
    monkeypatch.setattr(inference, "CPU_PASS", int(images_of_a_pass * 784))
    for index, tally in counted(100, list(range(6))).items():
        assert tally.counts.tolist() == expected[index].counts.tolist()
        assert tally.sums == pytest.approx(expected[index].sums, abs=1e-4)


def test_more_draws_continue_the_same_stream() -> None:
    """130 draws at once, or 40 and 90 of them, or 50, 50 and 30, are the same draws."""
    for asks in ([130], [40, 90], [50, 50, 30], [1, 129]):
        sampler = Sampler(network(), sigma=0.5, classes=10)
        procedure = drawing(*(Ask("estimation", count) for count in asks))
        ((_, tallies),) = sampler.run([Job(2, images(6)[2], procedure)])
        assert tallies[-1].counts.tolist() == counted(100, [2])[2].counts.tolist()


def test_seeds_streams_images_and_chunks_have_noise_of_their_own() -> None:
    assert counted(100, [0])[0].sums.tolist() != counted(100, [0], seed=1)[0].sums.tolist()
    seen: list[Tensor] = []

    class Watching(Linear):
        def forward(self, x: Tensor) -> Tensor:
            seen.append(x.clone())
            return super().forward(x)

    model = Watching(torch.eye(3, 16)).eval()
    sampler = Sampler(model, sigma=0.5, classes=3, batch_size=1000)
    black = torch.zeros(1, 4, 4)
    jobs = [Job(i, black, drawing(Ask("selection", 100), Ask("estimation", 100))) for i in range(2)]
    list(sampler.run(jobs))
    noise = torch.cat(seen).flatten(1)
    assert noise.shape == (400, 16)
    assert len(noise.unique(dim=0)) == 400
    assert abs(float(noise.std()) - 0.5) < 0.02
    correlation = np.corrcoef(noise.view(8, -1).numpy()) - np.eye(8)
    assert np.abs(correlation).max() < 4.5 / np.sqrt(CHUNK * 16)


def test_neighbouring_chunks_are_independent_and_normal() -> None:
    """The first numbers of many chunks, whose seeds follow a rule, look like independent normal numbers."""
    sampler = Sampler(Linear(torch.eye(3, 16)).eval(), sigma=1.0, classes=3)
    from heatsmooth.certification.sampling import Part

    first = []
    for chunk in range(4000):
        piece = torch.empty(CHUNK, 4, 4, 1)
        sampler._fill_with_copies(
            piece,
            Part(
                Job(0, torch.zeros(1, 4, 4), drawing(), pixels=torch.zeros(4, 4, 1)), "estimation", chunk * CHUNK, CHUNK
            ),
        )
        first.append(piece.flatten()[:4])
    numbers = torch.stack(first).double().numpy()
    assert np.abs(numbers.mean(0)).max() < 4.5 / np.sqrt(4000)
    assert np.abs((numbers**2).mean(0) - 1).max() < 4.5 * np.sqrt(2 / 4000)
    for lag in (1, 2, 3):
        assert np.abs((numbers[lag:] * numbers[:-lag]).mean(0)).max() < 4.5 / np.sqrt(4000)
    between = np.corrcoef(numbers.T) - np.eye(4)
    assert np.abs(between).max() < 4.5 / np.sqrt(4000)


def test_the_tally_of_a_linear_model_is_the_closed_form() -> None:
    """P(class 1) = Φ(margin / σ‖w‖)."""
    weight = torch.zeros(2, 16)
    weight[1, :2] = torch.tensor([0.6, 0.8])
    model = Linear(weight, torch.tensor([0.5, 0.0])).eval()
    image = torch.full((1, 4, 4), 0.5)
    sampler = Sampler(model, sigma=0.5, classes=2)
    ((_, (tally,)),) = sampler.run([Job(0, image, drawing(Ask("estimation", 40_000)))])
    p = 0.6554217416103242  # Φ((0.7 − 0.5) / 0.5)
    assert tally.n == 40_000
    assert abs(tally.counts[1] / 40_000 - p) < 4 * np.sqrt(p * (1 - p) / 40_000)
    assert abs(tally.sums.sum() - 40_000) < 1e-6


def test_out_of_memory_makes_batches_smaller_and_changes_nothing() -> None:
    class Greedy(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = network()

        def forward(self, x: Tensor) -> Tensor:
            if len(x) > 120:
                raise RuntimeError("[enforce fail at alloc_cpu.cpp] DefaultCPUAllocator: can't allocate memory")
            logits: Tensor = self.inner(x)
            return logits

    sampler = Sampler(Greedy().eval(), sigma=0.5, classes=10, batch_size=1000)
    pictures = images(6)
    jobs = (Job(i, pictures[i], drawing(Ask("estimation", 130))) for i in range(6))
    found = {job.index: tallies[0].counts.tolist() for job, tallies in sampler.run(jobs)}
    assert found == {index: tally.counts.tolist() for index, tally in counted(100, list(range(6))).items()}
    assert sampler.batch_size < 1000


def test_the_batch_size_with_the_least_time_per_sample_is_found() -> None:
    pace, seconds = Pace(50, 100, 200), {50: 0.4, 100: 0.3, 200: 0.5}
    tried = []
    for _ in range(3 * TURNS + 5):
        tried.append(pace.size)
        pace.took(pace.size, seconds[pace.size] + (1 if len(tried) <= 3 else 0))  # the first ones are slow
        pace.took(37, 0.0)  # the last of an image
    assert sorted(tried[: 3 * TURNS]) == sorted([50, 100, 200] * TURNS)
    assert tried[3 * TURNS :] == [100] * 5
    pace.at_most(60)
    assert (pace.size, pace.largest) == (50, 50)
    pace.at_most(40)
    assert (pace.size, pace.largest) == (40, 40)


def test_counts_are_the_same_while_batch_sizes_are_tried() -> None:
    expected = counted(100, list(range(6)), n=1000)
    found = counted(None, list(range(6)), n=1000)
    assert {index: tally.counts.tolist() for index, tally in found.items()} == {
        index: tally.counts.tolist() for index, tally in expected.items()
    }


def test_what_is_quietly_wrong_is_refused() -> None:
    with pytest.raises(InputError, match="evaluation mode"):
        Sampler(tiny_classifier().train(), sigma=0.5, classes=10)
    with pytest.raises(InputError, match="sigma"):
        Sampler(network(), sigma=0.0, classes=10)
    sampler = Sampler(Linear(torch.full((3, 16), torch.nan)).eval(), sigma=0.5, classes=3)
    with pytest.raises(InputError, match="finite logits"):
        list(sampler.run([Job(0, torch.zeros(1, 4, 4), drawing(Ask("estimation", 10)))]))


def test_a_faster_network_gives_the_same_classes() -> None:
    model = network()
    examples = images(6)
    fast = for_inference(model, examples)
    assert not any(isinstance(module, torch.nn.BatchNorm2d) for module in fast.modules())
    x = examples.repeat(40, 1, 1, 1) + 0.5 * torch.randn(240, 1, 28, 28, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(fast(x), model(x), rtol=1e-4, atol=1e-4)
    assert torch.equal(fast(x).argmax(1), model(x).argmax(1))


def test_a_network_that_cannot_be_folded_stays_as_it_is() -> None:
    class Branching(torch.nn.Module):
        """What the convolution says is needed without the batch norm too."""

        def __init__(self) -> None:
            super().__init__()
            self.conv, self.norm, self.fc = torch.nn.Conv2d(1, 4, 3), torch.nn.BatchNorm2d(4), torch.nn.Linear(16, 2)
            self.norm.running_var.fill_(9.0) if self.norm.running_var is not None else None

        def forward(self, x: Tensor) -> Tensor:
            x = self.conv(x)
            logits: Tensor = self.fc((x - self.norm(x)).flatten(1))
            return logits

    model = Branching().eval()
    fast = for_inference(model, torch.rand(4, 1, 4, 4))
    assert any(isinstance(module, torch.nn.BatchNorm2d) for module in fast.modules())
    torch.testing.assert_close(fast(torch.ones(2, 1, 4, 4)), model(torch.ones(2, 1, 4, 4)), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("classes", [2, 10, 1000])
@pytest.mark.parametrize("rows", [[50], [50] * 20, [1, 49, 50, 7, 3]])
def test_sums_are_those_of_numpy_to_the_last_bit(classes: int, rows: list[int]) -> None:
    """Published sums were added up by numpy, one copy after another."""
    logits = 3 * torch.randn(sum(rows), classes)
    probabilities, chosen = logits.double().softmax(1).numpy(), logits.argmax(1).numpy()
    first = 0
    for count, tally in zip(rows, tallied(logits, rows), strict=True):
        of_part = slice(first, first := first + count)
        assert tally.counts.tolist() == np.bincount(chosen[of_part], minlength=classes).tolist()
        assert tally.sums.tolist() == probabilities[of_part].sum(0).tolist()
        assert tally.squares.tolist() == (probabilities[of_part] ** 2).sum(0).tolist()
        assert tally.n == count


def test_only_a_few_numbers_leave_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a batch of 100 copies: no logits, no probabilities, but counts and sums of its two parts."""
    moved: list[tuple[int, ...]] = []
    plain = Tensor.cpu

    def noted(tensor: Tensor) -> Tensor:
        moved.append(tuple(tensor.shape))
        return plain(tensor)

    monkeypatch.setattr(Tensor, "cpu", noted)
    counted(100, [0], n=100)
    assert moved
    assert all(rows <= 2 for rows, _ in moved)
