"""Networks that ``heatsmooth push`` published, in a folder or on the Hugging Face hub. They hold data only, no code."""

from pathlib import Path
from typing import Any

from heatsmooth.errors import InputError, first_line

MARKER = "heatsmooth.json"
"""The file that tells such a folder or repository from others; it describes the network."""
NEEDED = (MARKER, "model.safetensors", "run.json", "calibration.json", "votes.safetensors")
"""What a network is used with."""
RECORDS = "records"
PATTERNS = (*NEEDED, "README.md", f"{RECORDS}/*/*.json", f"{RECORDS}/*/*.jsonl")
"""Everything that ``push`` writes, and all that ``pull`` takes."""


def published(name: str) -> Path | None:
    """The local copy of the network ``hf:name``, if heatsmooth published it; None if something else is there."""
    if Path(name).is_dir():
        return Path(name) if (Path(name) / MARKER).is_file() else None
    try:
        hub = client(f"hf:{name}")
        hub.hf_hub_download(name, MARKER)
    except (OSError, ValueError):  # no such file or repository, no network, or no name of a repository
        return None
    return downloaded(name, NEEDED)


def downloaded(name: str, patterns: tuple[str, ...] = PATTERNS) -> Path:
    """The files of the repository ``name`` that match, in the cache of the hub."""
    try:
        return Path(client(f"hf:{name}").snapshot_download(name, allow_patterns=list(patterns)))
    except (OSError, ValueError) as error:
        raise InputError(
            f"hf:{name}: expected a network on the hub, got {first_line(error)}; check the name and the connection"
        ) from None


def client(name: str) -> Any:
    """The package huggingface_hub."""
    try:
        import huggingface_hub
    except ImportError:
        raise InputError(
            f"{name}: expected the package huggingface_hub, got none; pip install huggingface_hub"
        ) from None
    return huggingface_hub
