"""Make a pretrained image classifier robust in one epoch without labels; certify the L2 perturbation it withstands."""

import importlib
from typing import TYPE_CHECKING, Any

from heatsmooth.errors import InputError
from heatsmooth.results.shown import Shown
from heatsmooth.version import VERSION as __version__

if TYPE_CHECKING:
    from heatsmooth.attacks import Adversarial, GaussianAverage, ddn, pgd
    from heatsmooth.auditing import audit, audit_agreement, audit_proofs
    from heatsmooth.calibration import Calibration, calibrate
    from heatsmooth.certification.certificates import certify
    from heatsmooth.certification.clever import clever
    from heatsmooth.certification.noisy_passes import noisy_passes
    from heatsmooth.data import ImageSet, load_images
    from heatsmooth.exporting import export_onnx
    from heatsmooth.functions import board, compare, report
    from heatsmooth.models import OneStepDiffusion, load, save
    from heatsmooth.predicting import claims_under_attack, predict
    from heatsmooth.progress import bar
    from heatsmooth.results.audit import AuditResult, AuditSettings
    from heatsmooth.results.certificates import Certificates
    from heatsmooth.results.predictions import Predictions, PredictionSettings
    from heatsmooth.statistics.radii import l_bound
    from heatsmooth.training.batches import Batch
    from heatsmooth.training.field import Consistency, Denoising, Macer, SmoothMix
    from heatsmooth.training.heat import heat_smoothing, temperature_of
    from heatsmooth.training.methods import smooth, train
    from heatsmooth.training.muon import Muon
    from heatsmooth.training.settings import Baseline, Heat, Plan
    from heatsmooth.training.students import distill
    from heatsmooth.training.votes import learn_votes
    from heatsmooth.under_attack import AttackCalibration, calibrate_under_attack

_HOMES = {
    "attacks": ("Adversarial", "GaussianAverage", "ddn", "pgd"),
    "auditing": ("audit", "audit_agreement", "audit_proofs"),
    "calibration": ("Calibration", "calibrate"),
    "certification.certificates": ("certify",),
    "certification.clever": ("clever",),
    "certification.noisy_passes": ("noisy_passes",),
    "data": ("ImageSet", "load_images"),
    "exporting": ("export_onnx",),
    "functions": ("board", "compare", "report"),
    "models": ("OneStepDiffusion", "load", "save"),
    "predicting": ("claims_under_attack", "predict"),
    "progress": ("bar",),
    "results.audit": ("AuditResult", "AuditSettings"),
    "results.certificates": ("Certificates",),
    "results.predictions": ("PredictionSettings", "Predictions"),
    "statistics.radii": ("l_bound",),
    "training.batches": ("Batch",),
    "training.field": ("Consistency", "Denoising", "Macer", "SmoothMix"),
    "training.heat": ("heat_smoothing", "temperature_of"),
    "training.methods": ("smooth", "train"),
    "training.muon": ("Muon",),
    "training.settings": ("Baseline", "Heat", "Plan"),
    "training.students": ("distill",),
    "training.votes": ("learn_votes",),
    "under_attack": ("AttackCalibration", "calibrate_under_attack"),
}
_HOME = {name: module for module, names in _HOMES.items() for name in names}

__all__ = [
    "Adversarial",
    "AttackCalibration",
    "AuditResult",
    "AuditSettings",
    "Baseline",
    "Batch",
    "Calibration",
    "Certificates",
    "Consistency",
    "Denoising",
    "GaussianAverage",
    "Heat",
    "ImageSet",
    "InputError",
    "Macer",
    "Muon",
    "OneStepDiffusion",
    "Plan",
    "PredictionSettings",
    "Predictions",
    "SmoothMix",
    "__version__",
    "audit",
    "audit_agreement",
    "audit_proofs",
    "bar",
    "board",
    "calibrate",
    "calibrate_under_attack",
    "certify",
    "claims_under_attack",
    "clever",
    "compare",
    "ddn",
    "distill",
    "export_onnx",
    "heat_smoothing",
    "l_bound",
    "learn_votes",
    "load",
    "load_images",
    "noisy_passes",
    "pgd",
    "predict",
    "report",
    "save",
    "smooth",
    "temperature_of",
    "train",
]


def __getattr__(name: str) -> Any:
    """Import what needs torch only when it is asked for: help and reports do without."""
    if name not in _HOME:
        raise AttributeError(f"module 'heatsmooth' has no attribute {name!r}")
    return getattr(importlib.import_module(f"heatsmooth.{_HOME[name]}"), name)


def _html(result: Shown) -> str:
    """A result in a notebook; what draws it is imported when the first one is shown."""
    from heatsmooth.reporting.notebook import html

    return html(result)


Shown.html = staticmethod(_html)
