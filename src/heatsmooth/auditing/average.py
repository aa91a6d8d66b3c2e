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
    CONFIDENCE,
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
from heatsmooth.results.certificates import Certificates
from heatsmooth.statistics.bounds import clopper_pearson_lower, predict
from heatsmooth.statistics.radii import l_bound, round_down

FALSE_ALARM = 0.001
"""The audit calls certificates false if as many violations have at most this probability for true certificates."""
TOLERATED = 0.01
"""The share of images that may break inside their L-bound before the audit calls it broken."""
SURVIVING = 0.99
"""The share of images that survive these attacks at the reported fraction of the radius."""
AGREEING = 0.95
"""Below this agreement of one pass and average, the certificates say little about the deployed network."""


@exact_float32()
def audit(
    model: nn.Module,
    images: ImageSet,
    settings: AuditSettings,
    *,
    teacher: nn.Module | None = None,
    seed: int = 0,
    progress: Progress = silent,
) -> AuditResult:
    """Test the radii of ``model`` on these images by attack.

    Labels are not needed: the audit is about predictions that change, not about correct ones.

    - ``model``: the network; logits (images, classes) from images (images, channels, height, width) in [0, 1].
    - ``images``: the images to audit it on.
    - ``settings``: noise level, samples and steps.
    - ``teacher``: the network that it was smoothed from. Its average is compared with one pass of ``model``.
    - ``seed``: of the noise.
    - ``progress``: called with what is done, how far it is, and how far it goes.
    """
    require(not is_onnx(model), f"{NEEDS_GRADIENTS}, or use audit_agreement")
    work, certified = _started(model, images, settings, seed, progress)
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
    progress: Progress = silent,
) -> AgreementAudit:
    """The part of an audit that needs no gradients, as for an ONNX file: how close one pass is to the average.

    Nothing is attacked. So the verdict is never "holds". The parameters are those of ``audit``.
    """
    work, certified = _started(model, images, settings, seed, progress)
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
    model: nn.Module, images: ImageSet, settings: AuditSettings, seed: int, progress: Progress
) -> tuple[_Work, _Certified]:
    """The certificates of the images, and the network in its fastest form."""
    certificate = Settings(settings.noise_level, n=settings.n, alpha=settings.alpha)
    examples = images.images(torch.arange(min(4, len(images)))).to(device_of(model))
    unlabelled = images.without_labels()
    certificates = Certificates.of(
        certify_each(model, unlabelled, certificate, Sampling(seed=seed, means=True), progress=progress)
    )
    work = _Work(for_inference(model, examples), unlabelled, settings, seed, progress)
    return work, _Certified.of(certificates, images)


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
    return mean_probabilities(teacher, work.images, sigma=sigma, n=n, seed=work.seed, progress=work.progress)


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
    distances, slopes = [], []
    for positions in torch.arange(len(work.images)).split(settings.batch_size):
        x = work.images.images(positions).to(device)
        labels = torch.from_numpy(certified.one_pass[positions.numpy()].argmax(1)).to(device)
        attacks = [ddn(model, x, labels, steps=settings.steps)]
        for radii in radii_to_test:
            eps = torch.from_numpy(radii[positions.numpy()]).to(x).clamp_min(1e-6)
            attacks.append(pgd(model, x, labels, eps=eps, steps=settings.steps))
        distances.append(torch.stack([attack.distance for attack in attacks]).min(0).values.cpu())
        points = [x, attacks[0].images, (x + attacks[0].images) / 2]
        slopes.append(torch.stack([_slope(model, point, labels) for point in points]).max(0).values.cpu())
        work.progress("attacking the network", int(positions[-1]) + 1, len(work.images))
    return _NetworkAttack(torch.cat(distances).double().numpy(), torch.cat(slopes).double().numpy())


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
    settings = work.settings
    average = GaussianAverage(work.model, sigma=settings.noise_level, samples=settings.noise_samples, seed=work.seed)
    device = device_of(work.model)
    with_radius = np.flatnonzero(certified.radii > 0)
    adversarial: dict[int, Tensor] = {}
    for positions in torch.from_numpy(with_radius).split(settings.batch_size) if len(with_radius) else ():
        x = work.images.images(positions).to(device)
        labels = torch.from_numpy(certified.classes[positions.numpy()]).to(device)
        eps = torch.from_numpy(certified.radii[positions.numpy()]).to(x)
        attack = pgd(average, x, labels, eps=eps * (1 - 1e-6), steps=settings.steps)
        within = (attack.images - x).flatten(1).double().norm(dim=1) < eps.double()
        points = torch.where(within[:, None, None, None], attack.images, x).cpu()  # rounding may leave the ball
        adversarial |= dict(zip(positions.tolist(), points, strict=True))
        work.progress("attacking the average", len(adversarial), len(with_radius))
    sampler = Sampler(work.model, sigma=settings.noise_level, classes=certified.average.shape[1], seed=work.seed)
    jobs = (Job(position, image, drawing("confirmation", settings.n)) for position, image in adversarial.items())
    violations = 0
    for number, (job, tally) in enumerate(sampler.run(jobs), start=1):
        other, abstain = predict(tally.counts[None], alpha=settings.alpha)
        violations += bool(not abstain[0] and other[0] != certified.classes[job.index])
        work.progress("confirming", number, len(with_radius))
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


