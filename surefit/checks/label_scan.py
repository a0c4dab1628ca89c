"""The labels of all rows of a causal task: pre-tokenized columns as they are, or encoded rows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
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
from surefit.data.split import Rows
from surefit.data.table import Table
from surefit.encode.encoder import Encoder
from surefit.encode.store import Store
from surefit.findings import Finding

CHUNK_ROWS = 2048
CHUNK_TOKENS = 1 << 21


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
        return KnownTokens(pad, frozenset(token for token in ends if token is not None))
    ends += encoder.dialogues.template.end_ids
    special = {*tokenizer.all_special_ids, *tokenizer.added_tokens_decoder}
    return KnownTokens(
        tokenizer.pad_token_id,
        frozenset(token for token in ends if token is not None),
        frozenset(special),
    )


def check_causal_labels(
    sides: Sequence[tuple[Store, Table, Rows]], encoder: Encoder, module: Any
) -> Iterator[Finding]:
    """The findings about training and validation rows of a causal task; see `known_tokens`.

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
    """The labels of a row; without a column of labels, its tokens have them and padding none."""
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
