"""What the server says: events of a study as they occur, and whole answers. The OpenAPI document is made from these."""

from typing import Annotated

import msgspec
from msgspec import Meta

from heatsmooth.results.guarantees import Subject

Radius = Annotated[float, Meta(ge=0, description="L2 radius, pixels in [0, 1], rounded down.")]
Basis = Annotated[str, Meta(description="What the number rests on.")]
Name = Annotated[str, Meta(description="Name of the uploaded file.")]
Picture = Annotated[str, Meta(description="A PNG file as a data URL.")]
Share = Annotated[float, Meta(ge=0, le=1)]
Count = Annotated[int, Meta(ge=0)]
Ranked = Annotated[list[tuple[int, float]], Meta(description="Classes with their probabilities, the largest first.")]
Counts = Annotated[list[tuple[int, int]], Meta(description="Classes with their counts, the largest first.")]


class Claim(msgspec.Struct, frozen=True, kw_only=True):
    """A radius, the model that it covers, and what it rests on. A radius of 0 claims nothing."""

    radius: Radius
    subject: Subject
    basis: Basis


class Calibrated(Claim, frozen=True, kw_only=True):
    """A calibrated radius, and the class that it is for: that of one pass, or the predicted class of the average."""

    predicted: int = msgspec.field(name="class")


class OnePass(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One pass of the network, and the radii that need no samples."""

    subject: Subject
    basis: Basis
    top: Ranked
    l_bound: Claim | None = None
    """Only with sigma."""
    calibrated: Calibrated | None = None
    """Only if the network is calibrated."""
    deterministic: Claim | None = None
    """Only if the network is Lipschitz by construction."""


class Event(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="kind"):
    """Something that happened in a study."""

    index: int | None = None
    """The image of a batch, from 0; none if there is one image."""


class Seen(Event, frozen=True, kw_only=True, omit_defaults=True, tag="image"):
    """The image as the network sees it, and one pass."""

    data: Picture
    subject: Subject
    basis: Basis
    top: Ranked
    l_bound: Claim | None = None
    calibrated: Calibrated | None = None
    deterministic: Claim | None = None


class Copies(Event, frozen=True, kw_only=True, tag="copies"):
    """A few noisy copies, each with the class that the network gives to it. They are not counted."""

    copies: list[tuple[Picture, int]]


class Progress(Event, frozen=True, kw_only=True, tag="radius"):
    """The certificate of the average after n samples. It is valid, whether or not you wait for more."""

    subject: Subject
    basis: Basis
    n: Count
    predicted: int = msgspec.field(name="class")
    radius: Radius
    abstain: bool
    counts: Counts


class Done(Event, frozen=True, kw_only=True, tag="done"):
    """The certificate is complete."""

    samples: Count = 0


class Attack(Event, frozen=True, kw_only=True, tag="attack"):
    """The attack on the network in one pass. If it fails, this proves nothing."""

    subject: Subject
    basis: Basis
    success: bool
    distance: Annotated[float, Meta(ge=0, description="L2 distance from the image, rounded up.")]
    before: int
    predicted: int = msgspec.field(name="class")
    probability: Share
    image: Picture
    difference: Picture
    amplified: float


class AverageClass(Event, frozen=True, kw_only=True, tag="average"):
    """The class of the average at the attacked image, from samples; null where it abstains."""

    subject: Subject
    basis: Basis
    predicted: int | None = msgspec.field(name="class")
    counts: Counts
    n: Count


class Waiting(Event, frozen=True, kw_only=True, tag="waiting"):
    """Nothing new for a second."""

    present: Count
    """Studies that share the network."""


class Failed(Event, frozen=True, kw_only=True, tag="error"):
    """The study ended early."""

    message: str


class Prediction(OnePass, frozen=True, kw_only=True, omit_defaults=True):
    """What one pass says about an image."""

    image: Name
    predicted: int = msgspec.field(name="class")
    probability: Share


class Predicted(Event, frozen=True, kw_only=True, tag="predictions"):
    """One pass of all images of a request."""

    predictions: list[Prediction]


class Predictions(msgspec.Struct, frozen=True, kw_only=True):
    """One prediction per image, in the order of the files."""

    predictions: list[Prediction]


class NetworkCertificate(Claim, frozen=True, kw_only=True):
    """Proven for the network in one pass; it abstains if the radius is 0."""

    predicted: int = msgspec.field(name="class")
    abstain: bool


class AverageCertificate(NetworkCertificate, frozen=True, kw_only=True):
    """From samples, for the Gaussian average of the network; false with probability at most alpha."""

    n: Count
    counts: Counts


class Certificate(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What is certified for an image: of the network if it is Lipschitz by construction, of the average with sigma."""

    image: Name
    network: NetworkCertificate | None = None
    average: AverageCertificate | None = None


class Certificates(msgspec.Struct, frozen=True, kw_only=True):
    """One certificate per image, in the order of the files."""

    certificates: list[Certificate]


class Attacked(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An attack on the network, and the class of the average at the attacked image."""

    image: Name
    attack: Attack
    average: AverageClass | None = None
    """Only with sigma."""


class Attacks(msgspec.Struct, frozen=True, kw_only=True):
    """One attack per image, in the order of the files."""

    attacks: list[Attacked]


class Facts(msgspec.Struct, frozen=True, kw_only=True):
    """The served network."""

    classes: list[str]
    """Names of the classes, by number."""
    shape: tuple[int, int, int]
    """Channels, height and width of the images that it takes; uploads are resized and cropped."""
    lipschitz: bool
    """Whether it is Lipschitz by construction, so that it has a deterministic radius."""
    sigma: float | None
    alpha: float | None
    samples: int | None
    """Most samples per image."""
    version: str


class Health(msgspec.Struct, frozen=True, kw_only=True):
    """Whether the server takes images."""

    status: str
