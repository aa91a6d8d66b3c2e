"""The audit: whether certificates are true, and whether they carry over to the network that is deployed.

A certificate covers the Gaussian average g of a network v. What is deployed is v, in one pass. The audit measures how
often the two agree and how far v is from an average, and attacks both inside their radii.
"""

from dataclasses import dataclass
from typing import Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from heatsmooth.attacks import GaussianAverage, ddn, pgd
from heatsmooth.auditing.distances import Floats, distances_of, mean_probabilities
from heatsmooth.auditing.parts import Parts, listed, unlisted
from heatsmooth.auditing.verdict import verdict
from heatsmooth.certification.certificates import certify_each
from heatsmooth.certification.sampling import Job, Sampler, drawing
from heatsmooth.certification.settings import Sampling, Settings
from heatsmooth.data import ImageSet
from heatsmooth.device import exact_float32
from heatsmooth.errors import require
from heatsmooth.models import device_of, for_inference, is_onnx
from heatsmooth.models.onnx_file import NEEDS_GRADIENTS
from heatsmooth.progress import Progress, silent
from heatsmooth.results.agreement_audit import AgreementAudit
from heatsmooth.results.audit import (
    Agreement,
    AgreementMeasures,
    Approximation,
    AuditMeasures,
    AuditResult,
    AuditSettings,
    AverageAttacks,
    Broken,
    NetworkAttacks,
    Slope,
    SurvivingFraction,
    Verdict,
    VerdictKind,
)
from heatsmooth.results.certificates import Certificate, Certificates
from heatsmooth.results.schema import from_json, to_json
from heatsmooth.statistics.bounds import predict
from heatsmooth.statistics.radii import l_bound, round_down

CERTIFIED = "certified"
SURVIVING = 0.99
"""The share of images that survive these attacks at the reported fraction of the radius."""


@exact_float32()
def audit(
    model: nn.Module,
    images: ImageSet,
    settings: AuditSettings,
    *,
    teacher: nn.Module | None = None,
    seed: int = 0,
    parts: Parts | None = None,
    progress: Progress = silent,
) -> AuditResult:
    """Test the radii of ``model`` on these images by attack.

    Labels are not needed: the audit is about predictions that change, not about correct ones.

    - ``model``: the network; logits (images, classes) from images (images, channels, height, width) in [0, 1].
    - ``images``: the images to audit it on.
    - ``settings``: noise level, samples and steps.
    - ``teacher``: the network that it was smoothed from. Its average is compared with one pass of ``model``.
    - ``seed``: of the noise.
    - ``parts``: what an interrupted audit of the same things had finished.
    - ``progress``: called with what is done, how far it is, and how far it goes.
    """
    require(not is_onnx(model), f"{NEEDS_GRADIENTS}, or use audit_agreement")
    work, certified = _started(model, images, settings, seed, parts, progress)
    attacked = _attack_network(work, certified)
    measures = AuditMeasures(
        **vars(_agreement(work, certified, teacher)),
        average_attacks=_attack_average(work, certified),
        network_attacks=_network_attacks(attacked, certified, settings.noise_level),
        lipschitz=_slope_ratio(attacked, settings.noise_level),
    )
    return AuditResult(**vars(measures), verdict=verdict(measures))


@exact_float32()
def audit_agreement(
    model: nn.Module,
    images: ImageSet,
    settings: AuditSettings,
    *,
    teacher: nn.Module | None = None,
    seed: int = 0,
    parts: Parts | None = None,
    progress: Progress = silent,
) -> AgreementAudit:
    """The part of an audit that needs no gradients, as for an ONNX file: how close one pass is to the average.

    Nothing is attacked. So the verdict is never "holds". The parameters are those of ``audit``.
    """
    work, certified = _started(model, images, settings, seed, parts, progress)
    measures = _agreement(work, certified, teacher)
    agreement = measures.agreement
    text = (
        "Nothing was attacked, because the network has no gradients: audit the one that it was exported from. "
        f"One pass agrees with the average on {agreement.count} of {agreement.images} images."
    )
    return AgreementAudit(**vars(measures), verdict=Verdict(kind=VerdictKind.CAUTION, text=text))


@dataclass(frozen=True)
class _Work:
    """The network that is audited, on what, and how."""

    model: nn.Module
    images: ImageSet
    settings: AuditSettings
    seed: int
    parts: Parts
    progress: Progress


