"""What ``train`` and ``smooth`` measured at the end, as it is in ``run.json`` and on the command line."""

from dataclasses import dataclass

from heatsmooth.results.schema import Format, Interval, Real, Share, Whole


@dataclass(frozen=True, kw_only=True)
class TrainingResult:
    """The accuracy of a trained or smoothed network in one pass, and what the training took.

    Accuracies are shares of ``test_images`` labelled images; None where there were none, or no noise level.
    """

    command: str
    out: str
    """The run directory."""
    method: str | None = None
    """Of ``train``; of ``smooth``, where it is not HeatSmoothing."""
    sigma: Real | None = None
    """The noise level of ``smooth``."""
    left_out: tuple[str, ...] | None = None
    """Test images that could not be read."""
    tested_on: str | None = None
    """Where the test images are those that the network was smoothed on: a sentence that says so."""
    preset: str | None = None
    """Of ``smooth``."""
    few_steps: str | None = None
    """Where the training had too few steps to change the network much: a sentence that says so."""
    test_images: Whole | None = None
    accuracy: Share | None = None
    """Clean accuracy."""
    accuracy_under_noise: Share | None = None
    teacher_accuracy: Share | None = None
    teacher_accuracy_under_noise: Share | None = None
    keep: Share | None = None
    """The share of the teacher's answers on clean images that was asked for."""
    kept: Share | None = None
    """The share that was reached, on ``kept_images`` images that nothing else used."""
    kept_interval: Interval | None = None
    """Clopper–Pearson interval of that share, 95 %."""
    kept_images: Whole | None = None
    kept_on: str | None = None
    """Which images these are."""
    kept_factor: Real | None = None
    """Where the weights are on the line from the teacher (0) to the trained student (1)."""
    kept_more: str | None = None
    """Where the network keeps more answers than asked for, and could not keep fewer: a sentence that says so."""
    seconds: Real = 0.0
    format: Format = 1
