"""Weights, checkpoints and LoRA adapters: other shapes or names, damaged or unsafe files."""

from __future__ import annotations

import re

from surefit.explainer.cause import Cause, Context, Message

MISMATCH = re.compile(
    r"size mismatch for (?P<name>[\w.]{1,200}): copying a param with shape "
    r"torch\.Size\(\[(?P<saved>[\d, ]{0,60})\]\) from checkpoint, the shape in current model is "
    r"torch\.Size\(\[(?P<model>[\d, ]{0,60})\]\)"
)
KEYS = re.compile(r"(?:Unexpected|Missing) key\(s\) in state_dict: \"([^\"]{1,200})\"")
PREFIXES = {
    "module.": "the checkpoint was saved from (Distributed)DataParallel. Remove the prefix: "
    "{k.removeprefix('module.'): v for k, v in state_dict.items()}.",
    "_orig_mod.": "the checkpoint was saved from a compiled model. Save model._orig_mod, or remove "
    "the prefix.",
    "base_model.model.": "these are weights of a peft model. Load them with "
    "PeftModel.from_pretrained.",
    "model.": "the weights belong to a wrapper (Lightning, or a base model inside a head). Load "
    "them into the wrapper, or remove the prefix.",
}


def _which_weight(context: Context) -> list[str]:
    found = MISMATCH.search(" ".join(context.text.split()))
    if found is None:
        return []
    name, saved, built = found["name"], found["saved"].split(", "), found["model"].split(", ")
    lines = [
        f"{name} has shape [{found['saved']}] in the checkpoint and [{found['model']}] in the "
        "model."
    ]
    if re.search(r"lora_[AB]", name):
        lines.append("It is a LoRA weight: the adapter was trained with another r or base model.")
    elif re.search(r"embed|wte|lm_head", name):
        lines.append(
            f"It is a token embedding with {saved[0]} and {built[0]} rows. After adding tokens, "
            "call model.resize_token_embeddings(len(tokenizer)) before loading."
        )
    elif re.search(r"classifier|score|head|out_proj|fc", name):
        lines.append(f"It is a head: trained for {saved[0]} classes, built for {built[0]} classes.")
    return lines


def _which_keys(context: Context) -> list[str]:
    names = KEYS.findall(context.text)
    for prefix, meaning in PREFIXES.items():
        if any(name.startswith(prefix) for name in names):
            return [f"The names start with {prefix!r}: {meaning}"]
    return []


def _first_byte(context: Context) -> list[str]:
    return {
        "v": ["The first byte is 'v', as in 'version https://git-lfs…': a Git LFS pointer."],
        "<": ["The first byte is '<': a web page was saved instead of the file."],
    }.get(context.word("key"), [])


