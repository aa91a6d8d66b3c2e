"""``serve``: a model, from its arguments to a server that is ready."""

import secrets
from pathlib import Path
from typing import Any

from heatsmooth.certification.certificates import Settings
from heatsmooth.data import ImageSet, load
from heatsmooth.errors import InputError, require
from heatsmooth.models import load as load_model
from heatsmooth.progress import Progress, silent
from heatsmooth.runs import read_json
from heatsmooth.serving import Server, Subject
from heatsmooth.serving.limits import is_loopback
from heatsmooth.training.loop import accelerator
from heatsmooth.workflows.calibrate import read_calibration

TOLERANCE = 0.01
"""Drawing ends when more draws would hardly add this to the radius."""
EMBEDDED = "fashion-mini"


def open_server(
    *,
    source: Path,
    sigma: float,
    host: str = "127.0.0.1",
    port: int = 8000,
    exposed: bool = False,
    names: Path | None = None,
    data: str | None = None,
    data_root: Path | None = None,
    n: int = 10_000,
    alpha: float = 0.001,
    image_size: int | None = None,
    model: str | None = None,
    mean: tuple[float, ...] | None = None,
    std: tuple[float, ...] | None = None,
    device: str | None = None,
    progress: Progress = silent,
) -> Server:
    """A server about the network of ``source``, bound to ``host`` and ``port``; only ``exposed`` beyond this machine.

    ``names``: a file with the name of a class a line. ``data``: where example images come from; by default the
    embedded ones, if the network was trained on them.
    """
    require(
        exposed or is_loopback(host),
        f"--host {host}: expected an address of this machine alone, as 127.0.0.1, got another; "
        "add --expose to let others use this network",
    )
    settings = Settings(sigma, n=n, alpha=alpha, adaptive=True, tolerance=TOLERANCE)
    listed = None if names is None else _lines(names)
    examples = _examples(source, data, data_root, image_size, progress)
    known = listed or (None if examples is None else examples.class_names)
    classes = 10 if known is None else len(known)
    channels = 3 if examples is None else examples.shape[0]
    network = load_model(source, model=model, classes=classes, channels=channels, mean=mean, std=std)
    size = image_size or network.spec.size or (224 if examples is None else examples.shape[1])
    network.to(accelerator(device).device)
    subject = Subject(
        network,
        settings,
        seed=secrets.randbits(62),
        shape=(network.spec.channels, size, size),
        names=known,
        calibration=read_calibration(source, network),
    )
    return Server(subject, host=host, port=port, examples=examples)


def _lines(file: Path) -> tuple[str, ...]:
    try:
        found = tuple(line.strip() for line in file.read_text(encoding="utf-8").splitlines() if line.strip())
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"--classes {file}: expected a name a line, got {error}; check the file") from None
    require(bool(found), f"--classes {file}: expected a name a line, got none; write one for each class")
    return found


def _examples(
    source: Path, data: str | None, root: Path | None, size: int | None, progress: Progress
) -> ImageSet | None:
    name = data or _trained_on(source)
    return None if name is None else load(name, "test", root=root, image_size=size or 224, progress=progress)


def _trained_on(source: Path) -> str | None:
    """The embedded images, if that is what the run of ``source`` was about."""
    if not (source / "run.json").is_file():
        return None
    settings: Any = read_json(source / "run.json").get("settings")
    described = settings.get("data") if isinstance(settings, dict) else None
    name = str(described.get("name")) if isinstance(described, dict) else ""
    return EMBEDDED if name.partition("/")[0] in (EMBEDDED, "fashion-mnist") else None
