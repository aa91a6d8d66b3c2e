"""Passes of the network that ``calibrate`` makes: of certified images again, and to learn votes."""

import copy
from dataclasses import dataclass, field, fields, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from heatsmooth.commands.inputs import FILES, RUNNING
from heatsmooth.errors import require
from heatsmooth.progress import Progress
from heatsmooth.settings import check_at_least

if TYPE_CHECKING:
    from heatsmooth.commands.certified import CertifiedRun
    from heatsmooth.data import ImageSet
    from heatsmooth.models import Classifier, Voter
    from heatsmooth.statistics.bounds import Floats


IMAGES_OF_A_HEAD = 20_000
LEARNING = ("learn_votes", "vote_images", "vote_samples", "vote_epochs")
"""The fields of ``Votes`` on which what is learnt depends."""


@dataclass(frozen=True, kw_only=True)
class Votes:
    """How a head, or a copy of the network, learns to predict the classes of noisy copies."""

    learn_votes: str | None = None
    """For larger radii, learn the classes of noisy copies from this data set. Its training images are used, without
    labels. No calibration image may be among them."""
    vote_images: int | None = None
    """Number of these images (default: 20,000, or all). All are the default with `vote_epochs`."""
    vote_samples: int = 4
    """Noisy copies per image. With `vote_epochs`, in each epoch."""
    vote_epochs: int = 0
    """Train a copy of the network for so many epochs. With some thousand steps, radii are still larger. 0: only a
    small head learns, which takes minutes."""
    votes_from: Path | None = None
    """Use what another 'calibrate' run has learnt. It must be of this network and σ. ε may differ."""

    def __post_init__(self) -> None:
        check_at_least(self, 1, "vote_images", "vote_samples")
        check_at_least(self, 0, "vote_epochs")
        if self.votes_from is not None:
            alone = not any_chosen(self, but=("votes_from",))
            require(alone, "`votes_from`: expected no other option for votes beside it, got one; leave it out")
        named = self.wanted or not any_chosen(self)
        require(named, "`learn_votes`: expected it beside options for votes, got none; name unlabelled images")

    @property
    def wanted(self) -> bool:
        """Whether votes are to be predicted."""
        return self.learn_votes is not None or self.votes_from is not None

    def as_learnt(self) -> "Votes":
        """How they are learnt, or were learnt in the other run."""
        from heatsmooth.results.run_info import RunInfo

        if (run := self.votes_from) is None:
            return self
        info, _ = RunInfo.read_directory(run)
        learnt = info.done and info.settings.get("learn_votes") is not None
        require(learnt, f"`votes_from` {run}: expected a finished 'calibrate' run with `learn_votes`, got another run")
        return Votes(**{name: value for name, value in info.settings.items() if name in LEARNING})

    @property
    def images(self) -> int | None:
        """How many images are learnt from; None: all."""
        return IMAGES_OF_A_HEAD if self.vote_images is None and not self.vote_epochs else self.vote_images

    def describe(self) -> dict[str, object]:
        """What a run records; `vote_epochs` only if there are some, as in runs from before it existed."""
        facts = {name: getattr(self, name) for name in LEARNING} | {"vote_images": self.images}
        return {name: value for name, value in facts.items() if (name, value) != ("vote_epochs", 0)}


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