CAUSES = (
    Cause(
        "SF670",
        "the weights in the checkpoint have other shapes than the model",
        messages=(
            Message(r"size mismatch for (?P<name>[\w.]{1,200}): copying a param with shape"),
            Message(r"You set `ignore_mismatched_sizes` to `False`, thus raising an error"),
            Message(r"Trying to set a tensor of shape .{0,60} in \"\w{1,60}\" \(which has shape"),
        ),
        why="The model was built with other sizes: another number of classes, another vocabulary, "
        "another LoRA rank, or another architecture.",
        fix="Build the model from the config of the checkpoint. For a new head on a pretrained "
        "model, use from_pretrained(…, num_labels=n, ignore_mismatched_sizes=True) and train the "
        "head. After adding tokens, resize the embeddings before loading.",
        in_surefit="surefit creates a new head and reports it. The plan lists which weights were "
        "loaded and which are new.",
        does_not_help=("strict=False: it accepts missing names, not other shapes.",),
        derive=_which_weight,
    ),
    Cause(
        "SF671",
        "the weights in the checkpoint have other names than the model",
        messages=(
            Message(r"Error\(s\) in loading state_dict for (?P<model>\w{1,120})"),
            Message(r"(?:Missing|Unexpected) key\(s\) in state_dict"),
        ),
        why="The names in the file are not those of the model: a wrapper added a prefix, an "
        "adapter was loaded as a whole model, or the code of the model changed.",
        fix="Compare list(state_dict)[:5] with list(model.state_dict())[:5]. Remove the prefix, or "
        "load the file through the class that saved it.",
        in_surefit="surefit, transformers and peft can load what surefit saves.",
        does_not_help=("strict=False: missing weights keep their random values without an error.",),
        derive=_which_keys,
    ),
    Cause(
        "SF672",
        "the optimizer state belongs to other parameters",
        messages=(
            Message(
                r"loaded state dict contains a parameter group that doesn't match the size of "
                r"optimizer's group"
            ),
            Message(r"loaded state dict has a different number of parameter groups"),
        ),
        why="The optimizer was saved with other trainable parameters or groups: layers were frozen "
        "or unfrozen, LoRA was added, or the weight decay groups changed.",
        fix="Resume with the same model and the same trainable parameters, or load only the "
        "weights and start with a new optimizer.",
        in_surefit="--resume uses the settings of the run and refuses another optimizer before it "
        "writes anything.",
    ),
    Cause(
        "SF673",
        "torch.load refuses a file that could run code",
        messages=(
            Message(r"Weights only load failed"),
            Message(r"Unsupported (?:global|operand|class): GLOBAL (?P<name>[\w.]{1,120})"),
            Message(
                r"Due to a serious vulnerability issue in `torch\.load`",
                seen="hiyouga/LlamaFactory#8379",
            ),
        ),
        why="Since torch 2.6, torch.load reads only tensors by default. This file holds other "
        "Python objects: a whole model, an optimizer with NumPy values, or a config.",
        fix="Save only state_dict(), preferably as safetensors. If you wrote the file yourself, "
        "call torch.serialization.add_safe_globals([…]), or pass weights_only=False.",
        in_surefit="surefit pickles nothing: checkpoints are safetensors and JSON.",
        does_not_help=("An older torch: the file can still run code when it is loaded.",),
    ),
    Cause(
        "SF674",
        "the weights file is damaged or is not a weights file",
        messages=(
            Message(
                r"Error while deserializing(?: header)?: (?:header too large|HeaderTooLarge|"
                r"incomplete metadata|MetadataIncompleteBuffer|invalid header|InvalidHeader|"
                r"HeaderTooSmall|header too small)"
            ),
            Message(r"PytorchStreamReader failed (?:reading zip archive|locating file)"),
            Message(r"invalid load key, '(?P<key>.{1,4}?)'", needs_library=True),
            Message(
                r"Unable to load weights from pytorch checkpoint file",
                seen="huggingface/transformers#10450",
            ),
        ),
        why="The file is incomplete (an interrupted download or save, a full disk), or it is "
        "something else: a Git LFS pointer of a few hundred bytes, or a web page with an error.",
        fix="Look at its size and its first bytes (head -c 100). If they are 'version "
        "https://git-lfs…', run git lfs pull. Otherwise delete the file from the cache and "
        "download it again.",
        in_surefit="surefit writes a file completely or not at all.",
        does_not_help=("Another version of safetensors or torch: the file itself is wrong.",),
        derive=_first_byte,
    ),
    Cause(
        "SF675",
        "tensors that share memory cannot be saved",
        messages=(
            Message(r"Some tensors share memory, this will lead to duplicate memory on disk"),
            Message(
                r"The weights trying to be saved contained shared tensors",
                seen="2U1/Phi3-Vision-Finetune#11",
            ),
            Message(r"You are trying to save a non contiguous tensor"),
        ),
        why="safetensors stores every tensor once and contiguously. Tied weights (embeddings and "
        "head) and views must be declared.",
        fix="Use safetensors.torch.save_model(model, path) instead of save_file(state_dict). Set "
        "_tied_weights_keys on your own model, and call .contiguous() on views.",
        in_surefit="surefit saves custom modules with their tied weights.",
        does_not_help=("safe_serialization=False: it saves a pickle, which can run code.",),
    ),
    Cause(
        "SF676",
        "a quantised model cannot be trained",
        messages=(
            Message(r"You cannot perform fine-tuning on purely quantized models"),
            Message(
                r"The model you are trying to fine-tune is quantized with .{1,60} but that "
                r"quantization method do(?:es)? not support training",
                seen="MiniMax-AI/MiniMax-M2#48",
            ),
            Message(
                r"Using `?bitsandbytes`? \d-bit quantization requires",
                seen="bitsandbytes-foundation/bitsandbytes#1530",
            ),
        ),
        why="An optimizer cannot update 4-bit or 8-bit weights (bitsandbytes, GPTQ, GGUF); only "
        "adapters on top of them can be trained. transformers treats a GGUF file as quantised even "
        "after it was dequantised on loading.",
        fix="Attach LoRA: get_peft_model(prepare_model_for_kbit_training(model), LoraConfig(…)). "
        "Load GGUF with GgufConfig(gguf_file=…, dequantize=True).",
        in_surefit="surefit dequantises GGUF files, trains them and saves plain folders.",
    ),
    Cause(
        "SF677",
        "there is no checkpoint to resume from",
        messages=(
            Message(r"Can't find a valid checkpoint at (?P<path>\S{1,200})"),
            Message(r"No valid checkpoint found in output directory \((?P<path>[^)]{1,200})\)"),
        ),
        why="resume_from_checkpoint found no folder checkpoint-N with weights: output_dir is "
        "another folder, a save was interrupted, or nothing was saved yet.",
        fix="List the folder and name the checkpoint-N folder itself. If there is none, start "
        "without resume_from_checkpoint.",
        in_surefit="--resume RUN resumes from the last complete checkpoint.",
    ),
)


LLAMA_LAYERS = {"q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"}


def _other_names(context: Context) -> list[str]:
    named = re.findall(r"[\w.]+", context.word("targets"))
    if not named or not set(named) <= LLAMA_LAYERS:
        return []
    return [
        f"These are names of Llama-like models: {', '.join(named)}. GPT-2 has c_attn; GPT-NeoX, "
        "BLOOM and Falcon have query_key_value; BERT has query and value; T5 has q and v."
    ]


ADAPTERS = (
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