@dataclass(frozen=True)
class _Certified:
    """Per image: probabilities in one pass and on average (images, classes), class and radius (images,)."""

    one_pass: Floats
    average: Floats
    classes: NDArray[np.int64]
    radii: Floats

    @classmethod
    def of(cls, certificates: Certificates, images: ImageSet) -> Self:
        """In the order of ``images``."""
        order = np.searchsorted(certificates.indices, images.indices.numpy())
        return cls(
            one_pass=certificates.clean_probabilities[order],
            average=certificates.average_probabilities[order],
            classes=certificates.classes[order],
            radii=certificates.radii[order],
        )

    @property
    def agrees(self) -> NDArray[np.bool_]:
        """Where one pass has the class of the average."""
        return np.asarray(self.one_pass.argmax(1) == self.classes)


def _started(
    model: nn.Module,
    images: ImageSet,
    settings: AuditSettings,
    seed: int,
    parts: Parts | None,
    progress: Progress,
) -> tuple[_Work, _Certified]:
    """The certificates of the images, and the network in its fastest form."""
    examples = images.images(torch.arange(min(4, len(images)))).to(device_of(model))
    work = _Work(for_inference(model, examples), images.without_labels(), settings, seed, parts or Parts(), progress)
    return work, _Certified.of(_certificates(model, work), images)


def _certificates(model: nn.Module, work: _Work) -> Certificates:
    """Those that are known, and those of the other images."""
    chosen = Settings(work.settings.noise_level, n=work.settings.n, alpha=work.settings.alpha)
    read = (from_json(Certificate, item, "expected a certificate", "audit again") for item in work.parts.of(CERTIFIED))
    known = {item.index: item for item in read}
    how = Sampling(seed=work.seed, means=True)
    for item in certify_each(model, work.images, chosen, how, known=known, progress=work.progress):
        work.parts.add(CERTIFIED, [item.index], to_json(item))
        known[item.index] = item
    return Certificates.of(known.values())


def _agreement(work: _Work, certified: _Certified, teacher: nn.Module | None) -> AgreementMeasures:
    """How often one pass has the class of the average, and how far their probabilities are apart."""
    settings, one_pass = work.settings, certified.one_pass
    return AgreementMeasures(
        sigma=settings.noise_level,
        alpha=settings.alpha,
        images=len(work.images),
        n=settings.n,
        seed=work.seed,
        agreement=Agreement.of(int(certified.agrees.sum()), len(work.images)),
        approximation=Approximation(
            own=distances_of(one_pass, certified.average),
            teacher=None if teacher is None else distances_of(one_pass, _teacher_average(teacher, work)),
        ),
    )


def _teacher_average(teacher: nn.Module, work: _Work) -> Floats:
    sigma, n = work.settings.noise_level, work.settings.n

    def means(positions: Tensor) -> list[list[float]]:
        rows = mean_probabilities(
            teacher, work.images, sigma=sigma, n=n, seed=work.seed, positions=positions, progress=work.progress
        )
        listed_rows: list[list[float]] = rows.tolist()
        return listed_rows

    batches = torch.arange(len(work.images)).split(work.settings.batch_size)
    return np.concatenate([work.parts.get("averaged the teacher", some, means) for some in batches])


@dataclass(frozen=True)
class _NetworkAttack:
    """Per image, the smallest distance at which an attack changed the class of one pass, and the steepest slope."""

    distances: Floats
    slopes: Floats


def _attack_network(work: _Work, certified: _Certified) -> _NetworkAttack:
    """DDN for the smallest distance, and PGD at exactly the L-bound and the certified radius; the smallest counts."""
    model, settings = work.model, work.settings
    device = device_of(model)
    radii_to_test = np.stack([l_bound(certified.one_pass, sigma=settings.noise_level), certified.radii])

    def attack(positions: Tensor) -> dict[str, list[float | None]]:
        x = work.images.images(positions).to(device)
        labels = torch.from_numpy(certified.one_pass[positions.numpy()].argmax(1)).to(device)
        attacks = [ddn(model, x, labels, steps=settings.steps)]
        for radii in radii_to_test:
            eps = torch.from_numpy(radii[positions.numpy()]).to(x).clamp_min(1e-6)
            attacks.append(pgd(model, x, labels, eps=eps, steps=settings.steps))
        points = [x, attacks[0].images, (x + attacks[0].images) / 2]
        slopes = torch.stack([_slope(model, point, labels) for point in points]).max(0).values
        distances = torch.stack([attack.distance for attack in attacks]).min(0).values
        return {"distances": listed(distances), "slopes": listed(slopes)}

    distances, slopes = list[float](), list[float]()
    for positions in torch.arange(len(work.images)).split(settings.batch_size):
        found = work.parts.get("attacked the network", positions, attack)
        distances += unlisted(found["distances"])
        slopes += unlisted(found["slopes"])
        work.progress("attacking the network", int(positions[-1]) + 1, len(work.images))
    return _NetworkAttack(np.array(distances), np.array(slopes))


