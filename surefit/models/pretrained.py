"""Models of transformers: a local folder or hub id, or a small untrained one (`tiny:ARCH`)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from surefit.data.hub import model_place
from surefit.encode.encoder import Encoder
from surefit.encode.features.feature_layout import Hints
from surefit.encode.images.pixel_format import from_processor
from surefit.encode.text.tokenizer import has_tokenizer
from surefit.errors import UsageError
from surefit.findings import Finding, rule
from surefit.models.config_sizes import input_size, max_positions, room_for
from surefit.models.model_rules import MODEL_READS_NO_FEATURES, NEW_HEAD, UNSUITABLE_MODEL
from surefit.models.model_source import Built, ModelSource
from surefit.models.quantize import quantization
from surefit.tasks.task_spec import Head

IMAGE_SIZE_REFUSED = rule(
    "SF253",
    "error",
    "size the model does not take",
    why="The model is made for pictures of one shape.",
    fix="Set image.size to one number, or leave it out.",
)

EMBEDDINGS_RESIZED = rule(
    "SF307",
    "fixed",
    "embeddings resized",
    why="The tokenizer knows more tokens than the model had rows for.",
    fix="Nothing to do.",
)

NO_WEIGHTS = rule(
    "SF407",
    "info",
    "weights are not here",
    why="Rows, memory and time are planned; the model itself could not be tried.",
    fix="Add the weights to the folder to train it.",
)


FAMILY_OF = {
    "AutoModelForCausalLM": "causal-lm",
    "AutoModelForMaskedLM": "masked-lm",
    "AutoModelForSeq2SeqLM": "seq2seq",
    "AutoModelForImageClassification": "image-classification",
    "AutoModelForSequenceClassification": "text-classification",
    "AutoModelForTokenClassification": "token-classification",
}
"""The families that `tiny:` knows, by the Auto class a task asks for."""

BODY_VOCABULARY = 16
"""Tokens of a body made for features, which reads none; room for the special ones."""


def open_pretrained(
    name: str, from_scratch: bool, trust_remote_code: bool, quantize: str | None = None
) -> ModelSource:
    """A model folder, a run's folder or a hub id, through the Auto class of the task."""
    name = model_place(_model_folder(name))
    more = quantization(quantize) if quantize is not None and not from_scratch else {}
    config = _read_config(name, trust_remote_code)
    weightless = not from_scratch and _is_weightless(name)

    def build(head: Head | None, encoder: Encoder) -> Built:
        if head is not None and head.body is not None:
            if quantize is not None:
                raise UsageError(
                    f"lora.quantize={quantize} is not for features.", "Leave lora.quantize out."
                )
            return _build_body(name, config, head, encoder, from_scratch, trust_remote_code)
        auto = auto_class(name, config, head)
        set_head(config, head, encoder)
        set_tokens(config, encoder.tokenizer)
        with quiet():
            if weightless:
                return _without_weights(auto, name, config, trust_remote_code, encoder.tokenizer)
            if from_scratch:
                built = Built(auto.from_config(config, trust_remote_code=trust_remote_code))
            else:
                built = load_weights(auto, name, config, trust_remote_code, **more)
        return fit_embeddings(built, encoder.tokenizer)

    return ModelSource(
        name,
        "pretrained",
        build,
        max_positions=max_positions(config),
        auto_classes=auto_classes(config),
        decoder_start=getattr(config, "decoder_start_token_id", None),
        tokenizer=name if not Path(name).is_dir() or has_tokenizer(name) else None,
        untrained=from_scratch,
        weightless=weightless,
        hints=partial(_hints, name, config),
        follows_rows=from_scratch,
        image=_image_format(name, config, trust_remote_code),
    )


def _hints(name: str, config: Any) -> Hints:
    """The sizes that a body's config names; a trained projection speaks for itself."""
    from surefit.models.feature_bodies import has_parts, trained_width

    if has_parts(Path(name)):
        return Hints(trained=trained_width(Path(name)))
    text = config.get_text_config()
    hidden = getattr(text, "hidden_size", None)
    return Hints(
        vocab_size=getattr(text, "vocab_size", None),
        hidden_size=input_size(text) if isinstance(hidden, int) else None,
        positions=max_positions(text),
    )


