"""Adapters: targets that do not exist, loading, training nothing."""

from __future__ import annotations

import re

from surefit.explainer.cause import Cause, Context, Form


def _targets(context: Context) -> list[str]:
    named = re.findall(r"[\w.]+", str(context.values.get("targets", "")))
    llama = {"q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"}
    if named and set(named) <= llama:
        return [
            f"{', '.join(named)} are the names of Llama-like models. GPT-2 has c_attn, "
            "GPT-NeoX, BLOOM and Falcon query_key_value, BERT query and value, T5 q and v."
        ]
    return []


CAUSES = (
    Cause(
        "SF687",
        "LoRA targets that the model does not have",
        (
            Form(r"Target modules (?P<targets>.{1,200}?) not found in the base model"),
            Form(r"Please specify `target_modules`"),
        ),
        "LoRA is attached to layers by name, and this architecture names them differently; peft "
        "knows defaults only for architectures in its table.",
        "target_modules='all-linear', or names from print(model). A regular expression is a "
        "string, a list holds whole endings of names.",
        derive=_targets,
    ),
    Cause(
        "SF688",
        "LoRA on a layer it cannot adapt",
        (Form(r"Target module (?P<layer>\w+)\(.{0,120}?\) is not supported"),),
        "The name also matches a layer that is no linear, embedding or convolution layer (a norm, "
        "a container, a quantised layer of an unknown kind).",
        "Narrow target_modules to the linear layers, or 'all-linear'.",
    ),
    Cause(
        "SF689",
        "no adapter in the folder",
        (
            Form(r"Can't find '?adapter_config\.json'? at '?(?P<path>[^'\s]+)"),
            Form(r"Adapter (?P<name>\S+) not found"),
        ),
        "The folder has no adapter: training saved the whole model, the adapter lies in "
        "checkpoint-N/, or save_pretrained was called on the merged model.",
        "ls for adapter_config.json and adapter_model.safetensors; save with "
        "peft_model.save_pretrained(folder).",
    ),
    Cause(
        "SF690",
        "an adapter that does not fit its base model",
        (
            Form(r"Found missing adapter keys while loading the checkpoint"),
            Form(
                r"(?:Loading adapter weights from .{0,120} led to|Found) (?:unexpected|missing) "
                r"keys",
                seen="YiyangZhou/POVID#13",
            ),
            Form(r"You are trying to modify a model with PEFT for a second time"),
        ),
        "Adapter weights were left out or stayed random: the base model has other layers or names "
        "than the one it was trained on, or LoRA was applied twice to one model.",
        "Load onto a fresh base model of the exact name in adapter_config.json "
        "(base_model_name_or_path); model.unload() before adapting again.",
        "",
        (
            "Ignoring the warning: untouched adapters are zero, and the model answers like its "
            "base.",
        ),
    ),
    Cause(
        "SF691",
        "a key that this peft does not know",
        (
            Form(
                r"(?:LoraConfig|PromptTuningConfig|PeftConfig)\.__init__\(\) got an unexpected "
                r"keyword argument '(?P<name>\w+)'"
            ),
        ),
        "The adapter was saved by a newer peft, or the argument is misspelt.",
        "pip install -U peft, or delete the key from adapter_config.json if it has its default "
        "value.",
        "Config keys that do not exist are refused with a suggestion.",
    ),
    Cause(
        "SF692",
        "a cache that checkpointing cannot use",
        (
            Form(
                r"`use_cache=True` is incompatible with gradient checkpointing",
                seen="modelscope/ms-swift#2590",
            ),
        ),
        "A notice, not a failure: keys and values are kept for generation only, and transformers "
        "switches that off while training with checkpointing.",
        "model.config.use_cache = False for training, True again before generate().",
        notice=True,
    ),
)
