"""``heatsmooth attack``."""

import io
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from heatsmooth.commands.command import Command, Summary
from heatsmooth.commands.inputs import WHICH, Computing, Images, Network, Shard
from heatsmooth.commands.options import grouped
from heatsmooth.errors import require
from heatsmooth.progress import Progress, silent
from heatsmooth.results.guarantees import Subject
from heatsmooth.settings import check_at_least, check_choices, check_positive

if TYPE_CHECKING:
    import numpy as np
    from torch import Tensor, nn

    from heatsmooth.attacks import Adversarial
    from heatsmooth.data import ImageSet
    from heatsmooth.models import Classifier
    from heatsmooth.results.attacks import AttackResult, AttackResults

SHOWN = 6
"""How many of the most and of the least robust images go into the gallery."""


@dataclass(frozen=True, kw_only=True)
class AttackSettings:
    """Which attack, on what."""

    attack: Literal["pgd", "ddn"] = "ddn"
    """The attack."""
    steps: int = 20
    """Steps of the attack."""
    eps: float = 4.0
    """Largest L2 perturbation, in [0, 1] pixels."""
    top_k: int = 1
    """Succeed when the label is not among the k most probable classes."""
    loss: Literal["cross-entropy", "margin", "per-sample"] = "cross-entropy"
    """What the attack increases. Per-sample is the paper's loss of an average."""
    noise_samples: int = field(default=0, metadata={"group": "Attack the average of the network"})
    """Attack the average over this many fixed noise samples."""
    sigma: float = field(default=0.0, metadata={"group": "Attack the average of the network"})
    """Standard deviation of the noise, in [0, 1] pixels."""
    batch_size: int = field(default=100, metadata={"group": "Running"})
    """Images attacked together."""

    def __post_init__(self) -> None:
        check_choices(self)
        check_positive(self, "eps")
        check_at_least(self, 1, "steps", "top_k", "batch_size")
        check_at_least(self, 0, "noise_samples")
        averaged = self.noise_samples > 0
        require(
            not averaged or self.sigma > 0,
            f"`sigma`: expected a positive number beside `noise_samples`, got {self.sigma}",
        )
        require(
            averaged or self.loss != "per-sample", "`loss` per-sample: expected `noise_samples` beside it, got none"
        )

    @property
    def subject(self) -> Subject:
        """What is attacked."""
        return Subject.AVERAGE if self.noise_samples else Subject.NETWORK

    def adversarial(self, target: "nn.Module", images: "Tensor", labels: "Tensor") -> "Adversarial":
        """Attack these images of the target."""
        from heatsmooth.attacks import ddn, pgd

        method = pgd if self.attack == "pgd" else ddn
        return method(target, images, labels, eps=self.eps, steps=self.steps, top_k=self.top_k, loss=self.loss)

    def target(self, model: "nn.Module", seed: int) -> "nn.Module":
        """What is attacked: the network itself, or its average."""
        from heatsmooth.attacks import GaussianAverage

        if not self.noise_samples:
            return model
        return GaussianAverage(model, sigma=self.sigma, samples=self.noise_samples, seed=seed)


@dataclass(frozen=True, kw_only=True)
class AttackSummary(Summary):
    """What the attacks of a run found together. Distances are L2 in [0, 1] pixels."""

    command: str = "attack"
    asked: int
    """Images that the run is about."""
    wrong_from_the_start: int
    attacked: int
    succeeded: int
    censored: int
    """Failed attacks: their distance is beyond every other."""
    median_distance_of_attacked: float | None
    """None if more than half of the attacks failed."""
    mean_distance_of_succeeded: float | None

    @classmethod
    def of(cls, results: "AttackResults", *, out: str, asked: int, left_out: tuple[str, ...] = ()) -> "AttackSummary":
        """The summary of these attacks."""
        wrong = int(results.wrong.sum())
        return cls(
            out=out,
            asked=asked,
            subject=results.subject,
            images=len(results),
            wrong_from_the_start=wrong,
            attacked=len(results) - wrong,
            succeeded=int(results.succeeded.sum()),
            censored=int(results.failed.sum()),
            median_distance_of_attacked=results.finite_median,
            mean_distance_of_succeeded=results.mean,
            left_out=left_out or None,
        )


