"""``heatsmooth push``."""

import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from heatsmooth.commands.command import Command
from heatsmooth.commands.inputs import Network
from heatsmooth.errors import InputError, first_line, require
from heatsmooth.progress import Progress, silent
from heatsmooth.version import VERSION

if TYPE_CHECKING:
    from heatsmooth.models import Classifier
    from heatsmooth.reporting.card import CardNetwork

HUB = "hf:"
COPIED = ("certificates*.jsonl", "one_pass.jsonl", "attacks*.jsonl", "metrics.jsonl", "audit.json")
"""Records of a run directory that are published as they are, beside ``run*.json``."""


@dataclass(frozen=True, kw_only=True)
class PushResult:
    """What was published."""

    command: str = "push"
    to: str
    weights: str
    """The hash of the weights."""
    files: int
    bytes: int
    url: str | None = None
    """Of the repository on the hub."""


@dataclass(frozen=True, kw_only=True)
class Push(Command):
    """Publish a network in a folder or on the Hugging Face hub, with its records and a model card.

    The card is written from the records: what was done, clean and certified accuracy, and what is guaranteed.

    Example: heatsmooth push --from runs/smoothed --records runs/certified --to published
    """

    network: Network
    to: str
    """A new folder, or hf:OWNER/NAME."""
    records: tuple[str, ...] = ()
    """Other runs about this network to publish, as runs/certified,runs/audited."""
    license: str | None = None
    """License of the network, as apache-2.0."""
    private: bool = False
    """Make a new repository of the hub private."""

    def run(self, progress: Progress = silent) -> PushResult:  # noqa: ARG002  # it takes no time
        """Write the folder, and upload it if ``to`` is on the hub."""
        on_hub = self.to.startswith(HUB)
        if not on_hub:
            check_new(Path(self.to), "to")
        model = self.network.load()
        with tempfile.TemporaryDirectory() as scratch:
            staged = Path(scratch) / "network"
            weights = self._write(model, staged)
            if on_hub:
                return self._result(staged, weights, self._upload(staged))
            shutil.copytree(staged, self.to, dirs_exist_ok=True)
        return self._result(Path(self.to), weights)

    def _result(self, folder: Path, weights: str, url: str | None = None) -> PushResult:
        sizes = [file.stat().st_size for file in folder.rglob("*") if file.is_file()]
        return PushResult(to=self.to, weights=weights, files=len(sizes), bytes=sum(sizes), url=url)

    def _write(self, model: "Classifier", folder: Path) -> str:
        """Everything that is published, into ``folder``; the hash of the weights."""
        from heatsmooth.calibration import Calibration
        from heatsmooth.commands.calibrated import CALIBRATION_FILE, read_calibration, read_voter
        from heatsmooth.models import model_hash, save
        from heatsmooth.models.checkpoint import WEIGHTS_FILE
        from heatsmooth.models.published import MARKER, RECORDS
        from heatsmooth.models.votes import VOTES_FILE, save_voter
        from heatsmooth.reporting.card import card
        from heatsmooth.reporting.sources import read_sources
        from heatsmooth.runs import write_atomically, write_json

        weights, source = model_hash(model), self.network.source
        calibration: Calibration | None = read_calibration(source, model)
        head = read_voter(source, model, calibration)
        runs = [Path(record) for record in self.records]
        recorded = source.is_dir() and (source / "run.json").is_file()
        for run in runs:
            _check_about(run, weights)
        folder.mkdir(parents=True, exist_ok=True)
        save(model, folder / WEIGHTS_FILE)
        if recorded:
            _copy_run(source, folder, ("metrics.jsonl",))
        if calibration is not None:
            write_json(folder / CALIBRATION_FILE, calibration.to_json())
        if head is not None:
            save_voter(head, folder / VOTES_FILE)
        for name, run in zip(_names(runs), runs, strict=True):
            _copy_run(run, folder / RECORDS / name, COPIED)
        facts = {"format": 1, "heatsmooth": VERSION, "weights": weights, "network": model.spec.describe()}
        write_json(folder / MARKER, facts)
        records = read_sources([folder])
        broken = next((f"{note.name}: {note.reason}" for note in records.skipped if recorded or runs), None)
        require(broken is None, f"`records`: expected records that can be read, got {broken}")
        text = card(self._about(model, weights), records, calibration)
        write_atomically(folder / "README.md", text.encode())
        return weights

    def _about(self, model: "Classifier", weights: str) -> "CardNetwork":
        from heatsmooth.models.checkpoint import names_code
        from heatsmooth.reporting.card import CardNetwork

        spec, name = model.spec, self.to.removeprefix(HUB).rstrip("/").rpartition("/")[2]
        return CardNetwork(
            title=name,
            source=self.to if self.to.startswith(HUB) else name,
            architecture=spec.architecture,
            code=names_code(spec.architecture),
            classes=spec.classes,
            channels=spec.channels,
            size=spec.size,
            mean=spec.mean,
            std=spec.std,
            weights=weights,
            license=self.license,
        )

    def _upload(self, folder: Path) -> str:
        """Upload the folder with the client of the hub; the address of the repository."""
        from heatsmooth.models.published import client

        name = self.to.removeprefix(HUB)
        hub = client(self.to)
        try:
            made = hub.create_repo(name, private=self.private, exist_ok=True)
            hub.upload_folder(
                repo_id=name, folder_path=str(folder), commit_message=f"Publish with heatsmooth {VERSION}"
            )
        except (OSError, ValueError) as error:
            raise InputError(
                f"`to` {self.to}: expected a repository that you may write to, got {first_line(error)}; "
                "log in with: hf auth login"
            ) from None
        return str(made)


def check_new(folder: Path, argument: str) -> None:
    """Refuse a folder that holds anything: nothing is ever replaced."""
    used = folder.exists() and (not folder.is_dir() or any(folder.iterdir()))
    require(not used, f"`{argument}` {folder}: expected a new folder, got one that is in use; name another")


def _check_about(run: Path, weights: str) -> None:
    """Refuse a run that is not finished, or is about another network."""
    from heatsmooth.results.run_info import RunInfo

    info, _ = RunInfo.read_directory(run)
    require(info.done, f"`records` {run}: expected a finished run, got status {info.status}; finish it")
    require(
        info.network == weights,
        f"`records` {run}: expected a run about this network ({weights}), got one about {info.network}; leave it out",
    )


def _names(runs: list[Path]) -> list[str]:
    """A folder name for each run: its own, with a number where two are the same."""
    names = [run.resolve().name for run in runs]
    return [name if names.count(name) == 1 else f"{name}-{place}" for place, name in enumerate(names, start=1)]


def _copy_run(run: Path, to: Path, patterns: tuple[str, ...]) -> None:
    """Copy the records of a run, without its command line, which may hold names of your directories."""
    from heatsmooth.runs import read_json, write_json

    to.mkdir(parents=True, exist_ok=True)
    for file in run.glob("run*.json"):
        write_json(to / file.name, {name: value for name, value in read_json(file).items() if name != "arguments"})
    for pattern in patterns:
        for file in run.glob(pattern):
            shutil.copyfile(file, to / file.name)
