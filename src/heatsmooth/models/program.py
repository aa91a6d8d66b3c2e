"""Whole programs: TorchScript and ``torch.export`` files, for certifying and attacking.

Such a file holds code that torch runs: it is opened only where the user says ``--model program``. It cannot be trained.
"""

import pickle
import warnings
import zipfile
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from heatsmooth.errors import InputError, first_line, require
from heatsmooth.models.archives import DAMAGED, check_archive, tensors_only
from heatsmooth.models.spec import NetworkSpec
from heatsmooth.runs import sha256

PROGRAM = "program"


class Program(nn.Module):
    """A program behind the interface of a module in evaluation mode, which it never leaves."""

    def __init__(self, program: nn.Module) -> None:
        super().__init__()
        self.program = program
        for parameter in self.parameters():
            parameter.requires_grad_(False)
        for module in self.modules():
            module.training = False

    def train(self, mode: bool = True) -> "Program":  # noqa: ARG002
        """Programs have no modes."""
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> "Program":
        """Itself: nothing ever changes its weights."""
        return self

    def forward(self, images: Tensor) -> Tensor:
        logits: Tensor = self.program(images)
        return logits


def refuse_program(model: nn.Module) -> None:
    """Refuse to train or save a program: its weights have no architecture to go back into."""
    require(
        not any(isinstance(module, (Program, torch.jit.ScriptModule)) for module in model.modules()),
        "expected a network that can be trained and saved, got a program; name its architecture with --model, "
        "and its weights",
    )


def load_program(path: Path) -> tuple[Program, NetworkSpec]:
    """The program of a file that ``torch.jit.save`` or ``torch.export.save`` wrote, and a spec that holds its hash."""
    require(path.is_file(), f"{path}: expected a file that holds a program, got no such file; check the path")
    try:
        with zipfile.ZipFile(path) as archive:
            names = archive.namelist()
        check_archive(path)
        with warnings.catch_warnings(action="ignore"), tensors_only():  # TorchScript is deprecated, and still in use
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
