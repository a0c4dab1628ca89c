"""Opens a transformers model: a local folder, a run's folder, a hub id or a GGUF file.

The weights of a GGUF file are dequantized once, into the cache.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from copy import deepcopy
from dataclasses import dataclass, field, replace
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any, Literal

import torch

from surefit.core.files import refuse_special_inside
from surefit.core.foreign import library_reads
from surefit.data.cache import fingerprint
from surefit.data.cache_contents import has_room
from surefit.data.cache_entry import file_fingerprint, open_entry
from surefit.data.hub import model_place, weights_place
from surefit.errors import UsageError
from surefit.findings import note, rule
from surefit.gigabytes import show_size
from surefit.inputs.encoder import Encoder
from surefit.inputs.model_hints import Hints, from_processor
from surefit.inputs.tokenizer import has_tokenizer, header_parsed_once
from surefit.models.feature_model import (
    build_feature_model,
    has_feature_layers,
    read_sizes,
)
from surefit.models.load_shards import build_late, whole_bytes
from surefit.models.model_source import NO_LIMITS, Built, ModelSource, WeightLimits
from surefit.models.module_inputs import extractor_inputs
from surefit.models.quantize import BYTES_SHARE, quantization, quantize_on_meta
from surefit.models.transformers_models import (
    auto_class,
    auto_classes,
    building,
    fit_embeddings,
    forward_arguments,
    input_size,
    load_weights,
    max_positions,
    new_model,
    quiet_transformers,
    set_head,
    set_tokens,
)
from surefit.processes import num_processes
from surefit.targets.task_spec import Head
from surefit.user_code.named_code import guard_remote

NO_WEIGHTS = rule(
    "SF407",
    "warning",
    "model folder without weights",
    why="Rows, memory and time are planned from the config; the model could not be run.",
    fix="Add the weights to the folder to train the model.",
)


OVER_THIS_MACHINE = rule(
    "SF409",
    "info",
    "model larger than this machine's memory",
    why="Rows, memory and time are planned from the config; the model could not be run here.",
    fix="Nothing to do for a plan. To train it, use a machine with more memory, or parallel=fsdp.",
)

MAX_LAYERS = 10_000
GGUF = b"GGUF"
"""The first bytes of a GGUF file."""


def open_pretrained(
    name: str,
    from_scratch: bool,
    trust_remote_code: bool,
    quantize: str | None = None,
    limits: WeightLimits = NO_LIMITS,
) -> ModelSource:
    """Return a model folder, a run's folder or a hub id, through the Auto class of the task.

    A model with more weights than the limits allow is built without them.
    """
    model = read_pretrained(name, from_scratch, trust_remote_code, quantize, limits)
    name, config = model.name, model.config
    is_outlined = model.loads == "whole" and not from_scratch
    return ModelSource(
        name,
        "pretrained",
        model.build,
        max_positions=max_positions(config),
        auto_classes=auto_classes(config),
        model_type=config.model_type,
        decoder_start=getattr(config, "decoder_start_token_id", None),
        tokenizer=name if not Path(name).is_dir() or has_tokenizer(name) else None,
        untrained=from_scratch,
        trust_remote_code=trust_remote_code,
        loads=model.loads,
        outline=replace(model, is_outline=True).build if is_outlined else None,
        arguments=partial(forward_arguments, config),
        hints=partial(_hints, name, config),
        follows_rows=from_scratch,
        image=_image_format(name, config, trust_remote_code),
        audio=partial(extractor_inputs, name, config, trust_remote_code),
    )


def open_gguf(name: str, from_scratch: bool) -> ModelSource:
    """Return a GGUF file, through the Auto class of the task; it also holds the tokenizer.

    Its weights are dequantized, so that the model can be trained and saved.
    """
    path = find_gguf(name)
    model = Pretrained(name, read_gguf_config(path), from_scratch, gguf=path)
    return ModelSource(
        name,
        "gguf",
        model.build,
        None if from_scratch else replace(model, is_outline=True).build,
        max_positions=max_positions(model.config),
        auto_classes=auto_classes(model.config),
        model_type=model.config.model_type,
        tokenizer=str(path),
        arguments=partial(forward_arguments, model.config),
        untrained=from_scratch,
    )


def read_pretrained(
    name: str,
    from_scratch: bool,
    trust_remote_code: bool,
    quantize: str | None = None,
    limits: WeightLimits = NO_LIMITS,
) -> Pretrained:
    """Read the config of a model folder, a run's folder or a hub id, and how it is to be built."""
    name = model_place(model_folder(name))
    refuse_special_inside(name)
    more = quantization(quantize) if quantize is not None and not from_scratch else {}
    config = _read_config(name, trust_remote_code)
    model = Pretrained(name, config, from_scratch, trust_remote_code, more)
    if not from_scratch and _is_weightless(name):
        return replace(model, loads="config")
    if limits == NO_LIMITS:
        return model
    size = _weight_bytes(name, config, from_scratch)
    # For a plan alone, nothing is downloaded to read where its weights are.
    at_hand = from_scratch or Path(name).is_dir() or num_processes() > 1
    if at_hand and quantize is None and limits.sharded is not None and size > limits.sharded:
        return replace(model, loads="late", size=size)
    held = int(BYTES_SHARE * size) if quantize is not None else size
    if limits.host is not None and held > limits.host:
        return replace(model, loads="config", size=size)
    return model