def learnt_votes(
    model: "Classifier",
    unseen: "list[CertifiedRun]",
    votes: Votes,
    again: Again,
    *,
    seed: int,
    out: Path,
    progress: Progress,
) -> "Voter":
    """The head or copy that learns the votes, or has learnt them in another run, on the CPU.

    ``unseen``: the calibration images, then others to measure on; images to learn from that are among them are refused.
    ``out``: the run directory of a copy, which continues there.
    """
    learnt_before, votes = votes.votes_from, votes.as_learnt()
    from heatsmooth.data import load_images
    from heatsmooth.data.images import size_of
    from heatsmooth.device import accelerator
    from heatsmooth.identity import network_settings
    from heatsmooth.models import identify
    from heatsmooth.models.votes import VOTES_FILE, load_voter, save_voter
    from heatsmooth.runs import Run
    from heatsmooth.training.loop import STATE_FILE
    from heatsmooth.training.votes import copying, learn_votes

    name, certified = str(votes.learn_votes), unseen[0]
    size = size_of(*certified.shape[1:])
    images = load_images(name, "train", root=again.data_root, image_size=size, progress=progress)
    images = images.sampled(votes.images).without_labels()
    require(
        images.shape == certified.shape,
        f"`learn_votes` {name}: expected images of {certified.shape}, as certified, got {images.shape}; use others",
    )
    _refuse_shared(name, images, unseen, again, progress)
    if learnt_before is not None:
        return _voter_of(learnt_before, model, certified.settings.sigma)
    network, sigma = copy.deepcopy(model).to(accelerator(again.device).device), certified.settings.sigma
    learn = partial(learn_votes, network, images, sigma=sigma, samples=votes.vote_samples, seed=seed, progress=progress)
    if not votes.vote_epochs:
        return learn().cpu()
    settings = {
        "data": images.describe(),
        **network_settings(model=identify(model, images.shape)),
        "sigma": sigma,
        "samples": votes.vote_samples,
        "plan": copying(votes.vote_epochs).describe(),
        "seed": seed,
    }
    with Run(out, "learn-votes", settings) as run:
        if not run.done:
            save_voter(learn(epochs=votes.vote_epochs, out=out).cpu(), out / VOTES_FILE)
            run.update(status="done", model_hash=settings["model"])
        (out / STATE_FILE).unlink(missing_ok=True)
        return load_voter(out / VOTES_FILE, model)


def _voter_of(run: Path, model: "Classifier", sigma: float) -> "Voter":
    """The head or copy in the directory of another calibration of this network, at this noise level."""
    from heatsmooth.commands.calibrated import read_calibration, read_voter

    calibration = read_calibration(run, model)
    voter = read_voter(run, model, calibration)
    require(voter is not None, f"`votes_from` {run}: expected a head or copy, got none; name a run with `learn_votes`")
    assert calibration is not None
    assert voter is not None
    same = calibration.sigma == sigma
    require(
        same, f"`votes_from` {run}: expected votes at σ={sigma:g}, got those at σ={calibration.sigma:g}; learn new ones"
    )
    return voter


def few_vote_steps(out: Path, votes: Votes) -> str | None:
    """What to tell a person whose copy, with the run directory ``out``, had too few steps to learn much."""
    from heatsmooth.runs import read_json
    from heatsmooth.training.execution import few_steps
    from heatsmooth.training.votes import copying

    if not votes.vote_epochs:
        return None
    plan, images = copying(votes.vote_epochs), read_json(out / "run.json")["settings"]["data"]["images"]
    return few_steps(plan, max(1, images // plan.batch_size), aim="larger radii", option="--vote-epochs")


def _refuse_shared(
    name: str, images: "ImageSet", unseen: "list[CertifiedRun]", again: Again, progress: Progress
) -> None:
    """Refuse images to learn from that are also calibration images, or held out."""
    learnt = _contents(images, progress)
    whats = (("calibration", "which would make the guarantee void"), ("held-out", "which would make them look better"))
    for run, (what, why) in zip(unseen, whats, strict=False):
        indices = [item.index for item in run.certificates()]
        shared = len(learnt & _contents(certified_images(run, indices, again, progress), progress))
        require(
            shared == 0,
            f"`learn_votes` {name}: expected none of the {what} images, got {shared} of them, {why}; name other images",
        )


def _contents(images: "ImageSet", progress: Progress) -> set[str]:
    """A hash of each image."""
    import torch

    from heatsmooth.runs import sha256

    found: set[str] = set()
    for some in torch.arange(len(images)).split(500):
        found.update(sha256(image.contiguous().numpy().tobytes()) for image in images.images(some))
        progress("comparing images", int(some[-1]) + 1, len(images))
    return found


def predicted_votes(model: "Classifier", head: "Voter", images: "ImageSet", device: str | None) -> "Floats":
    """The vote shares that a head or copy predicts, (images, classes)."""
    import torch

    from heatsmooth.device import accelerator, exact_float32
    from heatsmooth.models import probabilities_of, votes_of

    place = accelerator(device).device
    network, own = copy.deepcopy(model).to(place), copy.deepcopy(head).to(place)
    with exact_float32():
        shares = [
            probabilities_of(votes_of(network, own, images.images(some).to(place)))
            for some in torch.arange(len(images)).split(200)
        ]
    return torch.cat(shares).numpy()
