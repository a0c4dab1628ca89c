"""Weights and checkpoints: of other shapes, other names, broken, or unsafe."""

from __future__ import annotations

import re

from surefit.explainer.cause import Cause, Context, Form


def _which_weight(context: Context) -> list[str]:
    found = re.search(
        r"size mismatch for (?P<name>[\w.]+): copying a param with shape "
        r"torch\.Size\(\[(?P<saved>[\d, ]*)\]\) from checkpoint, the shape in current model is "
        r"torch\.Size\(\[(?P<model>[\d, ]*)\]\)",
        " ".join(context.text.split()),
    )
    if found is None:
        return []
    name, saved, model = found["name"], found["saved"].split(", "), found["model"].split(", ")
    lines = [f"{name}: [{found['saved']}] in the checkpoint, [{found['model']}] in the model."]
    if re.search(r"lora_[AB]", name):
        lines.append("It is a LoRA weight: the adapter was trained with another r or base model.")
    elif re.search(r"embed|wte|lm_head", name):
        lines.append(
            f"It is a token table: {saved[0]} and {model[0]} entries. Resize after adding "
            "tokens, before loading: model.resize_token_embeddings(len(tokenizer))."
        )
    elif re.search(r"classifier|score|head|out_proj|fc", name):
        lines.append(f"It is a head: trained for {saved[0]} classes, built for {model[0]}.")
    return lines


def _which_keys(context: Context) -> list[str]:
    unexpected = re.search(r"Unexpected key\(s\) in state_dict: \"([^\"]+)\"", context.text)
    missing = re.search(r"Missing key\(s\) in state_dict: \"([^\"]+)\"", context.text)
    names = [found[1] for found in (unexpected, missing) if found is not None]
    for prefix, meaning in PREFIXES.items():
        if any(name.startswith(prefix) for name in names):
            return [f"Names begin with {prefix!r}: {meaning}"]
    return []


PREFIXES = {
    "module.": "the checkpoint was saved from (Distributed)DataParallel. Strip it: "
    "{k.removeprefix('module.'): v}.",
    "_orig_mod.": "the checkpoint was saved from a compiled model. Save model._orig_mod, or "
    "strip it.",
    "base_model.model.": "these are weights of a peft model; load them with "
    "PeftModel.from_pretrained.",
    "model.": "the weights belong to a wrapper (Lightning, or a body inside a head); load them "
    "into that, or strip it.",
}

