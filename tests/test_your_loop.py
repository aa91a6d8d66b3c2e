"""The recipes of docs/your-loop.md, run as they stand there: both give what ``hs.smooth`` gives."""

import copy
import logging
import re
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import heatsmooth as hs

PAGE = Path(__file__).parents[1] / "docs/your-loop.md"
PLAIN, LIGHTNING = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("recipe", [PLAIN, LIGHTNING], ids=["pytorch", "lightning"])
def test_a_loop_of_your_own_gives_what_smooth_gives(recipe: str, in_tmp: Path) -> None:
    if recipe is LIGHTNING:
        with warnings.catch_warnings(action="ignore"):
            pytest.importorskip("lightning")
        logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(1, 4, 3, 2, bias=False), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(100, 3)
    )
    with torch.no_grad():
        next(iter(model[4].parameters())).mul_(1000)  # a network that is sure, so that its answers are softened
    loader = [torch.rand(100, 1, 12, 12) for _ in range(3)]
    assert hs.temperature_of(copy.deepcopy(model).eval()(torch.cat(loader)[:250])) > 1.5
    names: dict[str, Any] = {"model": copy.deepcopy(model), "loader": loader}
    with warnings.catch_warnings(action="ignore"):
        exec(recipe, names)
    expected = hs.smooth(model, loader, sigma=0.25, device="cpu").state_dict()
    assert not torch.equal(expected["4.weight"], model.state_dict()["4.weight"])
    for name, tensor in names["robust"].state_dict().items():
        torch.testing.assert_close(tensor, expected[name], rtol=1e-4, atol=1e-5)
