"""The texts of many rows tokenised at once: the fast tokenizers then use every core."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

Text = str | tuple[str, str]
"""A text, or two that are tokenised as a pair."""


@dataclass(frozen=True)
class Tokenised:
    """Tokens of one text; of a pair, also which of the two each belongs to."""

    ids: list[int]
    type_ids: list[int] = field(default_factory=list)


@dataclass(frozen=True)
class Pending:
    """A row that is encoded but for its texts; `finish` takes their tokens.

    With `special`, the tokenizer's own special tokens are put in.
    """

    texts: Sequence[Text]
    finish: Callable[[list[Tokenised]], Any]
    special: bool = True


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


def tokenise_rows(made: Sequence[Any], tokenizer: Any) -> list[list[Tokenised]]:
    """The tokens of the texts of each row that is Pending, tokenised together; none of others."""
    tokens: list[list[Tokenised]] = [[] for _ in made]
    for special in (True, False):
        places = [
            place
            for place, row in enumerate(made)
            if isinstance(row, Pending) and row.special == special
        ]
        texts = [text for place in places for text in made[place].texts]
        found = iter(tokenise(tokenizer, texts, special) if texts else ())
        for place in places:
            tokens[place] = [next(found) for _ in made[place].texts]
    return tokens


def finish(row: Any, tokens: list[Tokenised]) -> Any:
    """The row, finished if it is Pending.

    What `finish` raises takes the row's place, as what encoding raised does.
    """
    if not isinstance(row, Pending):
        return row
    try:
        return row.finish(tokens)
    except Exception as error:
        return error


def finished(row: Any, tokenizer: Any) -> Any:
    """One row, finished if it is Pending; what is wrong with it is raised."""
    made = finish(row, tokenise_rows([row], tokenizer)[0])
    if isinstance(made, Exception):
        raise made
    return made
