"""``heatsmooth pull``."""

import shutil
from dataclasses import dataclass, field
from pathlib import Path

from heatsmooth.commands.command import Command
from heatsmooth.commands.push import HUB, check_new
from heatsmooth.errors import require
from heatsmooth.progress import Progress, silent


@dataclass(frozen=True, kw_only=True)
class PullResult:
    """What was fetched."""

    command: str = "pull"
    out: str
    architecture: str
    classes: int
    weights: str
    """The hash of the weights, as it was published."""
    calibrated: bool
    records: tuple[str, ...]
    """Runs that came with the network, below the folder ``records``."""


@dataclass(frozen=True, kw_only=True)
class Pull(Command):
    """Fetch a network that was published with push: weights, settings, calibration, certificates and card.

    Only such data is fetched, never code. The result is a run directory, which every command takes as --from.

    Example: heatsmooth pull --from published --out runs/pulled
    """

    source: str = field(metadata={"flag": "--from"})
    """hf:OWNER/NAME, or a folder that push wrote."""
    out: Path
    """A new folder."""

    def run(self, progress: Progress = silent) -> PullResult:  # noqa: ARG002  # the hub shows its own
        """Copy the files to ``out``; weights that are not those that were published are refused."""
        from heatsmooth.models import recorded_spec
        from heatsmooth.models.checkpoint import WEIGHTS_FILE, load, model_hash, names_code
        from heatsmooth.models.published import MARKER, RECORDS, downloaded
        from heatsmooth.runs import read_json

        hub = self.source.startswith(HUB)
        folder = downloaded(self.source.removeprefix(HUB)) if hub else Path(self.source)
        require(
            (folder / MARKER).is_file() and (folder / WEIGHTS_FILE).is_file(),
            f"`source` {self.source}: expected a network that heatsmooth push wrote, got none; name another",
        )
        check_new(self.out, "out")
        weights, spec = read_json(folder / MARKER).get("weights"), recorded_spec(folder / WEIGHTS_FILE)
        require(spec is not None, f"`source` {self.source}: expected weights that state their network, got others")
        assert spec is not None
        own = weights if names_code(spec.architecture) else model_hash(load(folder))
        require(
            weights == own,
            f"`source` {self.source}: expected the published weights ({weights}), got {own}; fetch it again",
        )
        self._copy(folder, links=hub)
        return PullResult(
            out=str(self.out),
            architecture=spec.architecture,
            classes=spec.classes,
            weights=str(weights),
            calibrated=(self.out / "calibration.json").is_file(),
            records=tuple(sorted(run.name for run in (self.out / RECORDS).glob("*"))),
        )

    def _copy(self, folder: Path, *, links: bool) -> None:
        """Copy what ``push`` writes; ``links``: whether links may leave the folder, as in the cache of the hub."""
        from heatsmooth.models.published import PATTERNS

        for file in sorted({file for pattern in PATTERNS for file in folder.glob(pattern)}):
            require(
                file.is_file() and (links or file.resolve().is_relative_to(folder.resolve())),
                f"{file}: expected a file of the published folder, got a link or something else; remove it",
            )
            target = self.out / file.relative_to(folder)
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(file, target)
