"""``serve``: a model, from its arguments to a server that is ready."""

import secrets
from dataclasses import replace
from pathlib import Path
from typing import Any

from heatsmooth.certification.settings import Settings
from heatsmooth.data.folder import USUAL_SIZE
from heatsmooth.data.images import height_and_width
from heatsmooth.device import accelerator
from heatsmooth.errors import InputError, require
from heatsmooth.progress import Progress, silent
from heatsmooth.runs import read_json
from heatsmooth.serving import Server, Subject
from heatsmooth.serving.limits import is_loopback
from heatsmooth.workflows.calibrate import read_calibration
from heatsmooth.workflows.inputs import Images, Network

TOLERANCE = 0.01
"""Drawing ends when more draws would hardly add this to the radius."""
EMBEDDED = "fashion-mini"


def open_server(
    *,
    network: Network,
    images: Images | None = None,
    sigma: float,
    host: str = "127.0.0.1",
    port: int = 8000,
    exposed: bool = False,
    names: Path | None = None,
    n: int = 10_000,
    alpha: float = 0.001,
    device: str | None = None,
    progress: Progress = silent,
) -> Server:
    """A server about the network, bound to ``host`` and ``port``; only ``exposed`` beyond this machine.

    ``names``: a file with the name of a class a line. ``images``: the examples it offers; by default the embedded
    ones, if the network was trained on them.
    """
    require(
        exposed or is_loopback(host),
        f"--host {host}: expected an address of this machine alone, as 127.0.0.1, got another; "
        "add --expose to let others use this network",
    )
    settings = Settings(sigma, n=n, alpha=alpha, adaptive=True, tolerance=TOLERANCE)
    listed = None if names is None else _lines(names)
    images = images or _trained_on(network.source)
    examples = None if images is None else images.load(network.side, progress=progress)
    known = listed or (None if examples is None else examples.class_names)
    network = replace(network, classes=10 if known is None else len(known))
    model = network.load(examples).to(accelerator(device).device)
    size = network.size or model.spec.size or (USUAL_SIZE if examples is None else examples.size)
    subject = Subject(
        model,
        settings,
        seed=secrets.randbits(62),
        shape=(model.spec.channels, *height_and_width(size)),
        names=known,
        calibration=read_calibration(network.source, model),
    )
    return Server(subject, host=host, port=port, examples=examples)


def _lines(file: Path) -> tuple[str, ...]:
    try:
        found = tuple(line.strip() for line in file.read_text(encoding="utf-8").splitlines() if line.strip())
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"--classes {file}: expected a name a line, got {error}; check the file") from None
    require(bool(found), f"--classes {file}: expected a name a line, got none; write one for each class")
    return found


def _trained_on(source: Path) -> Images | None:
    """The embedded images, if that is what the run of ``source`` was about."""
    if not (source / "run.json").is_file():
        return None
    settings: Any = read_json(source / "run.json").get("settings")
    described = settings.get("data") if isinstance(settings, dict) else None
    name = str(described.get("name")) if isinstance(described, dict) else ""
    return Images(EMBEDDED) if name.partition("/")[0] in (EMBEDDED, "fashion-mnist") else None
