"""Passes of the network that ``calibrate`` makes: of certified images again, and to learn votes."""

import copy
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from heatsmooth.commands.inputs import FILES, RUNNING
from heatsmooth.errors import require
from heatsmooth.progress import Progress
from heatsmooth.settings import check_at_least

if TYPE_CHECKING:
    from heatsmooth.commands.certified import CertifiedRun
    from heatsmooth.data import ImageSet
    from heatsmooth.models import Classifier, VoteHead
    from heatsmooth.statistics.bounds import Floats


@dataclass(frozen=True, kw_only=True)
class Votes:
    """The images on which a head learns to predict the classes of noisy copies."""

    learn_votes: str | None = None
    """For larger radii, learn the classes of noisy copies from this data set. Its training images are used, without
    labels. No calibration image may be among them."""
    vote_images: int = 20_000
    """Number of these images."""
    vote_samples: int = 4
    """Noisy copies of each."""

    def __post_init__(self) -> None:
        check_at_least(self, 1, "vote_images", "vote_samples")
        named = self.learn_votes is not None or not any_chosen(self)
        require(named, "`learn_votes`: expected it beside options for votes, got none; name unlabelled images")


@dataclass(frozen=True, kw_only=True)
class Again:
    """Where the certified images are read again, for passes of the network."""

    data: str | None = field(default=None, metadata=FILES)
    """The data of the certificates, if their record does not name it: imagefolder:PATH, …"""
    data_root: Path | None = field(default=None, metadata=FILES)
    """Directory of the files of the data sets."""
    class_index: Path | None = field(default=None, metadata=FILES)
    """Classes of an imagefolder, as the certificates were made with."""
    device: str | None = field(default=None, metadata=RUNNING)
    """cpu, cuda, … (default: the accelerator if there is one)."""


def any_chosen(options: Any, *, but: tuple[str, ...] = ()) -> bool:
    """Whether an option differs from its default."""
    return any(getattr(options, item.name) != item.default for item in fields(options) if item.name not in but)


def certified_images(certified: "CertifiedRun", indices: list[int], again: Again, progress: Progress) -> "ImageSet":
    """The images of these indices that were certified: the same ones, or an error."""
    import torch

    from heatsmooth.data import load_images
    from heatsmooth.data.images import size_of

    recorded = certified.info.chosen.data
    name = again.data or str(recorded.name).removesuffix("/test")
    whole = load_images(
        name,
        "test",
        root=again.data_root,
        image_size=size_of(*certified.shape[1:]),
        class_index=again.class_index,
        progress=progress,
    )
    there = whole.shape == certified.shape and max(indices) < int(whole.pixels.shape[0])
    same = replace(whole, indices=torch.tensor(indices)) if there else whole
    known = recorded.fingerprint
    require(
        same.fingerprint == known,
        f"`data` {name}: expected the images of the certificates ({known}), got others ({same.fingerprint}); name "
        "the data that was certified",
    )
    return same


def learnt_head(
    model: "Classifier", certified: "CertifiedRun", votes: Votes, again: Again, *, seed: int, progress: Progress
) -> "VoteHead":
    """The head that learns the votes, on the CPU; images that are also calibration images are refused."""
    from heatsmooth.data import load_images
    from heatsmooth.data.images import size_of
    from heatsmooth.device import accelerator
    from heatsmooth.training.votes import learn_votes

    name = str(votes.learn_votes)
    size = size_of(*certified.shape[1:])
    images = load_images(name, "train", root=again.data_root, image_size=size, progress=progress)
    images = images.sampled(votes.vote_images).without_labels()
    require(
        images.shape == certified.shape,
        f"`learn_votes` {name}: expected images of {certified.shape}, as certified, got {images.shape}; use others",
    )
    indices = [item.index for item in certified.certificates()]
    shared = len(_contents(images) & _contents(certified_images(certified, indices, again, progress)))
    require(
        shared == 0,
        f"`learn_votes` {name}: expected none of the calibration images, got {shared} of them, which would make the "
        "guarantee void; name other images",
    )
    network = copy.deepcopy(model).to(accelerator(again.device).device)
    head = learn_votes(
        network, images, sigma=certified.settings.sigma, samples=votes.vote_samples, seed=seed, progress=progress
    )
    return head.cpu()


def _contents(images: "ImageSet") -> set[str]:
    """A hash of each image."""
    import torch

    from heatsmooth.runs import sha256

    batches = torch.arange(len(images)).split(500)
    return {sha256(image.contiguous().numpy().tobytes()) for some in batches for image in images.images(some)}


def predicted_votes(model: "Classifier", head: "VoteHead", images: "ImageSet", device: str | None) -> "Floats":
    """The vote shares that the head predicts, (images, classes)."""
    import torch

    from heatsmooth.device import accelerator, exact_float32
    from heatsmooth.models import one_pass_and_votes, probabilities_of

    place = accelerator(device).device
    network, own = copy.deepcopy(model).to(place), copy.deepcopy(head).to(place)
    with exact_float32():
        shares = [
            probabilities_of(one_pass_and_votes(network, own, images.images(some).to(place))[1])
            for some in torch.arange(len(images)).split(200)
        ]
    return torch.cat(shares).numpy()
