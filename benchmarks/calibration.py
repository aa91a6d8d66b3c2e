"""How much of the certified radius one forward pass keeps, and whether it covers, over random splits of real images.

    python benchmarks/calibration.py CERTIFICATES_DIR [--epsilon 0.05] [--splits 200] [--one-pass OUT]
        [--head CALIBRATED_DIR --data-root DATA [--model NAME]]

In each split a quarter of the images is held out, the rest calibrates. Beside it a crude variant: the mean radius
of each of five bins of the one-pass margin, less one conformal shift.

With --head, the head of a network calibrated with --learn-votes is measured too, on the same splits. It was learnt from
other images, once.

With --one-pass, every second image calibrates, and the one-pass radii of the others are stored as a run, for
`heatsmooth report`. No network is needed: its one-pass probabilities are in the certificates. Certificates with
--n-wrong are taken too. Their radii are smaller where the class is wrong, so that the calibrated radii are too.
"""

import argparse
import math
import statistics
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from heatsmooth.calibration import Calibration, calibrate, coverage
from heatsmooth.results.certificates import Certificate, Certificates, read_certificates
from heatsmooth.results.one_pass import RADII_FILE, OnePassResult
from heatsmooth.results.schema import to_json
from heatsmooth.runs import Records, Run, provenance, read_json
from heatsmooth.statistics.bounds import Floats
from heatsmooth.statistics.radii import round_down

HELD_OUT = 0.25
BINS = 5


class FiveBins(Calibration):
    """The crude variant: its ``steps`` are the upper end of the margin and the radius of each bin."""

    def radius(self, probabilities: Any) -> Floats:
        """The radius of the bin the margin is in."""
        ends, radii = np.array(self.steps).T
        return np.asarray(radii[np.searchsorted(ends[:-1], margin(probabilities), side="right")])


def margin(probabilities: Any) -> Floats:
    """v₍₁₎ − v₍₂₎."""
    second, first = np.sort(np.asarray(probabilities))[..., -2:].T
    return np.asarray(first - second)


