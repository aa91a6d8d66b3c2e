"""Networks with their normalisation inside, and their weights on disk."""

from heatsmooth.models.architectures import ARCHITECTURES
from heatsmooth.models.checkpoint import load, load_state, model_hash, recorded_spec, save, serialise
from heatsmooth.models.classifier import (
    Classifier,
    build,
    channels_of,
    copy_of,
    count_classes,
    denoised,
    device_of,
    evaluating,
    normalising_deviation,
    probabilities_of,
)
from heatsmooth.models.denoisers import Denoised, OneStepDiffusion
from heatsmooth.models.inference import (
    check_gradient,
    check_independence,
    checked_classes,
    for_inference,
    images_of_a_pass,
)
from heatsmooth.models.lipschitz_bounds import DeterministicRadius, is_lipschitz, refuse_lipschitz
from heatsmooth.models.onnx_file import is_onnx, save_onnx
from heatsmooth.models.probes import identify, is_known_as
from heatsmooth.models.resnet import ResNet
from heatsmooth.models.spec import NetworkSpec
from heatsmooth.models.votes import Voter, one_pass_and_votes, require_voter, votes_of

__all__ = [
    "ARCHITECTURES",
    "Classifier",
    "Denoised",
    "DeterministicRadius",
    "NetworkSpec",
    "OneStepDiffusion",
    "ResNet",
    "Voter",
    "build",
    "channels_of",
    "check_gradient",
    "check_independence",
    "checked_classes",
    "copy_of",
    "count_classes",
    "denoised",
    "device_of",
    "evaluating",
    "for_inference",
    "identify",
    "images_of_a_pass",
    "is_known_as",
    "is_lipschitz",
    "is_onnx",
    "load",
    "load_state",
    "model_hash",
    "normalising_deviation",
    "one_pass_and_votes",
    "probabilities_of",
    "recorded_spec",
    "refuse_lipschitz",
    "require_voter",
    "save",
    "save_onnx",
    "serialise",
    "votes_of",
]
