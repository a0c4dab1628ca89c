"""A small tokenizer of each kind, learned from the same texts, as people bring them."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import (
    BertTokenizer,
    GPT2Tokenizer,
    LlamaTokenizer,
    PreTrainedTokenizerFast,
    T5Tokenizer,
    XLMRobertaTokenizer,
)

from surefit.inputs.tokenizer import train_tokenizer

WORDS = ["Anna", "doesn't", "like", "U.S.", "cats", "3,500", "naïve", "(old)", "dogs,", "x"]
TEXTS = [" ".join(WORDS[n:] + WORDS[:n]) for n in range(len(WORDS))]
SIZE = 320
ALPHABET = sorted(set("".join(WORDS)))


def _learn(model: Any, trainer: Any, step: Any) -> Tokenizer:
    made = Tokenizer(model)
    made.pre_tokenizer = step
    made.train_from_iterator(TEXTS, trainer)
    return made


@cache
def _byte_level() -> tuple[dict[str, int], list[Any]]:
    import json

    step = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = trainers.BpeTrainer(
        vocab_size=SIZE,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        special_tokens=["<|endoftext|>"],
        show_progress=False,
    )
    state = json.loads(_learn(models.BPE(), trainer, step).to_str())["model"]
    return state["vocab"], [tuple(merge) for merge in state["merges"]]


def gpt2() -> Any:
    """Byte-level BPE of a class that builds its own steps."""
    vocab, merges = _byte_level()
    return GPT2Tokenizer(vocab=dict(vocab), merges=list(merges))


def byte_level_after_split() -> Any:
    """Byte-level BPE behind a split by a regular expression, as Llama 3 has it."""
    vocab, merges = _byte_level()
    made = Tokenizer(models.BPE(vocab=dict(vocab), merges=list(merges)))
    pieces = Regex(r"'t|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+|\s+")
    made.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(pieces, "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    made.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=made, eos_token="<|endoftext|>")


def word_piece() -> Any:
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    trainer = trainers.WordPieceTrainer(
        vocab_size=SIZE, special_tokens=special, show_progress=False
    )
    made = _learn(models.WordPiece(unk_token="[UNK]"), trainer, pre_tokenizers.BertPreTokenizer())
    return BertTokenizer(vocab=made.get_vocab(), do_lower_case=False)


def _pieces(special: list[str]) -> list[tuple[str, float]]:
    """A Unigram vocabulary: special tokens, characters, and some words with their space."""
    common = [(f"▁{word}", -4.0) for word in WORDS[::2]]
    letters = [(letter, -8.0) for letter in ALPHABET]
    return [*((token, 0.0) for token in special), ("▁", -5.0), *common, *letters]


def t5() -> Any:
    return T5Tokenizer(vocab=_pieces(["<pad>", "</s>", "<unk>"]), extra_ids=0)


def xlm_roberta() -> Any:
    return XLMRobertaTokenizer(vocab=_pieces(["<s>", "<pad>", "</s>", "<unk>", "<mask>"]))


def llama() -> Any:
    """BPE of characters with a mark for spaces, as Llama 2 has it."""
    vocab = {token: place for place, token in enumerate(["<unk>", "<s>", "</s>", "▁", *ALPHABET])}
    merges = []
    for word in WORDS[::2]:
        joined = "▁"
        for letter in word:
            if joined + letter not in vocab:
                merges.append((joined, letter))
                vocab[joined + letter] = len(vocab)
            joined += letter
    return LlamaTokenizer(vocab=vocab, merges=merges)


KINDS: dict[str, Callable[[], Any]] = {
    "made here": lambda: train_tokenizer(TEXTS, SIZE, ("eos_token",)),
    "gpt2": gpt2,
    "byte-level after split": byte_level_after_split,
    "word-piece": word_piece,
    "t5": t5,
    "xlm-roberta": xlm_roberta,
    "llama": llama,
}
