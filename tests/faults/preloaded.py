"""What the server of ``processes`` imports once. It computes nothing, so that its copies start clean."""

import gc
import importlib

import torch
import torch._dynamo  # what an optimizer imports when it is first made
import typer

import heatsmooth.cli
import heatsmooth.progress
import heatsmooth.report
import heatsmooth.workflows.attack
import heatsmooth.workflows.audit
import heatsmooth.workflows.calibrate
import heatsmooth.workflows.certify
import heatsmooth.workflows.check
import heatsmooth.workflows.compare
import heatsmooth.workflows.estimate
import heatsmooth.workflows.export
import heatsmooth.workflows.serve
import heatsmooth.workflows.sharing
import heatsmooth.workflows.training

importlib.import_module("matplotlib.backends.backend_pdf")  # a report's figures need it late
torch.set_num_threads(1)
typer.main.get_command(heatsmooth.cli.app)
gc.freeze()
