"""Tokenizers: loaded from a folder or hub id, or made from the training text."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from surefit.errors import UsageError

EOS = "<|end|>"


def load_tokenizer(name: str, trust_remote_code: bool = False) -> Any:
    """The tokenizer of a model folder or hub id; a missing pad token becomes eos."""
    from transformers import AutoTokenizer

    try:
        tokenizer = AutoTokenizer.from_pretrained(name, trust_remote_code=trust_remote_code)
    except (OSError, ValueError, KeyError) as error:
        first = str(error).strip().splitlines()[0]
        raise UsageError(
            f"No tokenizer could be loaded from {name!r}: {first}",
            "Give one with --tokenizer.",
        ) from None
    return use_eos_as_pad(tokenizer)


def use_eos_as_pad(tokenizer: Any) -> Any:
    """Let eos pad where no pad token is known; no token is added, so no embedding grows."""
    if tokenizer.pad_token_id is None and tokenizer.eos_token_id is not None:
        tokenizer.pad_token = tokenizer.eos_token
    return tokenizer


def train_tokenizer(texts: Iterable[str], vocab_size: int) -> Any:
    """A byte-level BPE tokenizer learned from `texts`; it can encode any text."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=[EOS],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token=EOS, pad_token=EOS, clean_up_tokenization_spaces=False
    )


def adds_bos(tokenizer: Any) -> bool:
    """Whether the tokenizer itself begins a text with its bos token."""
    ids = tokenizer("a")["input_ids"]
    return bool(ids) and tokenizer.bos_token_id is not None and ids[0] == tokenizer.bos_token_id


def has_tokenizer(folder: str) -> bool:
    """Whether a local folder holds a tokenizer."""
    return any(Path(folder, n).is_file() for n in ("tokenizer.json", "tokenizer_config.json"))
