"""The network in one pass, with its radii, as an ONNX file: what it computes, and how it is written and checked."""

from heatsmooth.exporting.file import Exported, export_onnx
from heatsmooth.exporting.one_pass import OnePassNetwork

__all__ = ["Exported", "OnePassNetwork", "export_onnx"]
