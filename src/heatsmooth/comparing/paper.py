"""The paper's CIFAR-10 experiment in a size for two cores, and what the paper claims about it, as data."""

from dataclasses import replace

from heatsmooth.comparing.recipe import Recipe, Smoothed, Stated, Trained, Trial
from heatsmooth.results.comparison import Measure
from heatsmooth.training.settings import Baseline, HeatChanges, Plan

SIGMA = 0.1
_STEP_IMAGES = 10_000
"""Images of each timestep: 100 batches of 100. Five timesteps pass as many images as one epoch has."""
_LABELLED = Plan(epochs=10, lr=0.2, warmup=0.15, weight_decay=5e-4)
_RIVAL = replace(_LABELLED, epochs=11)
"""As many images as the undefended network and five timesteps pass together."""
_GAUSSIAN = Baseline("gaussian", SIGMA)
_SMOOTHADV = Baseline("smoothadv", SIGMA, steps=2, warmup_epochs=3)
_PROBABILITIES: HeatChanges = {"distance": "squared-probabilities", "penalty": "probabilities", "weight": 0.5}
_ONE_PROJECTION: HeatChanges = {"projections": 1, "scaling": "unbiased"}
"""A penalty with the same mean as that of ten projections, in a sixth of the time."""


def _as_written(timesteps: int) -> Smoothed:
    """Algorithm 1 of the paper, with one epoch per timestep on some images instead of 200 on all."""
    return Smoothed(
        "undefended",
        "paper-cifar10",
        heat={"timesteps": timesteps},
        plan={"epochs": 1},
        images=_STEP_IMAGES,
        tuned="paper-cifar10",
    )


def _heat_trial(heat: HeatChanges, rates: tuple[float, ...]) -> Trial:
    """All five timesteps: after one, the largest ACR may be that of a network that has collapsed."""
    return Trial(Smoothed("undefended", "paper-cifar10", heat={**heat, **_ONE_PROJECTION}, plan={"epochs": 1}), rates)


_HEAT, _LONGER, _RIVALS = "paper-cifar10", "public-code", {"smoothadv": "SmoothAdv", "gaussian": "RandomizedSmoothing"}
_TABLE: dict[Measure, tuple[str, dict[str, float]]] = {
    Measure.L_BOUND_MEDIAN: ("median L-bound", {_HEAT: 0.094, "smoothadv": 0.090, "gaussian": 0.087}),
    Measure.L_BOUND_MEAN: ("mean L-bound", {_HEAT: 0.085, "smoothadv": 0.078, "gaussian": 0.081}),
    Measure.PGD_MEDIAN: (
        "median PGD distance",
        {_HEAT: 0.7736, "smoothadv": 0.7697, "gaussian": 0.7425, "undefended": 0.7088},
    ),
    Measure.PGD_MEAN: (
        "mean PGD distance",
        {_HEAT: 0.9023, "smoothadv": 1.3241, "gaussian": 1.2677, "undefended": 0.8390},
    ),
    Measure.DDN_MEDIAN: (
        "median DDN distance",
        {_HEAT: 0.5358, "smoothadv": 0.4812, "gaussian": 0.4546, "undefended": 0.4911},
    ),
    Measure.DDN_MEAN: (
        "mean DDN distance",
        {_HEAT: 0.6361, "smoothadv": 0.6208, "gaussian": 0.5558, "undefended": 0.5713},
    ),
}
"""The paper's table of adversarial distances on CIFAR-10 (appendix E)."""
_NAMES = {
    _HEAT: "HeatSmoothing",
    _LONGER: "HeatSmoothing as in the public code",
    **_RIVALS,
    "undefended": "the undefended network",
}
_CURVES: dict[Measure, tuple[float, dict[str, float]]] = {
    Measure.CERTIFIED_AT_0: (0.0, {_HEAT: 0.905, "gaussian": 0.924, "smoothadv": 0.73}),
    Measure.CERTIFIED_AT_01: (0.1, {_HEAT: 0.82, "gaussian": 0.795, "smoothadv": 0.635, "undefended": 0.61}),
    Measure.CERTIFIED_AT_02: (0.2, {_HEAT: 0.71, "gaussian": 0.61, "smoothadv": 0.525, "undefended": 0.34}),
    Measure.CERTIFIED_AT_03: (0.3, {_HEAT: 0.59, "gaussian": 0.36, "smoothadv": 0.365, "undefended": 0.04}),
}
"""Certified accuracy, read off the curves of figure 1a to about a point. The paper leaves abstentions out."""


