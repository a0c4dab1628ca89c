"""LoRA adapters: target modules that do not exist, loading, and adapters that train nothing."""

from __future__ import annotations

import re

from surefit.explainer.cause import Cause, Context, Message

LLAMA_LAYERS = {"q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"}


def _other_names(context: Context) -> list[str]:
    named = re.findall(r"[\w.]+", context.word("targets"))
    if not named or not set(named) <= LLAMA_LAYERS:
        return []
    return [
        f"These are names of Llama-like models: {', '.join(named)}. GPT-2 has c_attn; GPT-NeoX, "
        "BLOOM and Falcon have query_key_value; BERT has query and value; T5 has q and v."
    ]


CAUSES = (
    Cause(
        "SF687",
        "the model has no layers with the names of target_modules",
        messages=(
            Message(r"Target modules (?P<targets>.{1,200}?) not found in the base model"),
            Message(r"Please specify `target_modules`"),
        ),
        why="LoRA finds layers by name, and this architecture uses other names. peft has defaults "
        "only for the architectures in its table.",
        fix="Use target_modules='all-linear', or names from print(model). A string is a regular "
        "expression, a list holds the last parts of names.",
        derive=_other_names,
    ),
    Cause(
        "SF688",
        "LoRA does not support the type of a target layer",
        messages=(Message(r"Target module (?P<layer>\w{1,60})\(.{0,120}?\) is not supported"),),
        why="The name also matches a layer that is not a linear, embedding or convolution layer: a "
        "norm, a container, or a quantised layer of an unknown type.",
        fix="Restrict target_modules to linear layers, or use 'all-linear'.",
    ),
    Cause(
        "SF689",
        "the folder has no adapter",
        messages=(
            Message(r"Can't find '?adapter_config\.json'? at '?(?P<path>[^'\s]{1,200})"),
            Message(r"ValueError: Adapter (?P<name>\S{1,120}) not found", needs_library=True),
        ),
        why="The run saved the whole model, the adapter is in checkpoint-N/, or save_pretrained "
        "was called on the merged model.",
        fix="Look for adapter_config.json and adapter_model.safetensors. Save with "
        "peft_model.save_pretrained(folder).",
    ),
    Cause(
        "SF690",
        "the adapter does not fit the base model",
        messages=(
            Message(r"Found missing adapter keys while loading the checkpoint"),
            Message(
                r"(?:Loading adapter weights from .{0,120} led to|Found) (?:unexpected|missing) "
                r"keys",
                seen="YiyangZhou/POVID#13",
            ),
            Message(r"You are trying to modify a model with PEFT for a second time"),
        ),
        why="Some adapter weights were not loaded or stay untrained. The base model has other "
        "layers or names than the one the adapter was trained on, or LoRA was applied twice.",
        fix="Load the adapter onto a fresh base model with the name in adapter_config.json "
        "(base_model_name_or_path). Call model.unload() before adapting a model again.",
        does_not_help=(
            "Ignoring the warning: unloaded adapters change nothing, and the model answers like "
            "its base model.",
        ),
    ),
    Cause(
        "SF691",
        "the installed peft does not know a key of the adapter config",
        messages=(
            Message(
                r"(?:LoraConfig|PromptTuningConfig|PeftConfig)\.__init__\(\) got an unexpected "
                r"keyword argument '(?P<name>\w{1,120})'"
            ),
        ),
        why="A newer peft saved the adapter, or the argument is misspelt.",
        fix="Run pip install -U peft, or delete the key from adapter_config.json if it has its "
        "default value.",
        in_surefit="surefit refuses unknown config keys and suggests the nearest one.",
    ),
    Cause(
        "SF692",
        "use_cache is disabled by gradient checkpointing",
        messages=(
            Message(
                r"`use_cache=True` is incompatible with gradient checkpointing",
                seen="modelscope/ms-swift#2590",
            ),
        ),
        why="This is a warning, not a failure. The key-value cache serves generation only, and "
        "transformers disables it for training with gradient checkpointing.",
        fix="Set model.config.use_cache = False for training, and True again before generate().",
        is_warning=True,
    ),
)