@dataclass(frozen=True, kw_only=True)
class Attack(Command):
    """Find adversarial images: how small an L2 perturbation breaks the network, or its Gaussian average.

    Example: heatsmooth attack --data fashion-mini --from runs/smoothed --attack ddn --images 100 --out runs/attacked
    """

    images: Images
    network: Network
    out: Path
    """Run directory; repeating the command continues it."""
    attack: AttackSettings = AttackSettings()
    shard: Shard = field(default=Shard(), metadata=WHICH)
    """Part I of N parts of the images, for job arrays."""
    computing: Computing = field(default=Computing(), metadata=grouped("Running"))

    def run(self, progress: Progress = silent) -> AttackSummary | None:
        """Attack labelled images, or this shard's part of them, into ``out``; None in a process that follows.

        Images are attacked in batches that depend on ``batch_size`` alone, and shards take whole batches. So the
        records are the same for any number of shards, processes and interruptions.
        """
        from heatsmooth.commands.sharing import finish, share_of
        from heatsmooth.device import accelerator, exact_float32
        from heatsmooth.identity import network_settings
        from heatsmooth.models import for_inference, identify
        from heatsmooth.results.attacks import AttackResults, read_attacks
        from heatsmooth.runs import Run

        images = self.images.load(self.network.size, progress=progress)
        images.known_labels()  # refuses images without labels
        model = self.network.load(images)
        processes = accelerator(self.computing.device)
        model.to(processes.device)
        first = self._checked(model, images)
        shard, part = share_of(processes, self.shard)
        settings = {
            "data": images.describe(),
            **network_settings(model=identify(model, images.shape)),
            **asdict(self.attack),
            "seed": self.computing.seed,
        }
        with exact_float32(), Run(self.out, "attack", settings, part=part) as run:
            target = self.attack.target(for_inference(model, first), self.computing.seed).eval()
            self._attack_part(target, images, shard, part, progress)
            finish(run, processes, str(settings["model"]))
        processes.wait_for_everyone()
        if not processes.is_main_process:
            return None
        results = read_attacks(self.out)
        gallery = self.out / "gallery.npz"
        if len(results) == len(images) and not gallery.exists():
            with exact_float32():
                self._save_gallery(gallery, target, images, results)
        summary = AttackResults.of(results)
        return AttackSummary.of(summary, out=str(self.out), asked=len(images), left_out=images.left_out)

    def _checked(self, model: "Classifier", images: "ImageSet") -> "Tensor":
        """The first images, after everything that can be refused beforehand is."""
        import torch

        from heatsmooth.models import check_gradient, check_independence, count_classes, device_of

        first = images.images(torch.arange(min(4, len(images)))).to(device_of(model))
        classes = count_classes(model, first)
        images.check_classes(classes)
        check_independence(model, first.repeat(4, 1, 1, 1)[:4])
        check_gradient(model, first)
        require(
            self.attack.top_k < classes, f"`top_k`: expected less than the {classes} classes, got {self.attack.top_k}"
        )
        return first

    def _attack_part(
        self, target: "nn.Module", images: "ImageSet", shard: Shard, part: str, progress: Progress
    ) -> None:
        """Record the attacks of this shard that are not recorded yet."""
        import torch

        from heatsmooth.results.attacks import read_attacks
        from heatsmooth.results.schema import to_json
        from heatsmooth.runs import Records

        done = {result.index for result in read_attacks(self.out)}
        mine = list(torch.arange(len(images)).split(min(self.attack.batch_size, len(images))))[
            shard.part - 1 :: shard.of
        ]
        finished = 0
        with Records(self.out / f"attacks{part}.jsonl") as records:
            for positions in mine:
                if not done.issuperset(images.indices[positions].tolist()):
                    for result in self._results(target, images, positions):
                        if result.index not in done:
                            records.append(to_json(result))
                finished += len(positions)
                progress("attacking", finished, sum(map(len, mine)))

    def _results(self, target: "nn.Module", images: "ImageSet", positions: "Tensor") -> "Iterator[AttackResult]":
        from heatsmooth.models import device_of
        from heatsmooth.results.attacks import AttackResult

        device = device_of(target)
        labels = images.known_labels()[positions]
        adversarial = self.attack.adversarial(target, images.images(positions).to(device), labels.to(device))
        columns = (images.indices[positions], labels, adversarial.success, adversarial.distance)
        for index, label, success, distance in zip(*(column.tolist() for column in columns), strict=True):
            yield AttackResult(
                index=index,
                label=label,
                success=success,
                distance=distance if success else None,
                norm_steps=self.attack.steps,
                subject=self.attack.subject,
            )

    def _save_gallery(self, path: Path, target: "nn.Module", images: "ImageSet", results: "list[AttackResult]") -> None:
        """Save the images with the smallest and the largest distances: clean, noisy and adversarial."""
        import numpy as np
        import torch

        from heatsmooth.models import device_of
        from heatsmooth.runs import write_atomically

        reached = sorted((r for r in results if r.distance), key=lambda r: (r.distance or 0.0, r.index))
        picked = reached[:SHOWN] + reached[max(SHOWN, len(reached) - SHOWN) :]
        if not picked:
            return
        place = {int(index): position for position, index in enumerate(images.indices.tolist())}
        positions = torch.tensor([place[result.index] for result in picked])
        device = device_of(target)
        clean, labels = images.images(positions).to(device), images.known_labels()[positions].to(device)
        adversarial = self.attack.adversarial(target, clean, labels)
        noise = torch.randn(clean.shape, generator=torch.Generator().manual_seed(0)).to(device)
        with torch.no_grad():
            before, after = (target(x).softmax(1).cpu() for x in (clean, adversarial.images))
        content = io.BytesIO()
        np.savez_compressed(
            content,
            clean=_pixels(clean),
            noisy=_pixels(clean + (self.attack.sigma or 0.25) * noise),
            adversarial=_pixels(adversarial.images),
            index=np.array([result.index for result in picked]),
            label=labels.cpu().numpy(),
            clean_class=before.argmax(1).numpy(),
            adversarial_class=after.argmax(1).numpy(),
            probability=before.max(1).values.numpy(),
            distance=adversarial.distance.cpu().numpy(),
        )
        write_atomically(path, content.getvalue())


def _pixels(x: "Tensor") -> "np.ndarray":
    """Images in [0, 1] as bytes, (images, height, width, channels)."""
    levels: np.ndarray = (x.clamp(0, 1) * 255).round().byte().permute(0, 2, 3, 1).cpu().numpy()
    return levels