@dataclass(frozen=True)
class Pretrained:
    """A transformers model that is known by its config, to be built for a task and its data."""

    name: str
    config: Any
    from_scratch: bool
    trust_remote_code: bool = False
    quantization: Mapping[str, Any] = field(default_factory=dict)
    """Arguments of `from_pretrained` that load weights in 4 bits."""
    gguf: Path | None = None
    loads: Literal["whole", "late", "config"] = "whole"
    """Which weights are loaded: all, none before the model is sharded, or none at all."""
    size: int = 0
    """Bytes of weights in float32 that are more than may be loaded; 0 if the model has none."""
    is_outline: bool = False
    """Whether its weights are left out although they could be loaded."""

    def build(self, head: Head | None, encoder: Encoder) -> Built:
        """Return the model of the task, sized to the data."""
        name, config, trusted = self.name, self.config, self.trust_remote_code
        if head is not None and head.body is not None and self.gguf is None:
            if self.quantization:
                raise UsageError(
                    "lora.quantize=4bit does not support features.", "Leave out lora.quantize."
                )
            return build_feature_model(name, config, head, encoder, self.from_scratch, trusted)
        auto = auto_class(name, config, head)
        set_head(config, head, encoder)
        set_tokens(config, encoder.tokenizer)
        with quiet_transformers(), building(name):
            if self.loads == "config" or self.is_outline:
                return self._without_weights(auto)
            if self.loads == "late":
                return self._late(auto, encoder.tokenizer)
            return fit_embeddings(self._whole(auto), encoder.tokenizer)

    def _whole(self, auto: Any) -> Built:
        if self.from_scratch:
            return Built(new_model(auto, self.config, self.trust_remote_code))
        if self.gguf is not None:
            return load_gguf(auto, self.gguf, self.config)
        return load_weights(
            auto, self.name, self.config, self.trust_remote_code, **self.quantization
        )

    def _late(self, auto: Any, tokenizer: Any) -> Built:
        """The model without weights, which it gets when it is sharded; loaded whole if it must."""
        place = None if self.from_scratch else weights_place(self.name)
        built = build_late(auto, self.config, place, tokenizer, self.trust_remote_code)
        if built is None:
            built = fit_embeddings(self._whole(auto), tokenizer)
            message = (
                f"The weights of {self.name} ({show_size(self.size)} in float32) cannot be read or "
                "drawn shard by shard: they are not in safetensors files, are converted as they "
                "are loaded, or are computed from one another. Each process builds the model whole "
                "before it is sharded."
            )
        else:
            does = "draws" if self.from_scratch else "reads"
            message = (
                f"The weights of {self.name} are {show_size(self.size)} in float32; each process "
                f"{does} its shard when training starts. Not done in planning: probes of the model "
                "on its rows, padding-free batches, the trial of the learning rate."
            )
        return replace(built, findings=(*built.findings, note(message)))

    def _without_weights(self, auto: Any) -> Built:
        """Return the model on the meta device, from which memory and time can be predicted."""
        module = _on_meta(auto, self.config, self.trust_remote_code)
        if self.quantization:
            quantize_on_meta(module, self.quantization["quantization_config"])
        if self.is_outline:
            return Built(module)
        found = NO_WEIGHTS.finding(f"{self.name} has no weights; the plan uses its config alone.")
        if self.size:
            found = OVER_THIS_MACHINE.finding(
                f"The weights of {self.name} are {show_size(self.size)} in float32, more than the "
                "memory of this machine; the plan uses the model's config alone. Not done: probes "
                "of the model on its rows, padding-free batches, the trial of the learning rate."
            )
        return Built(module, (found,))


