"""Networks with their normalisation inside, and their weights on disk."""

from heatsmooth.models.checkpoint import load, load_state, model_hash, save, serialise
from heatsmooth.models.classifier import Classifier, NetworkSpec, build, copy_of, count_classes, evaluating
from heatsmooth.models.inference import check_independence, for_inference
from heatsmooth.models.resnet import ARCHITECTURES, ResNet

__all__ = [
    "ARCHITECTURES",
    "Classifier",
    "NetworkSpec",
    "ResNet",
    "build",
    "check_independence",
    "copy_of",
    "count_classes",
    "evaluating",
    "for_inference",
    "load",
    "load_state",
    "model_hash",
    "save",
    "serialise",
]
