"""Objectives, and the one loop that minimises them."""

from heatsmooth.training.baselines import METHODS, Baseline
from heatsmooth.training.batches import Batch, LoaderFeed, SetFeed
from heatsmooth.training.heat import Heat, heat_smoothing
from heatsmooth.training.loop import Plan, fit
from heatsmooth.training.methods import PRESETS, preset, smooth, train

__all__ = [
    "METHODS",
    "PRESETS",
    "Baseline",
    "Batch",
    "Heat",
    "LoaderFeed",
    "Plan",
    "SetFeed",
    "fit",
    "heat_smoothing",
    "preset",
    "smooth",
    "train",
]
