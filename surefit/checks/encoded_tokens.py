"""Tokens of encoded rows: labels of a causal task, and text that the tokenizer does not know."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from surefit.batches.field import IGNORE_INDEX
from surefit.checks.causal_labels import (
    KnownTokens,
    LabelTally,
    TokenRows,
    check_labels,
    infer_pad,
)
from surefit.data.column_values import texts_in
from surefit.data.split import Rows
from surefit.data.table import Table
from surefit.findings import NOTE, Finding, rule
from surefit.inputs.batch_tokenizing import plain_backend, tokenize
from surefit.inputs.encoder import Encoder
from surefit.inputs.store import Store

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

CHUNK_ROWS = 2048
CHUNK_TOKENS = 1 << 21
SOME, MUCH = 0.01, 0.2
"""Shares of the tokens from which they are worth a note, and a warning."""
OTHERS = ("bos", "eos", "sep", "cls", "mask")
"""Special tokens that rows have for another reason; padding is not stored."""
SHOWN, SHOWN_LENGTH = 3, 20


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
    """Yield how many tokens of texts are the tokenizer's unknown token, and what it stands for."""
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
    for start in range(0, len(values), CHUNK_TOKENS):
        places = start + np.flatnonzero(values[start : start + CHUNK_TOKENS] == unknown)
        hit[np.searchsorted(offsets, places, side="right") - 1] = True
        count += len(places)
    first = int(hit.argmax()) if count else -1
    return _Counted(count, len(values), int(hit.sum()), first)


def _pieces(row: dict[str, Any], encoder: Encoder, unknown: int) -> list[str]:
    """Return the first parts of a row's texts that become the unknown token."""
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


def known_tokens(encoder: Encoder, module: Any) -> KnownTokens:
    """Pad and end tokens of the tokenizer, the template and a trained model's config.

    The config of an untrained model knows nothing of the ids in the data: then `module` is None.
    """
    config = getattr(module, "generation_config", None), getattr(module, "config", None)
    asked = [getattr(each, "eos_token_id", None) for each in config]
    ends = [token for each in asked for token in (each if isinstance(each, list) else [each])]
    tokenizer = encoder.tokenizer
    if tokenizer is None:
        pad = getattr(config[1], "pad_token_id", None)
        return KnownTokens(pad, frozenset(token for token in ends if isinstance(token, int)))
    ends += encoder.end_ids
    special = {*tokenizer.all_special_ids, *tokenizer.added_tokens_decoder}
    return KnownTokens(
        tokenizer.pad_token_id,
        frozenset(token for token in ends if isinstance(token, int)),  # of a stranger's config
        frozenset(special),
    )


def check_causal_labels(
    sides: Sequence[tuple[Store, Table, Rows]], encoder: Encoder, module: Any
) -> Iterator[Finding]:
    """Yield the findings about training and validation rows of a causal task; see `known_tokens`.

    Sides of one Table are counted together, as their rows were split by surefit.
    """
    known = known_tokens(encoder, module)
    for key in dict.fromkeys(table.key for _, table, _ in sides):
        same = [side for side in sides if side[1].key == key]
        tally, table = LabelTally(known), same[0][1]
        for store, _, rows in same:
            if "input_ids" in encoder.roles:
                scan_columns(tally, table, rows, encoder.roles)
            else:
                scan_store(tally, store)
        yield from check_labels(tally, table.where)


def scan_columns(tally: LabelTally, table: Table, rows: Rows, roles: Mapping[str, str]) -> None:
    """Count pre-tokenized rows, before padding is left out and rows are cut."""
    columns = [roles.get(role) for role in ("input_ids", "labels", "mask")]
    for start in range(0, len(rows), CHUNK_ROWS):
        numbers = rows[start : start + CHUNK_ROWS]
        read = [
            (number, [None if name is None else row.get(name) for name in columns])
            for number, row in zip(numbers.tolist(), table.rows(numbers), strict=True)  # type: ignore[arg-type]
        ]
        read = [(n, values) for n, values in read if values[0] is not None and len(values[0])]
        if read:
            tokens = TokenRows.of_rows([(v[0], _labels(*v), v[2]) for _, v in read])
            if tally.rows == 0 and tally.known.pad is None:
                tally.known = replace(tally.known, pad=infer_pad(tokens))
            tally.add(tokens, [number for number, _ in read])


def _labels(ids: Any, labels: Any, mask: Any) -> Any:
    """Return labels of a row; without a column of labels, its tokens have them and padding none."""
    if labels is not None:
        return labels
    return ids if mask is None else np.where(np.asarray(mask) != 0, ids, IGNORE_INDEX)


def scan_store(tally: LabelTally, store: Store) -> None:
    """Count encoded rows, which have no padding."""
    tally.known = replace(tally.known, pad=None)
    ids, labels = store.values("input_ids"), store.values("labels")
    offsets = store.offsets("labels")
    start = 0
    while start < len(store):
        stop = int(np.searchsorted(offsets, offsets[start] + CHUNK_TOKENS, side="right")) - 1
        stop = min(max(stop, start + 1), len(store))
        a, b = int(offsets[start]), int(offsets[stop])
        starts = np.asarray(offsets[start : stop + 1]) - a
        rows = TokenRows(ids[a:b], labels[a:b], starts, np.ones(b - a, bool))
        tally.add(rows, store.source_row[start:stop])
        start = stop
