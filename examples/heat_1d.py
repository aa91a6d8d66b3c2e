"""The paper's one-dimensional example: eight timesteps of HeatSmoothing beside the exact Gaussian average.

    python examples/heat_1d.py [FIGURE]

A binary classifier of one number, f⁰, has an island of the wrong class at x ≈ −0.5. Each timestep minimises
½|v − f^k|² + ½·h·σ²/2·|v′|² with the library's own objective and loop. After eight timesteps, v is close to
E f⁰(x + η) with η ~ N(0, σ²), and the island is gone.
"""

import sys
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import torch
from torch import Tensor, nn

import heatsmooth as hs

LEFT, RIGHT = -2.0, 2.0
SIGMA = 0.2
TIMESTEPS = 8


class Interpolation(nn.Module):
    """A function of x in [0, 1], linear between its values at equally spaced nodes: a network of one layer."""

    def __init__(self, values: Tensor) -> None:
        super().__init__()
        self.values = nn.Parameter(values)

    def forward(self, x: Tensor) -> Tensor:
        """(batch, 1, 1, 1) → (batch, 1)."""
        nodes = torch.linspace(0, 1, len(self.values))
        hats = (1 - (x.flatten(1) - nodes).abs() * (len(nodes) - 1)).clamp_min(0)
        return (hats @ self.values)[:, None]


def initial(x: np.ndarray) -> np.ndarray:
    """f⁰: the probability of the second class, with an island at −0.5."""
    step = 1 / (1 + np.exp(-12 * x))
    island = 0.8 * np.exp(-(((x + 0.5) / 0.1) ** 2))
    probability: np.ndarray = step + island
    return probability


def gaussian_average(x: np.ndarray, values: np.ndarray, sigma: float) -> np.ndarray:
    """E f(x + η) by quadrature, f continued evenly beyond its ends."""
    step = x[1] - x[0]
    kernel = np.exp(-((np.arange(-len(x) + 1, len(x)) * step) ** 2) / (2 * sigma**2))
    padded = np.pad(values, len(x) - 1, mode="edge")
    average: np.ndarray = np.convolve(padded, kernel / kernel.sum(), mode="valid")
    return average


def main(figure: Path) -> float:
    """Smooth and draw; the result is the largest distance to the Gaussian average on [−1, 1]."""
    x = np.linspace(LEFT, RIGHT, 161)
    model = Interpolation(torch.tensor(initial(x), dtype=torch.float32))
    positions = ((torch.arange(640) + 0.5) / 640).view(-1, 1, 1, 1)
    stages = [model.values.detach().numpy()]
    for _ in range(TIMESTEPS):
        model = hs.smooth(  # type: ignore[assignment]
            model,
            [positions],
            sigma=SIGMA / (RIGHT - LEFT) / TIMESTEPS**0.5,
            distance="squared-logits",
            penalty="logits",
            estimator="exact",
            noisy_images="none",
            weight=0.5,
            epochs=100,
            lr=8.0,
            optimizer="sgd",
            schedule="constant",
            device="cpu",
        )
        stages.append(model.values.detach().numpy())
    average = gaussian_average(x, initial(x), SIGMA)
    shown = np.abs(x) <= 1
    error = float(np.abs(stages[-1] - average)[shown].max())
    draw(figure, x[shown], [stage[shown] for stage in stages], average[shown])
    before = np.abs(stages[0] - average)[shown].max()
    print(f"largest distance to the Gaussian average: {before:.3f} → {error:.3f}; {figure}")
    return error


def draw(figure: Path, x: np.ndarray, stages: list[np.ndarray], average: np.ndarray) -> None:
    """f⁰, f¹ and f⁸ with the classes they give to some points."""
    panels, axes = plt.subplots(1, 3, figsize=(10, 3.2), sharey=True, layout="constrained")
    points = slice(4, None, 6)
    for axis, k in zip(axes, (0, 1, TIMESTEPS), strict=True):
        axis.axhline(0.5, color="0.6", linestyle=":", linewidth=1, label="decision")
        axis.plot(x, average, color="#d55e00", linestyle="--", label="exact Gaussian average")
        axis.plot(x, stages[k], color="#0072b2", linewidth=2, label="network")
        second = stages[k][points] > 0.5
        for chosen, marker, colour in ((second, "*", "#0072b2"), (~second, "o", "#cc3311")):
            axis.scatter(x[points][chosen], np.full(chosen.sum(), -0.1), marker=marker, color=colour, zorder=3)
        axis.set_title(f"$f^{k}$")
        axis.set_xlabel("x")
    panels.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=3, frameon=False)
    axes[0].set_ylabel("P(second class)")
    panels.savefig(figure)
    plt.close(panels)


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path("docs/figures/heat_1d.svg"))