def verdict(measures: AuditMeasures) -> Verdict:
    """The conclusion in plain words, and the counts behind it."""
    average, network = measures.average_attacks, measures.network_attacks.inside_l_bound
    agreement, slope = measures.agreement, measures.lipschitz
    kind, conclusion = _conclusion(measures)
    sentences = [
        conclusion,
        f"Average: {average.violations} of {average.attacked} certificates were broken by attack "
        f"({average.expected_at_most:.2g} expected at most).",
        f"Network in one pass: {network.broken} of {network.attacked} predictions break inside their L-bound. "
        f"Slopes reach {slope.ratio:.2g} times the value that the L-bound assumes. "
        f"One pass agrees with the average on {agreement.count} of {agreement.images} images.",
    ]
    return Verdict(kind=kind, text=" ".join(sentences))


def _conclusion(measures: AuditMeasures) -> tuple[VerdictKind, str]:
    average, network = measures.average_attacks, measures.network_attacks.inside_l_bound
    attempts = measures.images + average.attacked
    if clopper_pearson_lower(average.violations, attempts, FALSE_ALARM) > measures.alpha:
        return VerdictKind.BROKEN, "The statistical certificates are false: do not use them."
    about_average = _about_average(average)
    if network.broken or measures.lipschitz.ratio > 1.01:
        many = clopper_pearson_lower(network.broken, network.attacked, 1 - CONFIDENCE) > TOLERATED
        wrong = "is false" if network.broken else "is not justified"
        reason = f"The network is not an exact average at this σ, so its L-bound {wrong}."
        return VerdictKind.BROKEN if many else VerdictKind.CAUTION, f"{about_average}. {reason}"
    agreement = measures.agreement
    if agreement.interval[0] < AGREEING:
        doubt = "One pass may disagree with the average too often"
        if agreement.count >= AGREEING * agreement.images:
            doubt = f"There are too few images to show that one pass agrees with the average on {100 * AGREEING:g} %"
        return VerdictKind.CAUTION, f"{about_average}. {doubt}."
    if average.violations or not average.attacked:
        return VerdictKind.CAUTION, f"{about_average}."
    return VerdictKind.HOLDS, f"{about_average} or against the L-bound."


def _about_average(average: AverageAttacks) -> str:
    if not average.attacked:
        return "There was no certificate of the average to test"
    if average.violations:
        return f"Attacks broke {average.violations} certificates of the average, no more than chance allows"
    return "The attacks found nothing against the certificates of the average"