def _slope(model: nn.Module, x: Tensor, labels: Tensor) -> Tensor:
    """Norm of the gradient of the gap between the label's probability and the next one, (images,)."""
    x = x.detach().requires_grad_(True)
    p = model(x).softmax(1)
    own = p.gather(1, labels[:, None])
    rival = p.scatter(1, labels[:, None], -1.0).max(1, keepdim=True).values
    (gradient,) = torch.autograd.grad((own - rival).sum(), x)
    norms: Tensor = gradient.flatten(1).norm(dim=1)
    return norms


def _attack_average(work: _Work, certified: _Certified) -> AverageAttacks:
    """PGD on the average inside its certified radius; a violation counts if new samples confirm it at 1−α."""
    settings, device = work.settings, device_of(work.model)
    average = GaussianAverage(work.model, sigma=settings.noise_level, samples=settings.noise_samples, seed=work.seed)
    sampler = Sampler(work.model, sigma=settings.noise_level, classes=certified.average.shape[1], seed=work.seed)

    def violations_of(positions: Tensor) -> int:
        x = work.images.images(positions).to(device)
        labels = torch.from_numpy(certified.classes[positions.numpy()]).to(device)
        eps = torch.from_numpy(certified.radii[positions.numpy()]).to(x)
        attack = pgd(average, x, labels, eps=eps * (1 - 1e-6), steps=settings.steps)
        within = (attack.images - x).flatten(1).double().norm(dim=1) < eps.double()
        points = torch.where(within[:, None, None, None], attack.images, x).cpu()  # rounding may leave the ball
        sampled = (
            Job(position, image, drawing("confirmation", settings.n))
            for position, image in zip(positions.tolist(), points, strict=True)
        )
        violations = 0
        for job, tally in sampler.run(sampled):
            other, abstain = predict(tally.counts[None], alpha=settings.alpha)
            violations += bool(not abstain[0] and other[0] != certified.classes[job.index])
        return violations

    with_radius, violations, attacked = np.flatnonzero(certified.radii > 0), 0, 0
    for positions in torch.from_numpy(with_radius).split(settings.batch_size) if len(with_radius) else ():
        violations += work.parts.get("attacked the average", positions, violations_of)
        attacked += len(positions)
        work.progress("attacking the average", attacked, len(with_radius))
    chances = len(work.images) + len(with_radius)  # of a false certificate, and of a false confirmation
    return AverageAttacks(attacked=len(with_radius), violations=violations, expected_at_most=settings.alpha * chances)


def _network_attacks(attacked: _NetworkAttack, certified: _Certified, sigma: float) -> NetworkAttacks:
    """How often the class of one pass changes inside its L-bound, and inside the radius of the average."""
    bound = l_bound(certified.one_pass, sigma=sigma)
    same = (certified.radii > 0) & certified.agrees
    ratios = np.sort(attacked.distances[same] / certified.radii[same])
    allowed = int((1 - SURVIVING) * len(ratios))
    fraction = float(ratios[allowed]) if len(ratios) else 0.0
    return NetworkAttacks(
        inside_l_bound=Broken.of(int((attacked.distances < bound).sum()), len(bound)),
        inside_average_radius=Broken.of(int((attacked.distances < certified.radii)[same].sum()), int(same.sum())),
        surviving_fraction=SurvivingFraction(
            share=SURVIVING, fraction=round_down(min(fraction, 1e6), 4), images=len(ratios)
        ),
    )


def _slope_ratio(attacked: _NetworkAttack, sigma: float) -> Slope:
    assumed = float(np.sqrt(2 / np.pi) / sigma)
    steepest = float(attacked.slopes.max())
    return Slope(steepest=steepest, assumed=assumed, ratio=steepest / assumed)