def open_tiny(arch: str) -> ModelSource:
    """A small untrained model of an architecture, with a tokenizer made from the data."""
    from surefit.models.tiny import FAMILIES, tiny_config

    try:
        probe = tiny_config(arch)
    except ValueError as error:
        raise UsageError(str(error), "`surefit tasks --models` lists them.") from None

    def build(head: Head | None, encoder: Encoder) -> Built:
        if head is not None and head.body is not None:
            positions = room_for(encoder.fitted["longest"])
            config = tiny_config(arch, vocab_size=BODY_VOCABULARY, max_positions=positions)
            return _build_body(f"tiny:{arch}", config, head, encoder, from_scratch=True)
        tokenizer = encoder.tokenizer
        try:
            config = tiny_config(
                arch,
                family=FAMILY_OF.get(head.auto_class or "") if head is not None else None,
                vocab_size=len(tokenizer) if tokenizer is not None else None,
                num_labels=head.size(encoder) if head is not None and head.size else None,
                **_image_size(encoder),
            )
        except ValueError as error:
            raise UNSUITABLE_MODEL.error(str(error)) from None
        auto = auto_class(f"tiny:{arch}", config, head)
        set_head(config, head, encoder)
        set_tokens(config, tokenizer)
        with quiet():
            return Built(auto.from_config(config))

    return ModelSource(
        f"tiny:{arch}",
        "tiny",
        build,
        max_positions=max_positions(probe),
        auto_classes=frozenset(
            name for name, family in FAMILY_OF.items() if arch in FAMILIES[family]
        )
        & auto_classes(probe),
        makes_tokenizer=True,
        untrained=True,
        follows_rows=True,
        image={"multiple_of": 32},
    )


def _build_body(
    name: str,
    config: Any,
    head: Head,
    encoder: Encoder,
    from_scratch: bool,
    trust_remote_code: bool = False,
) -> Built:
    """A body without a head of its own, for features; see `feature_bodies`."""
    from transformers import AutoModel

    from surefit.models.feature_bodies import build_features

    def load_body() -> Built:
        with quiet():
            if not from_scratch:
                return load_weights(AutoModel, name, config, trust_remote_code)
            try:
                return Built(AutoModel.from_config(config, trust_remote_code=trust_remote_code))
            except Exception as error:  # some architectures can be built with their own head only
                what = f"{type(error).__name__}: {error}"
                raise MODEL_READS_NO_FEATURES.error(
                    f"{name} cannot be built without a head: {what}"
                ) from error

    return build_features(name, config, head, encoder, load_body, from_scratch)


def _model_folder(name: str) -> str:
    """The model inside a run's folder; any other name as it is."""
    inside = Path(name) / "model"
    if (inside / "adapter_config.json").is_file() or (Path(name) / "adapter_config.json").is_file():
        raise UsageError(
            f"{name} holds LoRA adapters, not a whole model.",
            f"Merge them first: surefit export {name} OUT --merge, and give OUT as the model.",
        )
    is_run = (Path(name) / "plan.json").is_file() and (inside / "config.json").is_file()
    return str(inside) if is_run else name


def _is_weightless(name: str) -> bool:
    """Whether a folder has a config and no weights of any kind."""
    folder = Path(name)
    kinds = ("*.safetensors", "*.bin", "*.pt", "*.pth", "*.h5", "*.msgpack", "*.index.json")
    return folder.is_dir() and not any(next(folder.glob(kind), None) for kind in kinds)


def _without_weights(
    auto: Any, name: str, config: Any, trust_remote_code: bool, tokenizer: Any
) -> Built:
    """The model as shapes alone, of which memory and time can be predicted."""
    import torch

    with torch.device("meta"):
        module = auto.from_config(config, trust_remote_code=trust_remote_code)
    message = f"{name} holds no weights; what follows is planned from its config alone."
    return Built(module, (NO_WEIGHTS.finding(message),))


def _read_config(name: str, trust_remote_code: bool) -> Any:
    from transformers import AutoConfig

    folder = Path(name)
    if folder.is_dir() and not (folder / "config.json").is_file():
        raise UsageError(
            f"The folder {name} has no config.json, so it is not a transformers model.",
            "Give the folder that save_pretrained wrote.",
        )
    if folder.is_file() or (name.startswith((".", "/", "~")) and not folder.exists()):
        raise UsageError(f"{name} is not a model folder.", "Check the path.")
    try:
        return AutoConfig.from_pretrained(name, trust_remote_code=trust_remote_code)
    except (OSError, ValueError) as error:
        first = str(error).strip().splitlines()[0]
        raise UsageError(
            f"The model {name!r} is neither a local folder nor a model the hub gave: {first}",
            "Check the name, or give a local folder, tiny:ARCH or module:function.",
        ) from None


def _image_size(encoder: Encoder) -> dict[str, int]:
    pixels = encoder.fitted.get("pixels")
    if pixels is None:
        return {}
    if pixels["height"] != pixels["width"]:
        raise IMAGE_SIZE_REFUSED.error(
            f"image.size is {pixels['height']} × {pixels['width']}; a tiny model takes squares.",
        )
    return {"image_size": pixels["height"]}


def _image_format(name: str, config: Any, trust_remote_code: bool) -> dict[str, Any]:
    """Size and scale of pictures by the model's own processor, else the size in its config."""
    if "AutoModelForImageClassification" not in auto_classes(config):
        return {}
    from transformers import AutoImageProcessor  # takes a second

    known: dict[str, Any] = {}
    try:
        with quiet():
            processor = AutoImageProcessor.from_pretrained(
                name, trust_remote_code=trust_remote_code
            )
        known = from_processor(processor.to_dict())
    except (OSError, ValueError, KeyError, ImportError):
        pass  # it comes without one
    vision = getattr(config, "vision_config", None) or config
    size = getattr(vision, "image_size", None)
    if "size" not in known and size:
        known["size"] = [size, size] if isinstance(size, int) else list(size)
    return known


