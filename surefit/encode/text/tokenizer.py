"""Tokenizers: loaded from a folder or hub id, or trained on the training text."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from surefit.data.hub import model_place
from surefit.errors import SurefitError, UsageError
from surefit.regular_files import refuse_special_inside
from surefit.user_code.remote_code import guard_remote

EOS = "<|end|>"


def load_tokenizer(name: str, trust_remote_code: bool = False) -> Any:
    """The tokenizer of a model folder or hub id; a missing pad token becomes eos."""
    from transformers import AutoTokenizer

    is_gguf = name.endswith(".gguf")
    path = Path(name).absolute()
    name = name if is_gguf else model_place(name)
    folder, more = (str(path.parent), {"gguf_file": str(path)}) if is_gguf else (name, {})
    refuse_special_inside(folder)
    try:
        with guard_remote(folder, trust_remote_code):
            tokenizer = AutoTokenizer.from_pretrained(
                folder, trust_remote_code=trust_remote_code, **more
            )
    except SurefitError:
        raise
    except Exception as error:  # the tokenizers library raises bare exceptions
        first = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise UsageError(
            f"No tokenizer could be loaded from {name!r}: {first}",
            "Pass one with --tokenizer.",
        ) from None
    return use_eos_as_pad(_add_bos(tokenizer, path) if is_gguf else tokenizer)


def _add_bos(tokenizer: Any, path: Path) -> Any:
    """Add bos to texts if the GGUF file asks for it; transformers does not always do so."""
    from transformers.integrations.gguf import read_gguf_metadata

    metadata, _ = read_gguf_metadata(str(path))
    # The default of llama.cpp if the file does not say: SentencePiece adds bos.
    default = metadata.get("tokenizer.ggml.model") == "llama"
    wanted = bool(metadata.get("tokenizer.ggml.add_bos_token", default))
    if wanted != adds_bos(tokenizer) and tokenizer.bos_token_id is not None:
        tokenizer.add_bos_token = wanted
        tokenizer.update_post_processor()
    return tokenizer


def use_eos_as_pad(tokenizer: Any) -> Any:
    """Use eos for padding if there is no pad token; no token is added, so no embedding grows."""
    if tokenizer.pad_token_id is None and tokenizer.eos_token_id is not None:
        tokenizer.pad_token = tokenizer.eos_token
    return tokenizer


def train_tokenizer(
    texts: Iterable[str], vocab_size: int, special_tokens: Sequence[str] = ()
) -> Any:
    """A byte-level BPE tokenizer learned from `texts`; it can encode any text.

    It has eos, which is also the pad token, and the `special_tokens` (such as `mask_token`). If
    `eos_token` is among them, the tokenizer ends every text with it.
    """
    from tokenizers import (
        AddedToken,
        Tokenizer,
        decoders,
        models,
        pre_tokenizers,
        processors,
        trainers,
    )
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    # Words include their leading space, so special tokens do, too.
    more = {name: _written(name) for name in special_tokens if name != "eos_token"}
    added = [AddedToken(text, lstrip=True, special=True) for text in more.values()]
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=[EOS, *added],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    if "eos_token" in special_tokens:
        ending = [(EOS, tokenizer.token_to_id(EOS))]
        tokenizer.post_processor = processors.TemplateProcessing(
            single=f"$A {EOS}", pair=f"$A {EOS} $B {EOS}", special_tokens=ending
        )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token=EOS,
        pad_token=EOS,
        clean_up_tokenization_spaces=False,
        **dict(zip(more, added, strict=True)),
    )


def _written(name: str) -> str:
    """The text of a special token: `[MASK]` for `mask_token`."""
    return f"[{name.removesuffix('_token').upper()}]"


def adds_bos(tokenizer: Any) -> bool:
    """Whether the tokenizer adds its bos token to a text."""
    ids = tokenizer("a")["input_ids"]
    return bool(ids) and tokenizer.bos_token_id is not None and ids[0] == tokenizer.bos_token_id


def has_tokenizer(folder: str) -> bool:
    """Whether a local folder contains a tokenizer."""
    return any(Path(folder, n).is_file() for n in ("tokenizer.json", "tokenizer_config.json"))