def _hints(name: str, config: Any) -> Hints:
    """Return the sizes in a body's config, or the feature size of its trained projection."""
    if has_feature_layers(Path(name)):
        return Hints(trained=int(read_sizes(Path(name))["width"]))
    text = config.get_text_config()
    hidden = getattr(text, "hidden_size", None)
    return Hints(
        vocab_size=getattr(text, "vocab_size", None),
        hidden_size=input_size(text) if isinstance(hidden, int) else None,
        positions=max_positions(text),
    )


def model_folder(name: str) -> str:
    """Return the model inside a run's folder; any other name as it is."""
    inside = Path(name) / "model"
    is_run = (Path(name) / "plan.json").is_file() and (inside / "config.json").is_file()
    return str(inside) if is_run else name


def _is_weightless(name: str) -> bool:
    """Return whether a folder has a config and no weights of any kind."""
    folder = Path(name)
    kinds = ("*.safetensors", "*.bin", "*.pt", "*.pth", "*.h5", "*.msgpack", "*.index.json")
    return folder.is_dir() and not any(next(folder.glob(kind), None) for kind in kinds)


def _on_meta(auto: Any, config: Any, trust_remote_code: bool) -> Any:
    with torch.device("meta"):
        return new_model(auto, config, trust_remote_code)


def _weight_bytes(name: str, config: Any, from_scratch: bool) -> int:
    """Return bytes of the weights in float32; 0 if that is not known before they are loaded.

    Of what is not in a local folder, only the config is asked for.
    """
    in_files = 0 if from_scratch else whole_bytes(Path(name))
    if in_files:
        return in_files
    from transformers import AutoModel

    try:
        with quiet_transformers():
            body = _on_meta(AutoModel, config, False)
    except Exception:  # it has a class for its task only; building that one says what is wrong
        return 0
    return sum(4 * weight.numel() for weight in body.parameters())


def _read_config(name: str, trust_remote_code: bool) -> Any:
    from transformers import AutoConfig

    folder = Path(name)
    if folder.is_dir() and not (folder / "config.json").is_file():
        raise UsageError(
            f"The folder {name} has no config.json, so it is not a transformers model.",
            "Pass the folder that save_pretrained wrote.",
        )
    if folder.is_file() or (name.startswith((".", "/", "~")) and not folder.exists()):
        raise UsageError(f"{name} is not a model folder.", "Check the path.")
    what, fix = (
        f"The model {name!r} is neither a local folder nor a model on the hub",
        "Check the name, or pass a local folder, tiny:ARCH or module:function.",
    )
    if folder.is_dir():
        what = f"{folder / 'config.json'} is not the config of a transformers model"
        fix = "Pass the folder that save_pretrained wrote, or download it again."
    with library_reads(what, fix), guard_remote(name, trust_remote_code):
        config = AutoConfig.from_pretrained(name, trust_remote_code=trust_remote_code)
    _refuse_endless(name, config)
    return config


def _refuse_endless(name: str, config: Any) -> None:
    """Refuse a config of a number of layers that cannot be built."""
    for key, value in _numbers("", config.to_dict()):
        is_count = "layer" in key or "depth" in key
        if is_count and (value > MAX_LAYERS or (value < 0 and key.startswith("n"))):
            raise UsageError(
                f"The config of {name} has {key}={value:,}; expected 0 to {MAX_LAYERS:,}.",
                "Download the model again, or correct its config.json.",
            )


def _numbers(key: str, value: Any) -> Iterator[tuple[str, int]]:
    """Yield the whole numbers of a config, its inner configs and lists, with their keys."""
    if isinstance(value, int):
        yield key, value
    for name, each in value.items() if isinstance(value, dict) else ():
        yield from _numbers(str(name), each)
    for each in value if isinstance(value, list | tuple) else ():
        yield from _numbers(key, each)


