"""Tokenizers with chat templates in the manner of known models, made on the spot."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import Any

from surefit.inputs.chat.dialogues import DialogueTokenizer
from surefit.inputs.chat.template_fitting import fit_template
from surefit.inputs.chat.template_rendering import read_template

TEMPLATES = Path(__file__).parent / "templates"

STYLES: dict[str, dict[str, Any]] = {
    "qwen": {"eos": "<|im_end|>", "more": ["<|im_start|>", "<|endoftext|>"]},
    "llama3": {
        "bos": "<|begin_of_text|>",
        "eos": "<|eot_id|>",
        "more": ["<|start_header_id|>", "<|end_header_id|>"],
    },
    "gemma": {"bos": "<bos>", "eos": "<eos>", "more": ["<start_of_turn>", "<end_of_turn>"]},
    "mistral": {"bos": "<s>", "eos": "</s>", "more": ["[INST]", "[/INST]"]},
    "chatml": {"eos": "<|im_end|>", "more": ["<|im_start|>"]},
    "marked": {"eos": "<|endoftext|>", "more": ["<|im_start|>", "<|im_end|>"]},
}
ENDS = {"llama3": "<|eot_id|>", "gemma": "<end_of_turn>", "mistral": "</s>"}


def end_of(style: str) -> str:
    """The token that ends an answer."""
    return ENDS.get(style, "<|im_end|>")


@lru_cache
def chat_tokenizer(style: str, adds_bos: bool = True) -> Any:
    """A byte-level BPE tokenizer with a style's special tokens and template; eos pads.

    It begins a text with its bos, if it has one, as most such tokenizers do.
    """
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
    from transformers import PreTrainedTokenizerFast

    known = STYLES[style]
    bos, eos = known.get("bos"), known["eos"]
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    specials = [token for token in (bos, eos, *known["more"]) if token]
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        special_tokens=specials,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    words = "user assistant system model Hello there, what is the capital of France? Paris.\n\n"
    tokenizer.train_from_iterator([words * 3], trainer)
    if bos and adds_bos:
        tokenizer.post_processor = processors.TemplateProcessing(
            single=f"{bos} $A", special_tokens=[(bos, tokenizer.token_to_id(bos))]
        )
    made = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token=eos, bos_token=bos, pad_token=eos
    )
    made.chat_template = (TEMPLATES / f"{style}.jinja").read_text(encoding="utf-8")
    return made


@lru_cache
def latin_tokenizer() -> Any:
    """A WordPiece tokenizer of single letters and digits; all else is unknown to it."""
    from string import ascii_lowercase, digits

    from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    known = [*ascii_lowercase, *digits]
    pieces = ["[PAD]", "[UNK]", "[EOS]", *".,?!", *known, *(f"##{piece}" for piece in known)]
    vocabulary = {piece: place for place, piece in enumerate(pieces)}
    tokenizer = Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.Lowercase()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="$A [EOS]", pair="$A [EOS] $B [EOS]", special_tokens=[("[EOS]", 2)]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, unk_token="[UNK]", pad_token="[PAD]", eos_token="[EOS]"
    )


def coder_for(tokenizer: Any, template: str | None = None) -> DialogueTokenizer:
    """What turns dialogues into tokens, as a plan would fit it."""
    state, _ = fit_template(template, tokenizer, [])
    return DialogueTokenizer(read_template(state, tokenizer))


def said(*contents: str, system: str | None = None) -> list[dict[str, Any]]:
    """A dialogue of user and assistant in turn."""
    roles = ("user", "assistant")
    turns = [{"role": roles[place % 2], "content": text} for place, text in enumerate(contents)]
    return [{"role": "system", "content": system}, *turns] if system else turns