def five_bins(certificates: Certificates, *, epsilon: float, seed: int) -> FiveBins:
    """Half of the images give the mean radius h of each bin, the others the shift q: max(0, h − q)."""
    radii = np.where(certificates.classes == certificates.clean_classes, certificates.radii, 0.0)
    margins = margin(certificates.clean_probabilities)
    fit, rest = np.split(np.random.default_rng(seed).permutation(len(radii)), [len(radii) // 2])
    ends = np.quantile(margins[fit], np.arange(1, BINS) / BINS)
    bin_of = np.searchsorted(ends, margins, side="right")
    means = np.array([radii[fit][bin_of[fit] == number].mean() for number in range(BINS)])
    excess = np.sort(means[bin_of[rest]] - radii[rest])
    shift = excess[math.ceil((len(rest) + 1) * (1 - epsilon) - 1e-9) - 1]
    steps = tuple((float(end), float(max(0, mean - shift))) for end, mean in zip([*ends, 1], means, strict=True))
    alpha = certificates.basis.alpha or 0.0
    return FiveBins(steps, 0, epsilon, alpha, certificates.sigma, len(fit), len(rest), seed)


def over_splits(rows: list[Certificate], make: Callable[..., Calibration], splits: int, epsilon: float) -> None:
    """Calibrate, hold out, and print what the splits say together."""
    held_out = round(HELD_OUT * len(rows))
    found, begin = [], time.perf_counter()
    for seed in range(splits):
        order = np.random.default_rng(seed).permutation(len(rows)).tolist()
        rest, held = (Certificates.of(rows[i] for i in part) for part in (order[held_out:], order[:held_out]))
        found.append(coverage(make(rest, seed=splits + seed, epsilon=epsilon), held))
    spent = (time.perf_counter() - begin) / splits
    figures = {key: [float(getattr(f, key)) for f in found] for key in ("coverage", "kept", "claimed")}
    mean, sd = ({key: of(values) for key, values in figures.items()} for of in (statistics.mean, statistics.stdev))
    below = sum(value < 1 - epsilon for value in figures["coverage"]) / splits
    print(f"  held-out coverage  {mean['coverage']:.4f} ± {sd['coverage']:.4f}, {below:.0%} of the splits below")
    print(f"  ACR claimed        {mean['claimed']:.3f} ± {sd['claimed']:.3f} of full certification's")
    print(
        f"  ACR backed         {mean['kept']:.3f} ± {sd['kept']:.3f}, with 0 where the radius exceeds the certificate"
    )
    print(f"  radius above 0     {statistics.mean(f.positive for f in found) / held_out:.3f} of the images")
    print(f"  {1e3 * spent:.0f} ms a calibration")


def store_one_pass(rows: list[Certificate], settings: dict[str, Any], epsilon: float, out: Path) -> None:
    """Calibrate on every second image, and store the one-pass radii of the others."""
    held_out = rows[1::2]
    calibration = calibrate(Certificates.of(rows[::2]), epsilon=epsilon, seed=0)
    others = Certificates.of(held_out)
    data: dict[str, Any] = settings["data"]
    rule = f"{data['rule']}; every 2. from the second"
    described: dict[str, Any] = {
        "data": {"name": data["name"], "images": len(held_out), "shape": data["shape"], "rule": rule},
        **{name: settings[name] for name in ("model", "networks") if name in settings},
        "calibration": calibration.to_json(),
    }
    with Run(out, "one-pass", described) as run:
        with Records(out / RADII_FILE) as records:
            records.keep(lambda _: False)
            for row, radius in zip(held_out, calibration.radius(others.clean_probabilities).tolist(), strict=True):
                result = OnePassResult(
                    index=row.index,
                    label=row.label,
                    predicted=row.clean_class,
                    radius=round_down(radius, 9),
                    abstain=radius == 0,
                    subject=calibration.subject,
                    basis=calibration.basis,
                )
                records.append(to_json(result))
        run.update(status="done", model_hash=settings["model"])
    print(f"{out}: calibrated on {len(rows) - len(held_out)} images")
    print(f"  {coverage(calibration, others)}")


def with_head(rows: list[Certificate], arguments: argparse.Namespace) -> list[Certificate]:
    """The certificates beside the probabilities that the head predicts from one pass."""
    from heatsmooth.commands.calibrated import read_calibration, read_voter
    from heatsmooth.commands.certified import CertifiedRun
    from heatsmooth.commands.voting import Again, certified_images, predicted_votes
    from heatsmooth.models import load
    from heatsmooth.progress import silent

    model = load(arguments.head, model=arguments.model)
    head = read_voter(arguments.head, model, read_calibration(arguments.head, model))
    assert head is not None, "--head: expected a network calibrated with --learn-votes"
    certified = CertifiedRun.read(arguments.certificates, "certificates")
    images = certified_images(
        certified, [row.index for row in rows], Again(data_root=arguments.data_root, device="cpu"), silent
    )
    votes = predicted_votes(model, head, images, "cpu")
    return [
        replace(row, clean_probabilities=tuple(shares.tolist()), clean_class=int(shares.argmax()))
        for row, shares in zip(rows, votes, strict=True)
    ]


def print_agreement(rows: list[Certificate]) -> None:
    """How often one pass has the class of the average, and how accurate both are."""
    certificates = Certificates.of(rows)
    one_pass, average, labels = certificates.clean_classes, certificates.average_classes, certificates.known_labels
    print(f"  agreement          {(one_pass == average).mean():.3f} of one pass and average")
    print(
        f"  accuracy           {(one_pass == labels).mean():.3f} of one pass, {(average == labels).mean():.3f} average"
    )


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("certificates", type=Path)
    parser.add_argument("--epsilon", type=float, default=0.05)
    parser.add_argument("--splits", type=int, default=200)
    parser.add_argument("--one-pass", type=Path, help="only store one-pass radii here, as a run")
    parser.add_argument("--head", type=Path)
    parser.add_argument("--model")
    parser.add_argument("--data-root", type=Path)
    arguments = parser.parse_args()
    rows = read_certificates(arguments.certificates)
    run = read_json(sorted(arguments.certificates.glob("run*.json"))[0])
    if arguments.one_pass:
        store_one_pass(rows, run["settings"], arguments.epsilon, arguments.one_pass)
        return
    made = run["settings"]["certificate"]
    facts = provenance()
    print(f"{facts['hardware']['cpu']}, numpy {facts['versions']['numpy']}, commit {facts['commit']}")
    print(f"{run['settings']['data']['name']}, model {run['settings']['model']}, {len(rows)} images, n={made['n']}")
    print(f"ε={arguments.epsilon:g}, {arguments.splits} splits, {HELD_OUT:.0%} held out")
    print("heatsmooth calibrate")
    over_splits(rows, calibrate, arguments.splits, arguments.epsilon)
    print("the same without the runner-up")
    over_splits(rows, partial(calibrate, runner_up=0.0), arguments.splits, arguments.epsilon)
    print_agreement(rows)
    if arguments.head is not None:
        print("heatsmooth calibrate --learn-votes")
        headed = with_head(rows, arguments)
        over_splits(headed, calibrate, arguments.splits, arguments.epsilon)
        print_agreement(headed)
    print(f"{BINS} bins of the margin and a shift")
    over_splits(rows, five_bins, arguments.splits, arguments.epsilon)


if __name__ == "__main__":
    main()
