import pytest
import torch

from heatsmooth.noise import Draw


@pytest.mark.parametrize("world", [1, 2, 4])
def test_each_image_meets_the_same_numbers_however_many_processes(world: int) -> None:
    def drawn(processes: int) -> torch.Tensor:
        draws = [Draw(7, "step", 3, rank=rank, world=processes) for rank in range(processes)]
        parts = [torch.cat([d.normal((8 // processes, 3)), d.uniform((8 // processes, 2))], dim=1) for d in draws]
        return torch.cat(parts)

    assert torch.equal(drawn(world), drawn(1))


def test_normal_numbers_have_mean_0_and_deviation_1() -> None:
    numbers = Draw(0).normal((200_000,))
    assert abs(float(numbers.mean())) < 0.01
    assert abs(float(numbers.std()) - 1) < 0.01
