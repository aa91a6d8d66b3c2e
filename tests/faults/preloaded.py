"""What the server of ``processes`` imports once. It computes nothing, so that its copies start clean."""

import gc
import importlib

import cyclopts
import torch
import torch._dynamo  # what an optimizer imports when it is first made

from heatsmooth.commands.line import COMMANDS, command_named
from heatsmooth.commands.options import options_of

importlib.import_module("matplotlib.backends.backend_pdf")  # a report's figures need it late
torch.set_num_threads(1)
cyclopts.App(name="heatsmooth")
for name in COMMANDS:
    options_of(command_named(name))
gc.freeze()
