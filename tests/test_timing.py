import torch

from heatsmooth.comparing.timing import inference_times
from heatsmooth.models import NetworkSpec, build


def test_times_of_one_pass_and_of_many_are_of_the_same_images() -> None:
    torch.manual_seed(0)
    shown: list[torch.Size] = []
    found = inference_times(
        build(NetworkSpec("small", channels=1)).eval(),
        torch.rand(3, 1, 28, 28),
        sigma=0.01,
        samples=50,
        rounds=1,
        others={"another_seconds": lambda image: shown.append(image.shape)},
    )
    assert shown == 6 * [torch.Size((1, 1, 28, 28))]
    assert found.other_seconds["another_seconds"] > 0
    assert 0 < found.one_pass_seconds < found.stochastic_seconds
    assert 0 < found.plain_one_pass_seconds < found.plain_seconds
    assert found.threads == torch.get_num_threads()
    assert found.images == 3
    assert 0 <= found.agreement <= 1
