"""``attack``: adversarial distances, image by image, in a run directory that can be continued and shared."""

import io
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

from heatsmooth.attacks import LOSSES, Adversarial, GaussianAverage, ddn, pgd
from heatsmooth.data import ImageSet
from heatsmooth.device import PRECISION, accelerator, exact_float32
from heatsmooth.errors import require
from heatsmooth.identity import network_settings
from heatsmooth.models import check_gradient, check_independence, count_classes, device_of, for_inference, identify
from heatsmooth.progress import Progress, silent
from heatsmooth.results.attacks import AttackResult, AttackResults, read_attacks
from heatsmooth.results.guarantees import Subject
from heatsmooth.results.schema import to_json
from heatsmooth.runs import Records, Run, write_atomically
from heatsmooth.workflows.inputs import Images, Network, left_out
from heatsmooth.workflows.sharing import share_of

SHOWN = 6
"""How many of the most and of the least robust images go into the gallery."""


@dataclass(frozen=True)
class Attack:
    """Which attack, on what."""

    attack: Literal["pgd", "ddn"] = "ddn"
    steps: int = 20
    eps: float = 4.0
    """No perturbation is larger, L2 in [0, 1] pixels."""
    top_k: int = 1
    """Succeeds when the label is not among the k most probable."""
    loss: str = "cross-entropy"
    noise_samples: int = 0
    """0: attack the network; otherwise its average over so many fixed noise draws."""
    sigma: float = 0.0
    batch_size: int = 100
    """Images attacked together."""

    def __post_init__(self) -> None:
        require(self.attack in ("pgd", "ddn"), f"--attack: expected pgd or ddn, got {self.attack!r}")
        require(self.loss in LOSSES, f"--loss: expected {', '.join(LOSSES)}, got {self.loss!r}")
        require(self.steps > 0, f"--steps: expected at least 1, got {self.steps}")
        require(self.eps > 0, f"--eps: expected a positive radius, got {self.eps}")
        require(self.top_k > 0, f"--top-k: expected at least 1, got {self.top_k}")
        require(self.batch_size > 0, f"--batch-size: expected at least 1, got {self.batch_size}")
        require(self.noise_samples >= 0, f"--noise-samples: expected 0 or more, got {self.noise_samples}")
        averaged = self.noise_samples > 0
        require(
            not averaged or self.sigma > 0,
            f"--sigma: expected a positive number beside --noise-samples, got {self.sigma}",
        )
        require(
            averaged or self.loss != "per-sample", "--loss per-sample: expected --noise-samples beside it, got none"
        )

    @property
    def subject(self) -> Subject:
        """What is attacked."""
        return Subject.AVERAGE if self.noise_samples else Subject.NETWORK

    def of(self, model: nn.Module, images: Tensor, labels: Tensor) -> Adversarial:
        """Attack these images of ``model``, which must be what ``target`` gave."""
        if self.attack == "pgd":
            return pgd(model, images, labels, eps=self.eps, steps=self.steps, top_k=self.top_k, loss=self.loss)
        return ddn(model, images, labels, eps=self.eps, steps=self.steps, top_k=self.top_k, loss=self.loss)

    def target(self, model: nn.Module, seed: int) -> nn.Module:
        """The network itself, or its average."""
        if not self.noise_samples:
            return model
        return GaussianAverage(model, sigma=self.sigma, samples=self.noise_samples, seed=seed)


