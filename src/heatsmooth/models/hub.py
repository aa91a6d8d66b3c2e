"""Image classifiers of Hugging Face transformers, from a local directory or the hub. Their code is the library's own.

A configuration that names other code is refused. ``trust_remote_code`` is False in every call: where it is left out,
transformers asks on standard input, and runs the code of the repository if the answer is yes.
"""

import json
import logging
import pickle
from dataclasses import replace
from pathlib import Path
from typing import Any

import safetensors
import torch
from torch import nn

from heatsmooth.errors import InputError, first_line, require
from heatsmooth.models.archives import DAMAGED, tensors_only
from heatsmooth.models.spec import NetworkSpec

PREFIX = "hf:"
CONFIG_FILE = "config.json"
PASSING = frozenset({"_name_or_path", "transformers_version", "dtype", "torch_dtype"})
"""What a configuration says of where and how it was saved, not of the network."""


def hub_name(source: Path) -> str | None:
    """NAME of ``hf:NAME``, or the path of a directory that transformers saved; None for anything else."""
    text = str(source)
    if text.startswith(PREFIX):
        return text.removeprefix(PREFIX)
    return text if (source / CONFIG_FILE).is_file() else None


def hub_spec(name: str, *, classes: int | None = None, channels: int | None = None) -> NetworkSpec:
    """The network ``hf:name`` by its configuration, without normalisation; other ``classes`` or ``channels`` if asked.

    ``config.num_labels`` is the number of classes; the size is the processor's crop, else the configuration's.
    """
    transformers = _transformers(name)
    changes = {"num_labels": classes, "num_channels": channels}
    try:
        _refuse_code(name, transformers.PretrainedConfig.get_config_dict(name)[0])
        config = transformers.AutoConfig.from_pretrained(
            name, trust_remote_code=False, **{key: value for key, value in changes.items() if value is not None}
        )
    except InputError:
        raise
    except (OSError, ValueError, KeyError, TypeError, AttributeError, ImportError, RecursionError) as error:
        raise _unfit(name, error) from None
    size = _image_size(_processor(name) or {}, config)
    count, depth = int(config.num_labels), int(getattr(config, "num_channels", 3))
    said = {key: value for key, value in config.to_dict().items() if key not in PASSING}
    return NetworkSpec(PREFIX + name, count, depth, size=size, config=json.dumps(said, sort_keys=True))


def build_network(spec: NetworkSpec) -> nn.Module:
    """The network with random weights, by the configuration of ``spec`` (or, where it has none, of its name)."""
    name = spec.architecture.removeprefix(PREFIX)
    transformers = _transformers(name)
    if spec.config is None:
        spec = hub_spec(name, classes=spec.classes, channels=spec.channels)
    try:
        said = json.loads(spec.config or "{}")
        _refuse_code(name, said)
        config = transformers.AutoConfig.for_model(**said)
        with tensors_only():
            network = transformers.AutoModelForImageClassification.from_config(config, trust_remote_code=False)
    except InputError:
        raise
    except (ValueError, TypeError, KeyError, AttributeError, ImportError, RecursionError) as error:
        raise _unfit(name, error) from None
    assert isinstance(network, nn.Module)
    return network.float()


def pretrained(
    name: str, *, mean: tuple[float, ...] | None = None, std: tuple[float, ...] | None = None
) -> tuple[nn.Module, NetworkSpec]:
    """The network ``hf:name`` with its weights, in float32, and its spec with the processor's normalisation.

    Every weight must come from the checkpoint: a head that transformers would make up is refused. ``mean`` and
    ``std`` replace the processor's.
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
            f"hf:{name}: expected weights that are tensors alone, got a pickle that holds code; "
            "save them with model.save_pretrained"
        ) from None
    except (safetensors.SafetensorError, ImportError, *DAMAGED) as error:
        raise _unfit(name, error) from None
    for kind in ("missing", "mismatched", "unexpected"):
        found = sorted(map(str, loaded.get(f"{kind}_keys", ())))
        require(
            not found,
            f"hf:{name}: expected weights for exactly this classifier, got {len(found)} {kind} "
            f"(first: {(found or [''])[0]}); save a trained classifier with model.save_pretrained",
        )
    if mean is None and std is None:
        mean, std = _normalisation(name, spec.channels)
    mean = mean or (0.0,)
    return network, replace(spec, mean=mean, std=std or (1.0,) * len(mean))


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


def _refuse_code(name: str, config: Any) -> None:
    """Refuse a configuration that names code outside transformers, be it in a configuration within it.

    Such code is a Python file (``auto_map``) or an attention kernel on the hub (``owner/kernel``). Where transformers
    has a network of the same type, it is refused all the same: the file's own code may compute something else.
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


def _unfit(name: str, error: Exception) -> InputError:
    return InputError(
        f"hf:{name}: expected an image classifier of transformers, a directory or a name on the hub, "
        f"got {first_line(error)}; check the name"
    )


def _processor(name: str) -> dict[str, Any] | None:
    """What ``preprocessor_config.json`` says; read, not run: fast processors would need torchvision."""
    from transformers.image_processing_base import ImageProcessingMixin

    try:
        found, _ = ImageProcessingMixin.get_image_processor_dict(name)
    except OSError:
        return None
    return dict(found)


def _normalisation(name: str, channels: int) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and deviation, for images in [0, 1], that do what the processor does to bytes: rescale, then normalise."""
    remedy = "say it with --mean and --std (0 and 1 for none)"
    said = _processor(name)
    if said is None:
        raise InputError(
            f"hf:{name}: expected its normalisation in preprocessor_config.json, got no such file; {remedy}"
        )
    factor = float(said.get("rescale_factor", 1 / 255)) if said.get("do_rescale", True) else 1.0
    offset = 1.0 if said.get("rescale_offset") else 0.0
    mean, std = (said.get(key) for key in ("image_mean", "image_std"))
    if not said.get("do_normalize", mean is not None):
        mean, std = 0.0, 1.0
    if mean is None or std is None:
        raise InputError(
            f"hf:{name}: expected image_mean and image_std in preprocessor_config.json, got none; {remedy}"
        )
    means, deviations = (value if isinstance(value, list) else [value] for value in (mean, std))
    fits = len(means) == len(deviations) and len(means) in (1, channels)
    require(
        fits, f"hf:{name}: expected {channels} means and deviations, got {len(means)} and {len(deviations)}; {remedy}"
    )
    scale = 255 * factor
    return tuple((float(m) + offset) / scale for m in means), tuple(float(s) / scale for s in deviations)


def _image_size(processor: dict[str, Any], config: Any) -> int | tuple[int, int] | None:
    """The side, or (height, width), of images: the processor's crop or size, else the configuration's; None if unknown.

    Of a shortest edge, the square is taken.
    """
    crops = processor.get("do_center_crop", "crop_size" in processor)
    for said in (
        processor.get("crop_size") if crops else None,
        processor.get("size"),
        getattr(config, "image_size", None),
    ):
        if isinstance(said, dict):
            said = [said[key] for key in ("height", "width", "shortest_edge") if key in said]
        sides = list(said) if isinstance(said, (list, tuple)) else [] if said is None else [said]
        if sides:
            known = len(sides) <= 2 and all(isinstance(side, int) for side in sides)
            return None if not known else sides[0] if sides[0] == sides[-1] else (sides[0], sides[1])
    return None
