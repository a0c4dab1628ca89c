"""The texts of many rows tokenised at once: the fast tokenizers then use every core."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from surefit.encode.encoded_row import Encoding

Text = str | tuple[str, str]
"""A text, or two that are tokenised as a pair."""


@dataclass(frozen=True)
class Tokenised:
    """Tokens of one text; of a pair, also which of the two each belongs to."""

    ids: list[int]
    type_ids: list[int] = field(default_factory=list)


def plain_backend(tokenizer: Any) -> Any:
    """What a fast tokenizer works with, without the cutting and padding of its last call."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is not None and backend.truncation is not None:  # asked first, as another
        backend.no_truncation()  # thread may be tokenising
    if backend is not None and backend.padding is not None:
        backend.no_padding()
    return backend


def tokenise(tokenizer: Any, texts: Sequence[Text], special: bool) -> list[Tokenised]:
    """The tokens of each text, however long, as the tokenizer gives them one by one."""
    backend = plain_backend(tokenizer)
    if backend is None:
        return [_one(tokenizer, text, special) for text in texts]
    encodings = backend.encode_batch_fast(list(texts), add_special_tokens=special)
    return [
        Tokenised(made.ids) if isinstance(text, str) else Tokenised(made.ids, made.type_ids)
        for text, made in zip(texts, encodings, strict=True)
    ]


def _one(tokenizer: Any, text: Text, special: bool) -> Tokenised:
    texts = (text,) if isinstance(text, str) else text
    tokens = tokenizer(*texts, add_special_tokens=special, verbose=False)
    ids = list(tokens["input_ids"])
    return Tokenised(ids, list(tokens.get("token_type_ids") or [0] * len(ids)))


def tokenise_rows(rows: Sequence[Encoding | None], tokenizer: Any) -> list[list[Tokenised]]:
    """The tokens of the texts of each row, all texts tokenized together."""
    tokens: list[list[Tokenised]] = [[] for _ in rows]
    for special in (True, False):
        mine = [
            (place, row.texts)
            for place, row in enumerate(rows)
            if row is not None and row.texts and row.special == special
        ]
        texts = [text for _, texts in mine for text in texts]
        made = iter(tokenise(tokenizer, texts, special) if texts else ())
        for place, own in mine:
            tokens[place] = [next(made) for _ in own]
    return tokens