@exact_float32()
def attack_run(
    *,
    network: Network,
    images: Images,
    attack: Attack,
    out: Path,
    shard: tuple[int, int] = (1, 1),
    seed: int = 0,
    device: str | None = None,
    progress: Progress = silent,
) -> dict[str, Any] | None:
    """Attack labelled images, or this shard's part of them, into ``out``; a summary, or None in a process that follows.

    Images are attacked in batches that depend on nothing but ``batch_size``, and shards take whole batches, so the
    records are the same for any number of shards, processes and interruptions.
    """
    chosen = images.load(network.side, progress=progress)
    chosen.known_labels()  # refuses images without labels
    model = network.load(chosen)
    processes = accelerator(device)
    model.to(processes.device)
    first = chosen.images(torch.arange(min(4, len(chosen)))).to(processes.device)
    count = count_classes(model, first)
    chosen.check_classes(count)
    check_independence(model, first.repeat(4, 1, 1, 1)[:4])
    check_gradient(model, first)
    require(attack.top_k < count, f"--top-k: expected less than the {count} classes, got {attack.top_k}")
    shard, part = share_of(processes, shard)
    network_facts = network_settings(model=identify(model, chosen.shape))
    identity = {"data": chosen.describe(), **network_facts, **asdict(attack), "seed": seed}
    target = attack.target(for_inference(model, first), seed).eval()
    with Run(out, "attack", identity, part=part) as run:
        done = {result.index for result in read_attacks(out)}
        mine = list(torch.arange(len(chosen)).split(attack.batch_size))[shard[0] - 1 :: shard[1]]
        finished = 0
        with Records(out / f"attacks{part}.jsonl") as records:
            for positions in mine:
                todo = [i for i in positions.tolist() if int(chosen.indices[i]) not in done]
                if todo:
                    for result in _attacked(target, chosen, positions, attack):
                        if result.index not in done:
                            records.append(to_json(result))
                finished += len(positions)
                progress("attacking", finished, sum(map(len, mine)))
        how = {"device": processes.device.type, "processes": processes.num_processes, "precision": PRECISION}
        run.update(status="done", model_hash=identity["model"], **how)
    processes.wait_for_everyone()
    if not processes.is_main_process:
        return None
    results = read_attacks(out)
    gallery = out / "gallery.npz"
    if len(results) == len(chosen) and not gallery.exists():
        _save_gallery(gallery, target, chosen, results, attack)
    return {
        "command": "attack",
        "out": str(out),
        "asked": len(chosen),
        "subject": attack.subject,
        **statistics(AttackResults.of(results)),
        **left_out(chosen),
    }


def _attacked(target: nn.Module, chosen: ImageSet, positions: Tensor, attack: Attack) -> Iterable[AttackResult]:
    device = device_of(target)
    labels = chosen.known_labels()[positions]
    found = attack.of(target, chosen.images(positions).to(device), labels.to(device))
    rows = zip(
        chosen.indices[positions].tolist(),
        labels.tolist(),
        found.success.tolist(),
        found.distance.tolist(),
        strict=True,
    )
    for index, label, success, distance in rows:
        yield AttackResult(
            index=index,
            label=label,
            success=success,
            distance=distance if success else None,
            norm_steps=attack.steps,
            subject=attack.subject,
        )


def statistics(results: AttackResults) -> dict[str, int | float | None]:
    """Distances of the images that were right from the start. A failed attack is censored: beyond every distance."""
    wrong = int(results.wrong.sum())
    return {
        "images": len(results),
        "wrong_from_the_start": wrong,
        "attacked": len(results) - wrong,
        "succeeded": int(results.succeeded.sum()),
        "censored": int(results.failed.sum()),
        "median_distance_of_attacked": results.finite_median,
        "mean_distance_of_succeeded": results.mean,
    }


def _save_gallery(path: Path, target: nn.Module, chosen: ImageSet, results: list[AttackResult], attack: Attack) -> None:
    """The images with the smallest and the largest distances: clean, noisy and adversarial, for people to look at."""
    reached = sorted((r for r in results if r.distance), key=lambda r: (r.distance or 0.0, r.index))
    picked = reached[:SHOWN] + reached[max(SHOWN, len(reached) - SHOWN) :]
    if not picked:
        return
    place = {int(index): position for position, index in enumerate(chosen.indices.tolist())}
    positions = torch.tensor([place[result.index] for result in picked])
    device = device_of(target)
    clean, labels = chosen.images(positions).to(device), chosen.known_labels()[positions].to(device)
    found = attack.of(target, clean, labels)
    noise = torch.randn(clean.shape, generator=torch.Generator().manual_seed(0)).to(device)
    with torch.no_grad():
        before, after = (target(x).softmax(1).cpu() for x in (clean, found.images))

    def pixels(x: Tensor) -> np.ndarray:
        levels: np.ndarray = (x.clamp(0, 1) * 255).round().to(torch.uint8).permute(0, 2, 3, 1).cpu().numpy()
        return levels

    content = io.BytesIO()
    np.savez_compressed(
        content,
        clean=pixels(clean),
        noisy=pixels(clean + (attack.sigma or 0.25) * noise),
        adversarial=pixels(found.images),
        index=np.array([result.index for result in picked]),
        label=labels.cpu().numpy(),
        clean_class=before.argmax(1).numpy(),
        adversarial_class=after.argmax(1).numpy(),
        probability=before.max(1).values.numpy(),
        distance=found.distance.cpu().numpy(),
    )
    write_atomically(path, content.getvalue())