def _compared(measure: Measure, what: str, one: str, other: str, values: dict[str, float], where: str) -> Stated:
    """That the method with the larger value in the paper has it here too; ``one``, where the paper has no numbers."""
    larger, smaller = (other, one) if values and values[one] < values[other] else (one, other)
    claim = f"{what}: {_NAMES[larger]} > {_NAMES[smaller]}"
    return Stated(claim, where, larger, smaller, measure, (values[larger], values[smaller]) if values else None)


CLAIMS = (
    *(
        _compared(measure, what, _HEAT, other, values, "appendix E, table")
        for measure, (what, values) in _TABLE.items()
        for other in values
        if other != _HEAT
    ),
    *(
        _compared(measure, f"certified accuracy at {radius:g}", _HEAT, other, values, "figure 1a")
        for measure, (radius, values) in _CURVES.items()
        for other in values
        if other != _HEAT
    ),
    *(
        _compared(Measure.ACR, "area under the curve (ACR)", method, other, {}, where)
        for method, where in ((_HEAT, "figure 1a"), (_LONGER, "the same, trained for longer"))
        for other in _RIVALS
    ),
    Stated(
        "seconds per answer: stochastic > one pass",
        "table 2",
        "gaussian",
        _HEAT,
        Measure.ANSWER_SECONDS,
        (0.048, 0.0049),
    ),
    Stated(
        "one epoch without labels certifies: ACR after > before (paper: ImageNet)",
        "abstract",
        "paper-imagenet",
        "undefended",
        Measure.ACR,
    ),
    Stated(
        "distance to the Gaussian average of the teacher (σ²): before > after five timesteps",
        "appendix A",
        "undefended",
        _HEAT,
        Measure.DISTANCE_TO_AVERAGE,
    ),
    Stated(
        "the same for 2σ², to which the trained form tends: before > after",
        "not in the paper",
        "undefended",
        _HEAT,
        Measure.DISTANCE_TO_WIDER_AVERAGE,
    ),
)
"""Each compares two methods. The larger one is named first; equal signs are those of the paper's values."""

CIFAR10_PAPER = Recipe(
    "The paper's CIFAR-10 claims one by one, with a tiny network.",
    "cifar10",
    "tiny-unit-logits",
    SIGMA,
    {
        "undefended": Trained(Baseline(), _LABELLED),
        _HEAT: _as_written(5),
        "gaussian": Trained(_GAUSSIAN, _RIVAL, stochastic=True, tuned="gaussian"),
        "smoothadv": Trained(_SMOOTHADV, _RIVAL, stochastic=True, tuned="smoothadv"),
        "bootcamp": Smoothed("undefended"),
        "paper-cifar10-1": _as_written(1),
        "paper-cifar10-2": _as_written(2),
        "probabilities": Smoothed(
            "undefended",
            "paper-cifar10",
            heat=_PROBABILITIES,
            plan={"epochs": 1},
            images=_STEP_IMAGES,
            tuned="probabilities",
        ),
        "public-code": Smoothed(
            "undefended",
            "paper-cifar10",
            heat={"weight": 5.0, "restart": True, **_ONE_PROJECTION},
            plan={"epochs": 3},
        ),
        "paper-imagenet": Smoothed("undefended", "paper-imagenet"),
    },
    n_wrong=100,
    certified=500,
    attacked=100,
    timed_draws=100,
    audited=0,
    every_seed=("undefended", _HEAT, "gaussian", "smoothadv"),
    trials={
        "paper-cifar10": _heat_trial({}, (0.3, 0.1, 0.03)),
        "probabilities": _heat_trial(_PROBABILITIES, (1.0, 0.3, 0.1)),
        "gaussian": Trial(Trained(_GAUSSIAN, _RIVAL, stochastic=True), (0.4, 0.2, 0.1)),
        "smoothadv": Trial(Trained(_SMOOTHADV, _RIVAL, stochastic=True), (0.4, 0.2, 0.1)),
    },
    heated=100,
    claims=CLAIMS,
    size=(
        "The trainings are far shorter than in the paper: the undefended network has 10 epochs instead of 200, its "
        "rivals 11 instead of 200, HeatSmoothing 5 times 100 steps instead of 5 times 200 epochs, and public-code 5 "
        "times 3 epochs. Values from figure 1a are read off its curves, to about a point."
    ),
)
"""The comparison."""
