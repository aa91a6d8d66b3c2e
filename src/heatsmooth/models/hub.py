"""Image classifiers of Hugging Face transformers, from a local directory or the hub. Only the library's own code runs.

A configuration that names other code is refused. Every call has ``trust_remote_code=False``: without it, transformers
asks on standard input, and runs the code of the repository if the answer is yes.
"""

import json
import logging
import pickle
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import safetensors
import torch
from torch import nn

from heatsmooth.errors import InputError, first_line, require
from heatsmooth.models.archives import DAMAGED, tensors_only
from heatsmooth.models.spec import NetworkSpec, Normalisation

PREFIX = "hf:"
CONFIG_FILE = "config.json"
UNRELATED = frozenset({"_name_or_path", "transformers_version", "dtype", "torch_dtype"})
"""Fields of a configuration that do not change the network."""


def hub_name(source: Path) -> str | None:
    """NAME of ``hf:NAME``, or the path of a directory that transformers saved; None for anything else."""
    text = str(source)
    if text.startswith(PREFIX):
        return text.removeprefix(PREFIX)
    return text if (source / CONFIG_FILE).is_file() else None


def hub_spec(name: str, *, classes: int | None = None, channels: int | None = None) -> NetworkSpec:
    """The network ``hf:name`` from its configuration, without normalisation.

    The number of classes is ``config.num_labels``. The size is that of the processor's crop, else the configuration's.

    ``classes``, ``channels``: replace those of the configuration.
    """
    transformers = _transformers(name)
    changes = {"num_labels": classes, "num_channels": channels}
    with _one_line_errors(name):
        _refuse_code(name, transformers.PretrainedConfig.get_config_dict(name)[0])
        config = transformers.AutoConfig.from_pretrained(
            name, trust_remote_code=False, **{key: value for key, value in changes.items() if value is not None}
        )
    facts = {key: value for key, value in config.to_dict().items() if key not in UNRELATED}
    return NetworkSpec(
        PREFIX + name,
        int(config.num_labels),
        int(getattr(config, "num_channels", 3)),
        size=_image_size(_processor(name) or {}, config),
        config=json.dumps(facts, sort_keys=True),
    )


def build_network(spec: NetworkSpec) -> nn.Module:
    """The network with random weights, from the configuration of ``spec``, or of its name if it has none."""
    name = spec.architecture.removeprefix(PREFIX)
    transformers = _transformers(name)
    if spec.config is None:
        spec = hub_spec(name, classes=spec.classes, channels=spec.channels)
    with _one_line_errors(name):
        facts = json.loads(spec.config or "{}")
        _refuse_code(name, facts)
        config = transformers.AutoConfig.for_model(**facts)
        with tensors_only():
            network = transformers.AutoModelForImageClassification.from_config(config, trust_remote_code=False)
    assert isinstance(network, nn.Module)
    return network.float()


def pretrained(name: str, normalisation: Normalisation | None = None) -> tuple[nn.Module, NetworkSpec]:
    """The network ``hf:name`` with its weights, in float32, and its spec.

    Every weight must come from the checkpoint: a head that transformers would initialise at random is refused.

    ``normalisation``: by default that of the processor.
    """
    transformers = _transformers(name)
    spec = hub_spec(name)
    try:
        with tensors_only():
            network, loaded = transformers.AutoModelForImageClassification.from_pretrained(
                name, trust_remote_code=False, dtype=torch.float32, output_loading_info=True
            )
    except pickle.UnpicklingError:
        raise InputError(
            f"hf:{name}: expected weights that are only tensors, got a pickle that holds code; "
            "save them with model.save_pretrained"
        ) from None
    except (safetensors.SafetensorError, ImportError, *DAMAGED) as error:
        raise _unfit(name, error) from None
    for kind in ("missing", "mismatched", "unexpected"):
        keys = sorted(map(str, loaded.get(f"{kind}_keys", ())))
        require(
            not keys,
            f"hf:{name}: expected weights for exactly this classifier, got {len(keys)} {kind} "
            f"(first: {(keys or [''])[0]}); save a trained classifier with model.save_pretrained",
        )
    return network, spec.normalised(normalisation or _normalisation(name, spec.channels))


