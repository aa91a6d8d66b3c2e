"""What the server of ``processes`` imports once. It computes nothing, so that its copies start clean."""

import gc

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
import heatsmooth.workflows.compare
import heatsmooth.workflows.training

torch.set_num_threads(1)
typer.main.get_command(heatsmooth.cli.app)
gc.freeze()
