"""``heatsmooth export``."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from heatsmooth.commands.command import Command, facts, show_fields
from heatsmooth.commands.inputs import Network, SomeImages
from heatsmooth.errors import require
from heatsmooth.progress import Progress, silent


@dataclass(frozen=True, kw_only=True)
class Guarantee:
    """What an output of the file covers, and what it rests on."""

    subject: str
    basis: str


@dataclass(frozen=True, kw_only=True)
class ExportSummary:
    """What was written."""

    command: str = "export"
    out: str
    outputs: dict[str, Guarantee]
    sigma: float | None = None
    model_hash: str
    images_checked: int
    largest_difference: float
    """Between the outputs of the file and of the network."""


@dataclass(frozen=True, kw_only=True)
class Export(Command):
    """Write the one-pass network as ONNX: probabilities, class, L-bound and, if calibrated, the calibrated radius.

    After calibrate --learn-votes, the file also has the predicted votes and the class of the average that the radius is
    for. A radius that holds under attack cannot be exported: its secret noise has no source in the file.
    The file of a network made by distill has its proven radius, and needs no --sigma.
    The file takes any number of images in [0, 1]. It is written only if onnxruntime agrees with the network to 1e-5.

    Example: heatsmooth export --from runs/calibrated --sigma 0.25 --out model.onnx
    """

    network: Network
    sigma: float | None = None
    """Standard deviation of the noise, for the L-bound, in [0, 1] pixels."""
    out: Path
    """The file to write, as model.onnx."""
    images: SomeImages = field(default=SomeImages())

    def run(self, progress: Progress = silent) -> ExportSummary:
        """Write and check the file."""
        import torch

        from heatsmooth.commands.calibrated import ATTACK_FILE, read_calibration, read_voter
        from heatsmooth.data.folder import USUAL_SIZE
        from heatsmooth.data.images import height_and_width
        from heatsmooth.exporting import export_onnx

        out, files = self.out, self.images.files
        require(not out.is_dir(), f"`out` {out}: expected a file to write, got a directory; name it, as model.onnx")
        require(
            not (self.network.source / ATTACK_FILE).exists(),
            f"`source` {self.network.source}: expected no calibration under attack, got one, whose radius needs fresh "
            "secret noise that an ONNX file cannot draw; export the network it was made from, and use predict or "
            "one-pass with --under-attack for this radius",
        )
        images = None if files is None else files.first(self.images.count).load(self.network.size, progress=progress)
        model = self.network.load(images)
        if images is None:
            sides = height_and_width(self.network.image_size or model.spec.size or USUAL_SIZE)
            checked = torch.empty(0, model.spec.channels, *sides)
        else:
            checked = images.images(torch.arange(len(images)))
        calibration = read_calibration(self.network.source, model)
        exported = export_onnx(
            model,
            out,
            checked,
            sigma=self.sigma,
            calibration=calibration,
            head=read_voter(self.network.source, model, calibration),
            facts={"architecture": model.spec.architecture},
            progress=progress,
        )
        said = exported.metadata
        return ExportSummary(
            out=str(out),
            outputs={
                name: Guarantee(subject=said[f"{name}.subject"], basis=said[f"{name}.basis"])
                for name in exported.outputs
            },
            sigma=self.sigma,
            model_hash=said["model_hash"],
            images_checked=exported.images,
            largest_difference=exported.largest_difference,
        )

    def show(self, result: Any) -> None:
        """Print the summary, and the guarantee of each output."""
        fields = facts(result)
        outputs = fields.pop("outputs")
        show_fields(fields | {"largest_difference": f"{result.largest_difference:.2g}"})
        for name, guarantee in outputs.items():
            print(f"{name:<40} of the {guarantee['subject']}; {guarantee['basis']}")
