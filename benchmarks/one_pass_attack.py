"""Whether calibrated radii hold for attacked images, and how much radius that costs.

    python benchmarks/one_pass_attack.py --from RUN --data cifar10 --data-root DIR --out DIR

Certifies test images, and splits them at random: some calibrate, the others are attacked within ρ. The attacker knows
the image, its certificate, the network and the calibration: everything but the noise of the passes. For each image, it
raises the mean over noise of a soft version of "this pass claims too much": the distance of the pass, in log odds, from
the level of the calibration from which on its radius is larger than that of the average. Both today's radius, from one
pass without noise, and the radius of calibrate --under-attack are attacked in this way, each with its own levels.

A claim is false if its class is not the certified one, or its radius is larger than the certified radius of the image
before the attack. Everything is kept in --out, in parts: repeating the command continues it.
"""

import argparse
import hashlib
import json
import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from heatsmooth.calibration import Calibration, calibrate
from heatsmooth.certification.noisy_passes import noisy_passes
from heatsmooth.certification.settings import Sampling, Settings
from heatsmooth.commands.certify import Certify
from heatsmooth.commands.inputs import Images, Network
from heatsmooth.errors import InputError
from heatsmooth.models import Classifier, probabilities_of
from heatsmooth.noise import mixed_seed
from heatsmooth.progress import bar
from heatsmooth.results.certificates import Certificates
from heatsmooth.results.noisy_passes import NoisyPasses
from heatsmooth.runs import provenance
from heatsmooth.under_attack import AttackCalibration, calibrate_under_attack, usual_noise

PART = 50
"""Images per file."""
Arrays = dict[str, NDArray[np.float64]]
AnyCalibration = Calibration | AttackCalibration


@dataclass(frozen=True)
class Bench:
    """What all measurements share."""

    out: Path
    model: Classifier
    images: Tensor
    """All certified images, (images, channels, height, width)."""
    certificates: Certificates
    calibrating: NDArray[np.int64]
    """Positions of the images that calibrate, …"""
    held: NDArray[np.int64]
    """… and of those that are attacked."""
    epsilon: float
    steps: int
    noise_per_step: int
    passes: int
    """Fresh noisy passes per image that measure the coverage."""
    seed: int

    def in_parts(self, name: str, positions: NDArray[np.int64], make: Callable[[NDArray[np.int64]], Arrays]) -> Arrays:
        """The arrays that ``make`` gives for these images, made part by part and kept."""
        parts = []
        for number, first in enumerate(range(0, len(positions), PART)):
            file = self.out / f"{name}-{number}.npz"
            if not file.exists():
                unfinished = file.with_suffix(".unfinished.npz")
                np.savez(unfinished, **make(positions[first : first + PART]))  # type: ignore[arg-type]
                unfinished.rename(file)
            with np.load(file) as stored:
                parts.append(dict(stored))
        return {key: np.concatenate([part[key] for part in parts]) for key in parts[0]}


def calibration_passes(bench: Bench, noise: float, count: int) -> NoisyPasses:
    """Noisy passes of the images that calibrate."""

    def make(positions: NDArray[np.int64]) -> Arrays:
        seed = mixed_seed(bench.seed, "calibration", int(positions[0])) % 2**31
        made = noisy_passes(bench.model, bench.images[positions], noise=noise, count=count, seed=seed)
        return {"classes": made.classes.astype(np.float64), "doubts": made.doubts}

    arrays = bench.in_parts(f"passes-{noise:g}-{count}", bench.calibrating, make)
    classes = bench.certificates.counts.shape[1]
    return NoisyPasses(
        classes=arrays["classes"].astype(np.int64), doubts=arrays["doubts"], number_of_classes=classes, noise=noise
    )


def part_of(certificates: Certificates, positions: NDArray[np.int64]) -> Certificates:
    """The certificates at these positions, in this order."""
    chosen = {
        name: value[positions]
        for name, value in vars(certificates).items()
        if isinstance(value, np.ndarray) and len(value) == len(certificates)
    }
    return Certificates(**{**vars(certificates), **chosen})


def thresholds(calibration: AnyCalibration, certified: NDArray[np.int64], radii: NDArray[np.float64]) -> Tensor:
    """The log odds from which on a pass claims too much, (images, classes); infinite where none does."""
    doubts, claimed = np.array([*calibration.steps, (0.0, math.inf)]).T
    odds = np.append(np.log1p(-doubts[:-1]) - np.log(doubts[:-1]), math.inf)
    limits = np.full((len(radii), calibration.classes), odds[0])
    limits[np.arange(len(radii)), certified] = odds[np.searchsorted(claimed, radii, side="right")]
    return torch.from_numpy(limits).float()