def auto_classes(config: Any) -> frozenset[str]:
    """The Auto classes that have a model for this config, of those a task may ask for."""
    import transformers

    found = {
        name for name in FAMILY_OF if type(config) in getattr(transformers, name)._model_mapping
    }
    if _reads_both_ways(config) or getattr(config, "is_encoder_decoder", False):
        found.discard("AutoModelForCausalLM")
    return frozenset(found)


def _reads_both_ways(config: Any) -> bool:
    """Whether an architecture with a causal variant is set to see the whole row at once."""
    from transformers.models.auto import modeling_auto

    masked = modeling_auto.MODEL_FOR_MASKED_LM_MAPPING_NAMES
    return config.model_type in masked and not getattr(config, "is_decoder", False)


def auto_class(name: str, config: Any, head: Head | None) -> Any:
    """The Auto class of the task, if the architecture has such a model; else a Finding."""
    import transformers

    if head is None or head.auto_class is None:
        raise UNSUITABLE_MODEL.error(
            f"{name} is a {config.model_type} model; this task takes your own nn.Module.",
            fix="Give the model as module:function.",
        )
    auto = getattr(transformers, head.auto_class)
    wanted = head.auto_class.removeprefix("AutoModelFor")
    if type(config) not in auto._model_mapping and not hasattr(config, "auto_map"):
        raise UNSUITABLE_MODEL.error(
            f"{name} is a {config.model_type} model, and transformers has no {config.model_type} "
            f"model for {wanted}.",
        )
    if wanted == "CausalLM" and _reads_both_ways(config):
        raise UNSUITABLE_MODEL.error(
            f"{name} is a {config.model_type} model, which sees the whole row at once; a causal "
            "model must not see the tokens it is to predict.",
            fix="Choose a causal model, such as a Llama, Qwen or GPT-2 one.",
        )
    return auto


def set_head(config: Any, head: Head | None, encoder: Encoder) -> None:
    """Size the config's head, and give it the settings that the task asks for."""
    if head is None:
        return
    if head.size is not None:
        config.num_labels = head.size(encoder)
    for key, value in (head.config(encoder) if head.config else {}).items():
        setattr(config, key, value)


def set_tokens(config: Any, tokenizer: Any) -> None:
    """Let the config name the tokenizer's special tokens."""
    if tokenizer is None:
        return
    config.pad_token_id = tokenizer.pad_token_id
    for name in ("bos_token_id", "eos_token_id"):
        if getattr(tokenizer, name, None) is not None and _eos_is_settled(config, name):
            setattr(config, name, getattr(tokenizer, name))


def _eos_is_settled(config: Any, name: str) -> bool:
    """Whether the config names no list of end tokens of its own, which would be kept."""
    return not isinstance(getattr(config, name, None), list)


def load_weights(auto: Any, name: str, config: Any, trust_remote_code: bool, **more: Any) -> Built:
    """The trained weights; those that the file lacks, or has in another size, are named."""
    import torch
    from safetensors import SafetensorError

    try:
        module, info = auto.from_pretrained(
            name,
            config=config,
            dtype=torch.float32,
            trust_remote_code=trust_remote_code,
            ignore_mismatched_sizes=True,
            output_loading_info=True,
            use_safetensors=True,
            **more,
        )
    except (OSError, ValueError, RuntimeError, SafetensorError) as error:
        first = str(error).strip().splitlines()[0]
        raise UNSUITABLE_MODEL.error(
            f"The weights of {name} could not be loaded: {first}",
            fix="Fetch the model again; its weights file is missing or damaged.",
        ) from None
    resized = [key[0] if isinstance(key, tuple) else key for key in info["mismatched_keys"]]
    fresh = sorted({*info["missing_keys"], *resized})
    found: tuple[Finding, ...] = ()
    if fresh:
        shown = ", ".join(fresh[:4]) + (" …" if len(fresh) > 4 else "")
        found = (NEW_HEAD.finding(f"{len(fresh)} weights start untrained: {shown}"),)
    return Built(module, found, fresh=tuple(fresh))


def fit_embeddings(built: Built, tokenizer: Any) -> Built:
    """Give every token of the tokenizer a row in the embeddings."""
    if tokenizer is None:
        return built
    module: Any = built.module
    had = module.get_input_embeddings().weight.shape[0]
    if len(tokenizer) <= had:
        return built
    module.resize_token_embeddings(len(tokenizer))
    message = f"The tokenizer has {len(tokenizer)} tokens, the model had rows for {had}."
    return replace(
        built,
        findings=(*built.findings, EMBEDDINGS_RESIZED.finding(message)),
        added_tokens=range(had, len(tokenizer)),
    )


@contextmanager
def quiet() -> Iterator[None]:
    """Keep transformers' own bars and load reports out of our streams."""
    from transformers.utils import logging

    before = logging.get_verbosity()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(before)
        logging.enable_progress_bar()
