"""The texts of many rows tokenized at once, so that fast tokenizers use every core."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from surefit.encode.encoded_row import Encoding

Text = str | tuple[str, str]
"""A text, or two that are tokenized as a pair."""


@dataclass(frozen=True)
class Tokenized:
    """Tokens of one text; of a pair, also which of the two each belongs to."""

    ids: list[int]
    type_ids: list[int] = field(default_factory=list)
    offsets: list[tuple[int, int]] | None = None
    """Start and end of each token in a single text, if asked for and known."""


def plain_backend(tokenizer: Any) -> Any:
    """The backend of a fast tokenizer, without the truncation and padding of its last call."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is not None and backend.truncation is not None:  # asked first, as another
        backend.no_truncation()  # thread may be tokenizing
    if backend is not None and backend.padding is not None:
        backend.no_padding()
    return backend


def tokenize(
    tokenizer: Any, texts: Sequence[Text], special: bool, offsets: bool = False
) -> list[Tokenized]:
    """The tokens of each text, not truncated, as the tokenizer would return them one by one.

    Offsets take time, and only fast tokenizers know them.
    """
    backend = plain_backend(tokenizer)
    if backend is None:
        return [_one(tokenizer, text, special) for text in texts]
    if offsets:
        located = backend.encode_batch(list(texts), add_special_tokens=special)
        return [Tokenized(made.ids, offsets=made.offsets) for made in located]
    encodings = backend.encode_batch_fast(list(texts), add_special_tokens=special)
    return [
        Tokenized(made.ids) if isinstance(text, str) else Tokenized(made.ids, made.type_ids)
        for text, made in zip(texts, encodings, strict=True)
    ]


def _one(tokenizer: Any, text: Text, special: bool) -> Tokenized:
    texts = (text,) if isinstance(text, str) else text
    tokens = tokenizer(*texts, add_special_tokens=special, verbose=False)
    ids = list(tokens["input_ids"])
    return Tokenized(ids, list(tokens.get("token_type_ids") or [0] * len(ids)))


def tokenize_rows(rows: Sequence[Encoding | None], tokenizer: Any) -> list[list[Tokenized]]:
    """The tokens of the texts of each row, all texts tokenized together."""
    tokens: list[list[Tokenized]] = [[] for _ in rows]
    for special, offsets in ((True, False), (False, False), (False, True), (True, True)):
        mine = [
            (place, row.texts)
            for place, row in enumerate(rows)
            if row is not None and row.texts and (row.special, row.offsets) == (special, offsets)
        ]
        texts = [text for _, texts in mine for text in texts]
        made = iter(tokenize(tokenizer, texts, special, offsets) if texts else ())
        for place, own in mine:
            tokens[place] = [next(made) for _ in own]
    return tokens