def attacked(
    bench: Bench,
    images: Tensor,
    limits: Tensor,
    runner_up: float,
    *,
    rho: float,
    noise: float,
    generator: torch.Generator,
) -> Tensor:
    """Images within ``rho`` whose passes claim too much more often; ``noise`` 0 for passes without noise.

    ``limits``: see ``thresholds``. ``runner_up``: its weight in the doubt.
    """
    copies, step = bench.noise_per_step if noise else 1, 4 * rho / bench.steps
    limits = limits.repeat_interleave(copies, 0)
    x = images.clone()
    for _ in range(bench.steps):
        rows = x.repeat_interleave(copies, 0)
        rows = rows + noise * torch.randn(rows.shape, generator=generator)
        rows.requires_grad_(True)
        logits = bench.model(rows)
        others = logits[:, None, :].expand(-1, logits.shape[1], -1)
        others = others.masked_fill(torch.eye(logits.shape[1], dtype=torch.bool), -math.inf)
        share, others = others.amax(2) - others.logsumexp(2), others.logsumexp(2)  # the log of the runner-up's share
        excess = (logits - others - runner_up * share - limits).amax(1).clamp(-30, 30)
        (slope,) = torch.autograd.grad((excess.sigmoid() + 0.05 * excess).sum(), rows)
        slope = slope.view(len(x), copies, *x.shape[1:]).mean(1)
        with torch.no_grad():
            x = x + step * F.normalize(slope.flatten(1)).view_as(x)
            apart = (x - images).flatten(1)
            x = images + (apart * (rho / apart.norm(dim=1, keepdim=True).clamp_min(1e-12)).clamp(max=1)).view_as(x)
            x = x.clamp(0, 1)
    return x


def answers(bench: Bench, x: Tensor, *, noise: float, generator: torch.Generator) -> NDArray[np.float64]:
    """Probabilities of fresh noisy passes, (images, passes, classes); of one pass if there is no noise."""
    found = []
    with torch.inference_mode():
        for image in x:
            count = bench.passes if noise else 1
            rows = image + noise * torch.randn(count, *image.shape, generator=generator)
            found.append(probabilities_of(bench.model(rows)).numpy())
    return np.stack(found)


@dataclass(frozen=True)
class Found:
    """How the claims about the held-out images compare with their certificates."""

    coverage: float
    error: float
    """Standard error of the coverage over images."""
    claimed: float
    """Share of the ACR of full certification that is claimed, …"""
    backed: float
    """… and the same with 0 where the claim is false."""


def compared(bench: Bench, calibration: AnyCalibration, probabilities: NDArray[np.float64]) -> Found:
    """Class and radius from each group of as many passes as the calibration takes, against the certificates."""
    images, count, classes = probabilities.shape
    if isinstance(calibration, Calibration):
        predicted, radii = probabilities.argmax(2), calibration.radius(probabilities)
    else:
        groups = count // calibration.passes
        grouped = probabilities[:, : groups * calibration.passes].reshape(-1, calibration.passes, classes)
        claims = calibration.claims(grouped)
        predicted, radii = claims.classes.reshape(images, groups), claims.radii.reshape(images, groups)
    held = part_of(bench.certificates, bench.held)
    same = predicted == held.classes[:, None]
    true = (radii == 0) | (same & (radii <= held.radii[:, None]))
    right = predicted == held.known_labels[:, None]
    acr = held.average_certified_radius
    share = true.mean(1)
    return Found(
        coverage=float(share.mean()),
        error=float(share.std() / math.sqrt(images)),
        claimed=float((radii * right).mean()) / acr,
        backed=float((radii * right * true).mean()) / acr,
    )


def measured(bench: Bench, name: str, calibration: AnyCalibration, *, rho: float) -> Found:
    """What the calibration claims about the held-out images if they are attacked within ``rho``."""
    noise = calibration.noise if isinstance(calibration, AttackCalibration) else 0.0
    held = part_of(bench.certificates, bench.held)
    place = {int(position): row for row, position in enumerate(bench.held)}

    def make(positions: NDArray[np.int64]) -> Arrays:
        rows = np.array([place[int(position)] for position in positions])
        generator = torch.Generator().manual_seed(mixed_seed(bench.seed, name, int(positions[0])))
        x = bench.images[positions]
        if rho > 0:
            limits = thresholds(calibration, held.classes[rows], held.radii[rows])
            x = attacked(bench, x, limits, calibration.runner_up, rho=rho, noise=noise, generator=generator)
        return {"probabilities": answers(bench, x, noise=noise, generator=generator)}

    attacked_one = hashlib.sha256(json.dumps(calibration.to_json(), sort_keys=True).encode()).hexdigest()[:8]
    parts = bench.in_parts(f"{name}-{attacked_one}", bench.held, make)
    return compared(bench, calibration, parts["probabilities"])


