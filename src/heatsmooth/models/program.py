"""Whole programs, TorchScript and ``torch.export`` files, to certify and attack.

Such a file contains code that torch runs, so it is opened only if ``model`` is "program". It cannot be trained.
"""

import pickle
import warnings
import zipfile
from pathlib import Path
from typing import Any, Self

import torch
from torch import Tensor, nn

from heatsmooth.errors import InputError, first_line, require
from heatsmooth.models.archives import DAMAGED, check_archive, tensors_only
from heatsmooth.models.spec import NetworkSpec
from heatsmooth.runs import sha256

PROGRAM = "program"


class FixedNetwork(nn.Module):
    """A network that is only evaluated: it has no training mode, and a copy is the network itself."""

    kind = "a program"
    remedy = "name its architecture as `model`, and its weights"
    keeps_its_input = False
    """Whether a pass never writes to the images, so that they need no copy."""

    def train(self, mode: bool = True) -> Self:  # noqa: ARG002
        """No effect: there is no training mode."""
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        """The network itself, because it never changes."""
        return self


class Program(FixedNetwork):
    """A program as a module that is always in evaluation mode."""

    def __init__(self, program: nn.Module) -> None:
        super().__init__()
        self.program = program
        for parameter in self.parameters():
            parameter.requires_grad_(False)
        for module in self.modules():
            module.training = False

    def forward(self, images: Tensor) -> Tensor:
        logits: Tensor = self.program(images)
        return logits


def refuse_program(model: nn.Module) -> None:
    """Refuse to train, save or export a network that is only evaluated, because its architecture is not known."""
    fixed = next((m for m in model.modules() if isinstance(m, (FixedNetwork, torch.jit.ScriptModule))), None)
    if fixed is not None:
        of = fixed if isinstance(fixed, FixedNetwork) else FixedNetwork
        raise InputError(f"expected a network that can be trained and saved, got {of.kind}; {of.remedy}")


def load_program(path: Path) -> tuple[Program, NetworkSpec]:
    """The program in a file of ``torch.jit.save`` or ``torch.export.save``, and a spec with the hash of the file."""
    require(path.is_file(), f"{path}: expected a file with a program, got no such file; check the path")
    try:
        with zipfile.ZipFile(path) as archive:
            names = archive.namelist()
        check_archive(path)
        with warnings.catch_warnings(action="ignore"), tensors_only():  # TorchScript is deprecated but still in use
            if any("/code/" in name for name in names):
                program: nn.Module = torch.jit.load(path, map_location="cpu")
            else:
                program = torch.export.load(path).module()
    except InputError:
        raise
    except pickle.UnpicklingError:
        raise InputError(
            f"{path}: expected a program of tensors and graphs, got a pickle that holds Python code; do not trust it"
        ) from None
    except (*DAMAGED, zipfile.BadZipFile) as error:
        raise InputError(
            f"{path}: expected a TorchScript or torch.export program, got {first_line(error)}; "
            "save it with torch.jit.save or torch.export.save"
        ) from None
    return Program(program), NetworkSpec(PROGRAM, config=sha256(path.read_bytes()))