def _image_format(name: str, config: Any, trust_remote_code: bool) -> dict[str, Any]:
    """Size, mean and std of images from the model's image processor, else its config's size."""
    if "AutoModelForImageClassification" not in auto_classes(config):
        return {}
    from transformers import AutoImageProcessor  # takes a second

    what = f"The image processor of {name} cannot be used"
    fix = "Correct its preprocessor_config.json, or download the model again."
    with library_reads(what, fix), quiet_transformers():
        try:
            processor = AutoImageProcessor.from_pretrained(
                name, trust_remote_code=trust_remote_code
            )
        except (OSError, ValueError, KeyError, ImportError):
            processor = None  # the model has no image processor
        known = from_processor(processor.to_dict()) if processor is not None else {}
    vision = getattr(config, "vision_config", None) or config
    size = getattr(vision, "image_size", None)
    if "size" not in known and size:
        known["size"] = [size, size] if isinstance(size, int) else list(size)
    return known


def find_gguf(name: str) -> Path:
    """Return the path of a GGUF file; refuse what is none."""
    path = Path(name).expanduser()
    if not path.is_file():
        raise UsageError(f"The file {name} does not exist.", "Check the path of the GGUF file.")
    with path.open("rb") as file:
        start = file.read(len(GGUF))
    if start != GGUF:
        raise UsageError(
            f"{name} is not a GGUF file: it starts with {start!r}, expected {GGUF!r}.",
            "Pass a GGUF file or a transformers folder.",
        )
    return path.absolute()


def read_gguf_config(path: Path) -> Any:
    """Return the transformers config that the header of a GGUF file describes."""
    from transformers import AutoConfig

    what = f"The GGUF file {path.name} cannot be read"
    fix = "Download it again, or pass the transformers folder it was made from."
    with library_reads(what, fix), quiet_transformers(), header_parsed_once():
        return AutoConfig.from_pretrained(str(path.parent), gguf_file=str(path))


def load_gguf(auto: Any, path: Path, config: Any) -> Built:
    """Load the model of a GGUF file in float32.

    Dequantizing takes longer than reading float32 weights, so these are kept in the cache where
    they fit. Weights that the file lacks, such as a new head, are not kept: they are drawn anew.
    """
    with torch.device("meta"):
        plain = new_model(auto, config)
    if not has_room(4 * sum(each.numel() for each in plain.parameters())):
        return _dequantize(auto, path, config)

    def read(folder: Path) -> Built:
        built = load_weights(auto, str(folder), config, False)
        module: Any = built.module
        for named in (config, module.config, module):  # the origin is the file, not the entry
            named.name_or_path = str(path.parent)
        if module.can_generate():  # a GGUF file has no settings for it, those of the config hold
            module.generation_config = plain.generation_config
        return built

    versions = [version(name) for name in ("transformers", "gguf")]
    # A weight whose size depends on the number of classes is not kept where it differs.
    about = (auto.__name__, getattr(config, "num_labels", None))
    key = fingerprint(file_fingerprint(path), *versions, *about)
    return open_entry("gguf-weights", key, partial(_fill, auto, path, config), read)


def _fill(auto: Any, path: Path, config: Any, folder: Path) -> None:
    """Write the weights of a GGUF file as transformers saves them, without those it lacks."""
    with torch.random.fork_rng(devices=()):  # what it lacks is drawn when the entry is read
        built = _dequantize(auto, path, deepcopy(config))
    module: Any = built.module
    new = {*built.newly_initialized}
    weights = {name: each for name, each in module.state_dict().items() if name not in new}
    module.save_pretrained(folder, state_dict=weights)
    module.to("meta")  # frees the weights at once, even if the module is in a reference cycle


def _dequantize(auto: Any, path: Path, config: Any) -> Built:
    """Load the model from the GGUF file itself, without the flags of a quantized one."""
    from transformers import GgufConfig
    from transformers import modeling_gguf_pytorch_utils as reader

    bar, quantized = reader.tqdm, GgufConfig(gguf_file=str(path), dequantize=True)
    reader.tqdm = partial(bar, disable=True)  # transformers has no setting for it
    try:
        more = {"gguf_file": str(path), "quantization_config": quantized}
        built = load_weights(auto, str(path.parent), config, False, **more)
    finally:
        reader.tqdm = bar
    module: Any = built.module
    if getattr(module.config, "quantization_config", None) is not None:
        del module.config.quantization_config
    module.is_quantized = False
    return built