def line(name: str, plain: Found, attacks: dict[float, Found]) -> None:
    """One row of the output."""
    shown = "  ".join(f"{found.coverage:.3f} ± {found.error:.3f}" for found in attacks.values())
    print(
        f"  {name:34} {plain.coverage:.3f} ± {plain.error:.3f}  {shown}  claims {plain.claimed:.3f}, backed "
        f"{plain.backed:.3f} of the ACR",
        flush=True,
    )


def prepared(options: argparse.Namespace) -> Bench:
    """Certify, and split the images."""
    total = options.calibration + options.images
    network = Network(source=options.source, model=options.model)
    data = Images(data=options.data, data_root=options.data_root, stride=options.stride, count=total)
    settings = Settings(options.sigma, n=options.n, n0=options.n0)
    with bar() as progress:
        certify = Certify(
            images=data, network=network, settings=settings, out=options.out / "certified", sampling=Sampling(seed=0)
        )
        certify.run(progress)
    certificates = Certificates.read(options.out / "certified")
    loaded = data.load(None)
    order = np.random.default_rng(options.seed).permutation(total)
    return Bench(
        out=options.out,
        model=network.load(loaded).requires_grad_(False).eval(),
        images=loaded.images(torch.arange(len(loaded))),
        certificates=certificates,
        calibrating=np.sort(order[: options.calibration]),
        held=np.sort(order[options.calibration :]),
        epsilon=options.epsilon,
        steps=options.steps,
        noise_per_step=options.noise_per_step,
        passes=options.fresh,
        seed=options.seed,
    )


def parsed() -> argparse.Namespace:
    """The options."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--from", dest="source", type=Path, required=True)
    parser.add_argument("--model")
    parser.add_argument("--data", default="fashion-mini")
    parser.add_argument("--data-root", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--sigma", type=float, default=0.25)
    parser.add_argument("--n", type=int, default=500)
    parser.add_argument("--n0", type=int, default=50)
    parser.add_argument("--stride", type=int, default=8)
    parser.add_argument("--calibration", type=int, default=700, help="images that calibrate")
    parser.add_argument("--images", type=int, default=500, help="images that are attacked")
    parser.add_argument("--epsilon", type=float, default=0.05)
    parser.add_argument("--rho", default="0.0625,0.125,0.25", help="distances of the attacker")
    parser.add_argument("--passes", default="1,2,5,10", help="noisy passes per image")
    parser.add_argument("--attacked-passes", default="1,5", help="those of them whose radius is attacked")
    parser.add_argument("--noise", type=float, help="standard deviation of the noise of the passes (default: usual)")
    parser.add_argument("--noise-samples", type=int, default=500, help="noisy passes per calibration image")
    parser.add_argument("--fresh", type=int, default=50, help="noisy passes per attacked image")
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--noise-per-step", type=int, default=4)
    parser.add_argument("--seed", type=int, default=0)
    return parser.parse_args()


def main() -> None:
    """Measure and print."""
    options = parsed()
    torch.set_num_threads(1)
    bench = prepared(options)
    distances = [float(rho) for rho in options.rho.split(",")]
    facts = provenance()
    print(
        f"{facts['hardware']['cpu']}, torch {facts['versions']['torch']}, commit {facts['commit']}, seed {bench.seed}"
    )
    print(
        f"{options.data}, {options.source}, σ={options.sigma:g}, n={options.n}, ε={bench.epsilon:g}: "
        f"{len(bench.calibrating)} images calibrate, {len(bench.held)} others are attacked, {bench.steps} steps of "
        f"{bench.noise_per_step} noises"
    )
    print(f"  {'radius':34} coverage as they are, attacked within {', '.join(f'{rho:g}' for rho in distances)}")
    certificates = part_of(bench.certificates, bench.calibrating)
    today = calibrate(certificates, epsilon=bench.epsilon, seed=bench.seed)
    plain = measured(bench, "today", today, rho=0.0)
    line("one pass, not under attack", plain, {r: measured(bench, f"today-{r:g}", today, rho=r) for r in distances})
    for rho in distances:
        for votes in [int(text) for text in options.passes.split(",")]:
            noise = options.noise or usual_noise(rho, options.sigma, votes)
            passes = calibration_passes(bench, noise, options.noise_samples)
            try:
                robust = calibrate_under_attack(
                    certificates, passes, rho=rho, epsilon=bench.epsilon, votes=votes, seed=bench.seed
                )
            except InputError as error:
                print(f"  ρ={rho:g}, {votes} passes, noise {noise:g}: {error}")
                continue
            plain = measured(bench, f"plain-{noise:g}", robust, rho=0.0)
            name = f"robust-{noise:g}-{rho:g}-{votes}"
            chosen = str(votes) in options.attacked_passes.split(",")
            attacks = {rho: measured(bench, name, robust, rho=rho)} if chosen else {}
            line(f"ρ={rho:g}, {robust.needed} of {votes} passes, noise {noise:g}", plain, attacks)


if __name__ == "__main__":
    main()