def _transformers(name: str) -> Any:
    try:
        import transformers
    except ImportError:
        raise InputError(
            f"hf:{name}: expected the package transformers, got none; pip install 'heatsmooth[hf]'"
        ) from None
    logging.getLogger("huggingface_hub").setLevel(logging.CRITICAL)
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    return transformers


@contextmanager
def _one_line_errors(name: str) -> Iterator[None]:
    """Whatever transformers raises for a configuration as an ``InputError``."""
    try:
        yield
    except InputError:
        raise
    except (OSError, ValueError, KeyError, TypeError, AttributeError, ImportError, RecursionError) as error:
        raise _unfit(name, error) from None


def _unfit(name: str, error: Exception) -> InputError:
    return InputError(
        f"hf:{name}: expected an image classifier of transformers, a directory or a name on the hub, "
        f"got {first_line(error)}; check the name"
    )


def _refuse_code(name: str, config: Any) -> None:
    """Refuse a configuration that names code outside transformers, also in a nested configuration.

    Such code is a Python file (``auto_map``) or an attention kernel on the hub (``owner/kernel``). It is refused even
    if transformers has a network of the same type, because the file's own code may compute something else.
    """
    if isinstance(config, list):
        for part in config:
            _refuse_code(name, part)
    if not isinstance(config, dict):
        return
    for key, value in config.items():
        kernel = str(key).endswith("attn_implementation") and "/" in str(value)
        require(
            not kernel and not (key == "auto_map" and value),
            f"hf:{name}: expected a network whose code is in transformers, got a configuration that names other code "
            f"({key}); heatsmooth never runs it: write a module that builds it and name package.module:callable",
        )
        _refuse_code(name, value)


def _processor(name: str) -> Mapping[str, Any] | None:
    """The content of ``preprocessor_config.json``; only read, because running fast processors needs torchvision."""
    from transformers.image_processing_base import ImageProcessingMixin

    try:
        content, _ = ImageProcessingMixin.get_image_processor_dict(name)
    except OSError:
        return None
    return dict(content)


def _normalisation(name: str, channels: int) -> Normalisation:
    """Mean and deviation for images in [0, 1] that equal the processor's steps on bytes: rescale, then normalise."""
    remedy = "give it as `mean` and `std` (0 and 1 for none)"
    processor = _processor(name)
    if processor is None:
        raise InputError(
            f"hf:{name}: expected its normalisation in preprocessor_config.json, got no such file; {remedy}"
        )
    scale = 255 * _rescale_factor(processor)
    offset = 1.0 if processor.get("rescale_offset") else 0.0
    means, deviations = (_as_list(processor.get(key)) for key in ("image_mean", "image_std"))
    if not processor.get("do_normalize", bool(means)):
        means, deviations = [0.0], [1.0]
    require(
        bool(means and deviations),
        f"hf:{name}: expected image_mean and image_std in preprocessor_config.json, got none; {remedy}",
    )
    require(
        len(means) == len(deviations) and len(means) in (1, channels),
        f"hf:{name}: expected {channels} means and deviations, got {len(means)} and {len(deviations)}; {remedy}",
    )
    return tuple((float(m) + offset) / scale for m in means), tuple(float(s) / scale for s in deviations)


def _rescale_factor(processor: Mapping[str, Any]) -> float:
    return float(processor.get("rescale_factor", 1 / 255)) if processor.get("do_rescale", True) else 1.0


def _image_size(processor: Mapping[str, Any], config: Any) -> int | tuple[int, int] | None:
    """The size of images: the processor's crop or size, else the configuration's; None if unknown.

    A shortest edge counts as the side of a square.
    """
    crops = processor.get("do_center_crop", "crop_size" in processor)
    stated = (processor.get("crop_size") if crops else None, processor.get("size"), getattr(config, "image_size", None))
    sides = next((sides for value in stated if (sides := _as_list(value))), [])
    if len(sides) not in (1, 2) or not all(isinstance(side, int) for side in sides):
        return None
    return sides[0] if sides[0] == sides[-1] else (sides[0], sides[1])


def _as_list(value: Any) -> list[Any]:
    """A number, list of numbers or named sides of a configuration as a list; empty for None."""
    if isinstance(value, dict):
        return [value[key] for key in ("height", "width", "shortest_edge") if key in value]
    return list(value) if isinstance(value, list | tuple) else [] if value is None else [value]
