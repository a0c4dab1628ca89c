"""Text that the tokenizer does not know: it becomes the unknown token, whatever it says."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from surefit.data.column_values import texts_in
from surefit.data.table import Table
from surefit.encode.encoder import Encoder
from surefit.encode.store import Store
from surefit.encode.text.batch_tokenizing import plain_backend, tokenize
from surefit.findings import NOTE, Finding, rule

MUCH_UNKNOWN = rule(
    "SF294",
    "warning",
    "much text unknown to the tokenizer",
    why=(
        "The vocabulary lacks this language or script, so that different texts look the same to "
        "the model, and it learns to write the unknown token."
    ),
    fix=(
        "Choose a model whose tokenizer knows this language. A model from scratch can have one "
        "made from the data: leave --tokenizer out."
    ),
    accept="The text is trained on with the unknown token in it.",
)

SOME, MUCH = 0.01, 0.2
"""Shares of the tokens from which they are worth a note, and a warning."""
OTHERS = ("bos", "eos", "sep", "cls", "mask")
"""Special tokens that rows have for another reason; padding is not stored."""
SHOWN, SHOWN_LENGTH = 3, 20
_CHUNK = 1 << 20


@dataclass(frozen=True)
class _Counted:
    """The unknown tokens of one column of a Store."""

    unknown: int = 0
    total: int = 0
    rows: int = 0
    first: int = -1

    @property
    def share(self) -> float:
        return self.unknown / max(self.total, 1)


def check_unknown_tokens(store: Store, table: Table, encoder: Encoder) -> Iterator[Finding]:
    """How many tokens of texts are the tokenizer's unknown token, and what it stands for."""
    tokenizer = encoder.tokenizer
    unknown = getattr(tokenizer, "unk_token_id", None)
    others = {getattr(tokenizer, f"{name}_token_id", None) for name in OTHERS}
    if unknown is None or unknown in others or "input_ids" in encoder.roles:
        return
    if "input_ids" not in store.fields:
        return
    names = ["input_ids", *["labels"] * ("decoder_input_ids" in store.fields)]
    counts = [_count(store, name, unknown) for name in names]
    counted = max(counts, key=lambda each: each.share)
    if counted.share < SOME:
        return
    row = int(store.source_row[counted.first])
    where = table.where(row)
    pieces = _pieces(table.row(row), encoder, unknown)
    shown = f", where the text has {', '.join(map(repr, pieces))}" if pieces else ""
    broken = MUCH_UNKNOWN if counted.share >= MUCH else NOTE
    yield broken.finding(
        f"{counted.unknown:,} of {counted.total:,} tokens ({counted.share:.0%}) are the "
        f"tokenizer's unknown token {tokenizer.unk_token!r}, in {counted.rows:,} of "
        f"{len(store):,} rows: row {where['row']}, for example{shown}.",
        where,
    )


def _count(store: Store, name: str, unknown: int) -> _Counted:
    values, offsets = store.values(name), store.offsets(name)
    hit = np.zeros(len(store), bool)
    count = 0
    for start in range(0, len(values), _CHUNK):
        places = start + np.flatnonzero(values[start : start + _CHUNK] == unknown)
        hit[np.searchsorted(offsets, places, side="right") - 1] = True
        count += len(places)
    first = int(hit.argmax()) if count else -1
    return _Counted(count, len(values), int(hit.sum()), first)


def _pieces(row: dict[str, Any], encoder: Encoder, unknown: int) -> list[str]:
    """The first parts of a row's texts that become the unknown token."""
    read = encoder.read(row)
    found: dict[str, None] = {}
    for text in texts_in([read[role] for role in encoder.roles if role in read]):
        for piece in _unknown_in(text, encoder.tokenizer, unknown):
            found.setdefault(piece[:SHOWN_LENGTH])
            if len(found) == SHOWN:
                return [*found]
    return [*found]


def _unknown_in(text: str, tokenizer: Any, unknown: int) -> Iterator[str]:
    if plain_backend(tokenizer) is None:  # which does not know where its tokens end
        words = text.split()
        made = tokenize(tokenizer, words, special=False)
        yield from (word for word, own in zip(words, made, strict=True) if unknown in own.ids)
        return
    (made_one,) = tokenize(tokenizer, [text], special=False, ends=True)
    ends = list(made_one.ends) if made_one.ends is not None else []
    for token, start, end in zip(made_one.ids, [0, *ends], ends, strict=False):
        piece = text[start:end].strip()
        if token == unknown and piece:
            yield piece
