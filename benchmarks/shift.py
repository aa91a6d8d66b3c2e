"""Whether one-pass radii still cover on images of another kind than they were calibrated on.

    python benchmarks/shift.py --from RUN --certificates CERTIFIED --data cifar10 --data-root DIR [--images 200]

Calibrates on the certificates, then certifies other test images of the same data as they are, with noise, blurred, with
more contrast, attacked, and flattered: changed within an L2 ball so that one pass is surer of its class.
The guarantee holds for the first of these alone; the others show what is lost without it.
"""

import argparse
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from heatsmooth.attacks import pgd
from heatsmooth.calibration import calibrate, coverage
from heatsmooth.certification.certificates import certify_each
from heatsmooth.certification.settings import Sampling, Settings
from heatsmooth.data import ImageSet, load_images
from heatsmooth.models import load as load_model
from heatsmooth.progress import bar
from heatsmooth.results.certificates import Certificates
from heatsmooth.runs import provenance, read_json


def noisy(images: Tensor, sigma: float) -> Tensor:
    """With Gaussian noise of this deviation, clipped to [0, 1] as a file would be."""
    noise = torch.randn(images.shape, generator=torch.Generator().manual_seed(1))
    return (images + sigma * noise).clamp(0, 1)


def blurred(images: Tensor, sigma: float) -> Tensor:
    """Convolved with a Gaussian of this deviation, in pixels; the border is repeated."""
    reach = max(1, round(3 * sigma))
    line = torch.exp(-(torch.arange(-reach, reach + 1).float() ** 2) / (2 * sigma**2))
    kernel = torch.outer(line, line) / line.sum() ** 2
    channels = images.shape[1]
    padded = F.pad(images, (reach,) * 4, mode="replicate")
    return F.conv2d(padded, kernel.expand(channels, 1, *kernel.shape), groups=channels).clamp(0, 1)


def with_contrast(images: Tensor, times: float) -> Tensor:
    """Each image's distance from its mean so many times as large, clipped to [0, 1]."""
    mean = images.mean((1, 2, 3), keepdim=True)
    return (mean + times * (images - mean)).clamp(0, 1)


def flattered(model: nn.Module, images: Tensor, eps: float, steps: int = 20) -> Tensor:
    """Within ``eps`` of each image, one in [0, 1] that the network in one pass gives its class more surely."""
    with torch.no_grad():
        top = model(images).argmax(1)
    x = images.clone()
    for _ in range(steps):
        x.requires_grad_(True)
        (slope,) = torch.autograd.grad(model(x).log_softmax(1).gather(1, top[:, None]).sum(), x)
        with torch.no_grad():
            x = x + 2.5 * eps / steps * F.normalize(slope.flatten(1)).view_as(x)
            apart = (x - images).flatten(1)
            x = (images + (apart * (eps / apart.norm(dim=1, keepdim=True)).clamp(max=1)).view_as(x)).clamp(0, 1)
    return x.detach()


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--from", dest="source", type=Path, required=True)
    parser.add_argument("--certificates", type=Path, required=True)
    parser.add_argument("--data", default="fashion-mini")
    parser.add_argument("--data-root", type=Path)
    parser.add_argument("--images", type=int, default=200)
    parser.add_argument("--epsilon", type=float, default=0.05)
    arguments = parser.parse_args()
    certificates = Certificates.read(arguments.certificates)
    made = read_json(sorted(arguments.certificates.glob("run*.json"))[0])["settings"]["certificate"]
    settings = Settings.from_json(made, arguments.certificates)
    calibration = calibrate(certificates, epsilon=arguments.epsilon, seed=0)
    whole = load_images(arguments.data, "test", root=arguments.data_root)
    known = set(certificates.indices.tolist())
    other = [i for i, index in enumerate(whole.indices.tolist()) if index not in known]
    spread = torch.tensor(other[:: max(1, len(other) // arguments.images)][: arguments.images])
    images, labels = whole.images(spread), whole.known_labels()[spread]
    model = load_model(arguments.source)
    kinds = {
        "as they are": images,
        "with noise 0.05": noisy(images, 0.05),
        "with noise 0.1": noisy(images, 0.1),
        "blurred by 0.5 pixels": blurred(images, 0.5),
        "blurred by 1 pixel": blurred(images, 1.0),
        "twice the contrast": with_contrast(images, 2.0),
        "attacked within 0.25": pgd(model, images, labels, eps=0.25, steps=20).images,
        "attacked within 0.5": pgd(model, images, labels, eps=0.5, steps=20).images,
        "flattered within 0.25": flattered(model, images, 0.25),
        "flattered within 0.5": flattered(model, images, 0.5),
        "flattered within 1": flattered(model, images, 1.0),
    }
    facts = provenance()
    print(f"{facts['hardware']['cpu']}, torch {facts['versions']['torch']}, commit {facts['commit']}")
    print(f"{len(certificates)} images calibrate, ε={arguments.epsilon:g}; {len(images)} others, n={settings.n}")
    with bar() as progress:
        for name, pixels in kinds.items():
            with torch.no_grad():
                right = float((model(pixels).argmax(1) == labels).float().mean())
            images_of_kind = ImageSet.of(name, pixels, labels)
            others = certify_each(model, images_of_kind, settings, Sampling(seed=1), progress=progress)
            held_out = coverage(calibration, Certificates.of(others))
            low, high = held_out.interval
            covered = f"{held_out.coverage:.3f} [{low:.3f}, {high:.3f}]"
            print(f"  {name:22} coverage {covered}, claims {held_out.claimed:.2f} of the ACR, right {right:.1%}")


if __name__ == "__main__":
    main()
