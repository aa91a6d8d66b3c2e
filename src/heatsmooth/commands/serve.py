"""``heatsmooth serve``."""

import secrets
import signal
import sys
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from heatsmooth.certification.settings import Settings
from heatsmooth.commands.command import Command
from heatsmooth.commands.inputs import RUNNING, ImageFiles, Network
from heatsmooth.errors import InputError, require
from heatsmooth.progress import Progress, silent

if TYPE_CHECKING:
    from heatsmooth.data import ImageSet
    from heatsmooth.serving import ServedNetwork, Server

TOLERANCE = 0.01
"""Sampling ends when more samples would hardly add this to the radius."""
EMBEDDED = "fashion-mini"
SHORTEST_TOKEN = 16


@dataclass(frozen=True, kw_only=True)
class Serve(Command):
    """Serve a web page where people drop an image and watch its certified radius grow. It prints its address.

    Example: heatsmooth serve --from runs/smoothed --sigma 0.25
    """

    network: Network
    sigma: float | None = None
    """Standard deviation of the noise, in [0, 1] pixels. A network made by distill needs none."""
    port: int = 8000
    """Port; 0 for any free one."""
    host: str = "127.0.0.1"
    """Address to listen at."""
    expose: bool = False
    """Allow a --host that other machines reach, without encryption."""
    token_file: Path | None = None
    """A file with a token of at least 16 characters, which every visitor must give."""
    class_names: Path | None = None
    """A file with the name of one class per line."""
    data: str | None = None
    """Offer examples of this data set. Default: the embedded images, for a network trained on them."""
    data_root: Path | None = None
    """Directory of the files of a data set."""
    n: int = 10_000
    """Maximum number of samples per image."""
    alpha: float = 0.001
    """Largest probability that a certificate is false."""
    device: str | None = field(default=None, metadata=RUNNING)
    """cpu, cuda, … (default: the accelerator if there is one)."""

    def __post_init__(self) -> None:
        require(0 <= self.port <= 65535, f"`port`: expected a number from 0 to 65535, got {self.port}")

    def open(self, progress: Progress = silent) -> "Server":
        """A server for the network, bound to its address."""
        try:
            from heatsmooth.serving import Server
            from heatsmooth.serving.limits import is_loopback
        except ModuleNotFoundError as error:
            raise InputError(
                f"serve: expected starlette and uvicorn, got no {error.name}; pip install 'heatsmooth[serve]'"
            ) from None
        require(
            self.expose or is_loopback(self.host),
            f"`host` {self.host}: expected an address of this machine alone, as 127.0.0.1, got another; "
            "add `expose` to let others use this network",
        )
        token = None if self.token_file is None else _token(self.token_file)
        examples, served = self._served(progress)
        return Server(served, host=self.host, port=self.port, examples=examples, token=token)

    def _served(self, progress: Progress) -> "tuple[ImageSet | None, ServedNetwork]":
        """The examples, and the network with its settings."""
        from heatsmooth.commands.calibrated import read_calibration, read_voter
        from heatsmooth.data.folder import USUAL_SIZE
        from heatsmooth.data.images import height_and_width
        from heatsmooth.device import accelerator
        from heatsmooth.models import device_of, is_onnx
        from heatsmooth.models.onnx_file import NEEDS_GRADIENTS
        from heatsmooth.serving import ServedNetwork

        names = None if self.class_names is None else _lines(self.class_names)
        files = self._examples()
        examples = None if files is None else files.load(self.network.size, progress=progress)
        names = names or (None if examples is None else examples.class_names)
        classes = self.network.classes or (10 if names is None else len(names))
        model = replace(self.network, classes=classes).load(examples).to(accelerator(self.device).device)
        require(not is_onnx(model), f"serve: {NEEDS_GRADIENTS}")
        calibration = read_calibration(self.network.source, model)
        voter = read_voter(self.network.source, model, calibration)
        usual = USUAL_SIZE if examples is None else examples.size
        return examples, ServedNetwork(
            model,
            self._settings(),
            seed=secrets.randbits(62),
            shape=(model.spec.channels, *height_and_width(self.network.image_size or model.spec.size or usual)),
            class_names=names,
            calibration=calibration,
            voter=None if voter is None else voter.to(device_of(model)),
        )

    def _settings(self) -> Settings | None:
        """How the average is certified; None without noise."""
        if self.sigma is None:
            return None
        return Settings(self.sigma, n=self.n, alpha=self.alpha, adaptive=True, tolerance=TOLERANCE)

    def _examples(self) -> ImageFiles | None:
        """The data set of the examples: as asked, or the embedded images, if the network was trained on them."""
        from heatsmooth.results.run_info import RunInfo

        if self.data is not None:
            return ImageFiles(data=self.data, data_root=self.data_root)
        file = self.network.source / "run.json"
        name = (RunInfo.read(file).chosen.data.name or "") if file.is_file() else ""
        return ImageFiles(data=EMBEDDED) if name.partition("/")[0] in (EMBEDDED, "fashion-mnist") else None

    def run(self, progress: Progress = silent) -> None:
        """Serve until Ctrl-C."""
        from heatsmooth.progress import bar

        with bar(shown=progress is not silent) as opening:
            server = self.open(opening)
        if server.exposed:
            who = "whoever reaches it" if self.token_file is None else "whoever has the token"
            print(f"heatsmooth: warning: {who} can use {server.url}; there is no encryption", file=sys.stderr)
        signal.signal(signal.SIGTERM, signal.default_int_handler)
        try:
            print(f"{server.url} (Ctrl-C ends it)", flush=True)
            server.serve_forever()
        except KeyboardInterrupt:
            print("heatsmooth: stopped", file=sys.stderr)
        finally:
            server.close()

    def show(self, result: Any) -> None:
        """Nothing is left to show."""


def _token(file: Path) -> str:
    try:
        token = file.read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"`token_file` {file}: expected a token, got {error}; check the file") from None
    require(
        len(token) >= SHORTEST_TOKEN and token.isprintable() and " " not in token,
        f"`token_file` {file}: expected a token of at least {SHORTEST_TOKEN} characters without spaces, got another; "
        "write one with openssl rand -hex 16",
    )
    return token


def _lines(file: Path) -> tuple[str, ...]:
    try:
        lines = tuple(line.strip() for line in file.read_text(encoding="utf-8").splitlines() if line.strip())
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"`class_names` {file}: expected one name per line, got {error}; check the file") from None
    require(bool(lines), f"`class_names` {file}: expected one name per line, got none; write one for each class")
    return lines