CAUSES = (
    Cause(
        "SF670",
        "a checkpoint whose weights have other shapes",
        (
            Form(r"size mismatch for (?P<name>[\w.]+): copying a param with shape"),
            Form(r"You set `ignore_mismatched_sizes` to `False`, thus raising an error"),
            Form(
                r"Trying to set a tensor of shape .{0,60} in \"\w+\" \(which has shape",
            ),
        ),
        "The model was built with other sizes than the checkpoint: another number of classes, "
        "another vocabulary, another LoRA rank, or another architecture altogether.",
        "Build the model from the checkpoint's own config. For a new head on an old body: "
        "from_pretrained(…, num_labels=n, ignore_mismatched_sizes=True), and train the head. After "
        "adding tokens resize the embeddings before loading.",
        "A new head is made and reported; what was loaded and what is new is in the plan.",
        ("strict=False: it forgives missing names, not other shapes.",),
        _which_weight,
    ),
    Cause(
        "SF671",
        "a checkpoint whose weights have other names",
        (
            Form(r"Error\(s\) in loading state_dict for (?P<model>\w+)"),
            Form(r"(?:Missing|Unexpected) key\(s\) in state_dict"),
        ),
        "The names in the file are not those of the model: a prefix of a wrapper, an adapter "
        "loaded as a whole model, or code that changed since.",
        "Compare list(state_dict)[:5] with list(model.state_dict())[:5]; strip the prefix, or load "
        "through the class that saved it.",
        "What is saved can be loaded: by surefit, and by plain transformers or peft.",
        ("strict=False: what is missing stays random, in silence.",),
        _which_keys,
    ),
    Cause(
        "SF672",
        "an optimizer state of another model",
        (
            Form(
                r"loaded state dict contains a parameter group that doesn't match the size of "
                r"optimizer's group"
            ),
            Form(r"loaded state dict has a different number of parameter groups"),
        ),
        "The optimizer was saved with other trainable parameters or groups: layers were frozen or "
        "unfrozen, LoRA was added, or weight decay groups changed since.",
        "Resume with the same model and the same trainable parameters, or load the weights only "
        "and start the optimizer afresh.",
        "--resume keeps what the run was begun with, and refuses another optimizer before "
        "anything is written.",
    ),
    Cause(
        "SF673",
        "torch.load refuses a pickle that could run code",
        (
            Form(r"Weights only load failed"),
            Form(r"Unsupported (?:global|operand|class): GLOBAL (?P<name>[\w.]+)"),
            Form(
                r"Due to a serious vulnerability issue in `torch\.load`",
                seen="hiyouga/LlamaFactory#8379",
            ),
        ),
        "Since torch 2.6 torch.load reads tensors only; this file holds other Python objects (a "
        "whole model, an optimizer with numpy values, a config).",
        "Save state_dict() only, best as safetensors. If you wrote the file yourself: "
        "torch.serialization.add_safe_globals([…]), or weights_only=False for a file you trust.",
        "Nothing is pickled: checkpoints are safetensors and JSON.",
        ("Downgrading torch: the file can still run code on load.",),
    ),
    Cause(
        "SF674",
        "a weights file that is broken or is no weights file",
        (
            Form(
                r"Error while deserializing(?: header)?: (?:header too large|HeaderTooLarge|"
                r"incomplete metadata|MetadataIncompleteBuffer|invalid header|InvalidHeader\w*|"
                r"HeaderTooSmall|header too small)"
            ),
            Form(r"PytorchStreamReader failed (?:reading zip archive|locating file)"),
            Form(r"invalid load key, '(?P<key>.{1,4}?)'", libraries_only=True),
            Form(
                r"Unable to load weights from pytorch checkpoint file",
                seen="huggingface/transformers#10450",
            ),
        ),
        "The file is cut off (an interrupted download or save, a full disk) or is something else: "
        "a Git LFS pointer of a few hundred bytes, or a web page with an error.",
        "Look at its size and first bytes (head -c 100). 'version https://git-lfs…': git lfs pull. "
        "Else delete it from the cache and download it again.",
        "A file is written whole or not at all.",
        ("Another version of safetensors or torch: the bytes are wrong.",),
        lambda context: (
            ["The first byte is 'v', as in 'version https://git-lfs…': a Git LFS pointer."]
            if context.values.get("key") == "v"
            else ["The first byte is '<': a web page was saved instead of the file."]
            if context.values.get("key") == "<"
            else []
        ),
    ),
    Cause(
        "SF675",
        "tensors that share memory cannot be saved",
        (
            Form(r"Some tensors share memory, this will lead to duplicate memory on disk"),
            Form(
                r"The weights trying to be saved contained shared tensors",
                seen="2U1/Phi3-Vision-Finetune#11",
            ),
            Form(r"You are trying to save a non contiguous tensor"),
        ),
        "safetensors stores each tensor once: tied weights (embeddings and head) or views must be "
        "named as such, and memory must be contiguous.",
        "safetensors.torch.save_model(model, path) instead of save_file(state_dict); set "
        "_tied_weights_keys on your own model; .contiguous() for views.",
        "Custom modules are saved with their ties.",
        ("safe_serialization=False: it brings back pickle.",),
    ),
    Cause(
        "SF676",
        "a quantised model cannot be trained",
        (
            Form(r"You cannot perform fine-tuning on purely quantized models"),
            Form(
                r"The model you are trying to fine-tune is quantized with .{1,60} but that "
                r"quantization method do(?:es)? not support training",
                seen="MiniMax-AI/MiniMax-M2#48",
            ),
            Form(
                r"Using `?bitsandbytes`? \d-bit quantization requires",
                seen="bitsandbytes-foundation/bitsandbytes#1530",
            ),
        ),
        "The weights are 4- or 8-bit numbers (bitsandbytes, GPTQ, GGUF), which no optimizer can "
        "move; only adapters on top of them can be trained. A GGUF file is flagged as quantised "
        "even when it was dequantised on loading.",
        "Attach LoRA: get_peft_model(prepare_model_for_kbit_training(model), LoraConfig(…)). For "
        "GGUF load with GgufConfig(gguf_file=…, dequantize=True).",
        "GGUF files are dequantised, trained and saved as plain folders.",
    ),
    Cause(
        "SF677",
        "no checkpoint to go on from",
        (
            Form(r"Can't find a valid checkpoint at (?P<path>\S+)"),
            Form(r"No valid checkpoint found in output directory \((?P<path>[^)]+)\)"),
        ),
        "resume_from_checkpoint found no folder checkpoint-N with weights: another output_dir, a "
        "save that was cut off, or nothing was saved yet.",
        "ls the folder; name the checkpoint-N folder itself; start without resume_from_checkpoint "
        "if there is none.",
        "--resume RUN goes on from the last whole checkpoint.",
    ),
)
