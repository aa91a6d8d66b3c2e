"""The curves of a training: the records of ``metrics.jsonl`` that a report shows."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from heatsmooth.results.schema import Finite, Real, from_json
from heatsmooth.runs import read_records

Curve = tuple[NDArray[np.float64], NDArray[np.float64]]


@dataclass(frozen=True, kw_only=True)
class MetricsRecord:
    """One logged step."""

    epoch: Real
    """Within the stage."""
    stage: int | None = None
    loss: Finite | None = None
    distance: Finite | None = None
    penalty: Finite | None = None


def read_metrics(directory: Path) -> dict[str, Curve]:
    """Loss, distance and penalty of a run directory: epochs, counted over all stages, and values."""
    points: dict[str, list[tuple[float, float]]] = {"loss": [], "distance": [], "penalty": []}
    before = last = 0.0
    stage: int | None = None
    file = directory / "metrics.jsonl"
    for number, line in enumerate(read_records(file), start=1):
        record = from_json(MetricsRecord, line, f"{file}:{number}: expected a step of training", "remove the line")
        if record.stage != stage:
            stage, before = record.stage, last
        last = before + record.epoch
        for name, curve in points.items():
            value = getattr(record, name)
            if value is not None:
                curve.append((last, value))
    arrays = {name: np.array(curve, dtype=np.float64).reshape(-1, 2) for name, curve in points.items()}
    return {name: (curve[:, 0], curve[:, 1]) for name, curve in arrays.items()}
