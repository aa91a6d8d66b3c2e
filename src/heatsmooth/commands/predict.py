"""``heatsmooth predict``."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from heatsmooth.commands.command import Command, show_table
from heatsmooth.commands.inputs import RUNNING, Network
from heatsmooth.commands.options import grouped
from heatsmooth.progress import Progress, silent
from heatsmooth.results.predictions import Prediction, Predictions, PredictionSettings, SampledPrediction


@dataclass(frozen=True, kw_only=True)
class Predict(Command):
    """Classify images in one pass, with the L-bound; with noise samples, by Cohen's PREDICT.

    Example: heatsmooth predict --from runs/smoothed --sigma 0.25 shoe.png
    """

    files: tuple[Path, ...] = field(metadata={"positional": True, "flag": "IMAGE…"})
    """Image files."""
    network: Network
    settings: PredictionSettings = field(
        default=PredictionSettings(), metadata=grouped("Running", main=("sigma", "noise_samples", "alpha"))
    )
    under_attack: bool = False
    """Also give the radius that holds for attacked images, from passes with secret noise (see calibrate)."""
    device: str | None = field(default=None, metadata=RUNNING)
    """cpu, cuda, … (default: the accelerator if there is one)."""

    def run(self, progress: Progress = silent) -> Predictions:
        """Predict each file."""
        from heatsmooth.commands.calibrated import read_attack_calibration, read_calibration, read_voter
        from heatsmooth.device import accelerator
        from heatsmooth.predicting import predict

        model = self.network.load().to(accelerator(self.device).device)
        read = read_attack_calibration if self.under_attack else read_calibration
        calibration = read(self.network.source, model)
        return predict(
            model,
            self.files,
            self.settings,
            image_size=self.network.image_size,
            calibration=calibration,
            head=read_voter(self.network.source, model, calibration),
            progress=progress,
        )

    def show(self, result: Any) -> None:
        """Print one row per image, and what each column guarantees."""
        predictions: tuple[Prediction, ...] = result.predictions
        show_table([self._row(prediction) for prediction in predictions])
        if self.settings.sigma is not None:
            print(
                "* L2 radius of the network in one pass. Assumes an exact average over "
                f"σ={self.settings.sigma:g}, which nothing checks."
            )
        if predictions[0].one_pass_basis is not None:
            covered = "this class" if self._own_class(predictions) else "the class†, which is predicted for it"
            print(f"† L2 radius of the average, for {covered}: {predictions[0].one_pass_basis}. 0 claims nothing.")
        if predictions[0].certified_radius is not None:
            print("‡ L2 radius of the network in one pass, proven: deterministic. 0 claims nothing.")
        if (claim := predictions[0].under_attack) is not None:
            print(
                f"§ Class and L2 radius of the average, from noisy passes, about the image before an attack within "
                f"{claim.rho:g}: {claim.basis}. For the image as received, the radius is {claim.rho:g} smaller. "
                "0 claims nothing."
            )
        if self.settings.noise_samples:
            print(
                f"The class of the average is from {self.settings.noise_samples} samples. It is wrong with probability "
                f"at most {self.settings.alpha:g}."
            )

    @staticmethod
    def _own_class(predictions: tuple[Prediction, ...]) -> bool:
        """Whether calibrated radii are for the class of the network, not for that of a head."""
        return all(prediction.one_pass_class is None for prediction in predictions)

    def _row(self, prediction: Prediction) -> dict[str, str]:
        columns = {
            "image": prediction.image,
            "class (one pass)": "–" if prediction.predicted is None else str(prediction.predicted),
            "probability": "–" if prediction.probability is None else f"{prediction.probability:.4f}",
        }
        if self.settings.sigma is not None:
            columns["L-bound*"] = f"{prediction.l_bound:.4f}"
        if prediction.one_pass_class is not None:
            columns["class†"] = str(prediction.one_pass_class)
        if prediction.one_pass_radius is not None:
            columns["radius†"] = f"{prediction.one_pass_radius:.4f}"
        if prediction.certified_radius is not None:
            columns["certified radius‡"] = f"{prediction.certified_radius:.4f}"
        if (claim := prediction.under_attack) is not None:
            columns["class§"] = "–" if claim.predicted is None else str(claim.predicted)
            columns["radius§"] = f"{claim.radius:.4f}"
        if isinstance(prediction, SampledPrediction):
            average = prediction.average_class
            columns["class of the average"] = "abstains" if average is None else str(average)
        return columns
