"""Validation sets that have names: each is encoded as `evaluate` would, and has its own metrics."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from surefit.checks.copies import check_shared_inputs
from surefit.checks.encoded_rows import check_lookups, check_rows
from surefit.data.cache import fingerprint
from surefit.data.formats.numpy_files import as_stored
from surefit.data.open_data import open_table
from surefit.data.table import Table
from surefit.findings import Finding, note
from surefit.inputs.store import Store
from surefit.inputs.tally import remark_findings
from surefit.plan.draft import Draft
from surefit.plan.fit_encoder import num_positions
from surefit.plan.split_data import row_parts
from surefit.request import named_eval_data


def encode_named(d: Draft) -> tuple[dict[str, Store], list[Finding]]:
    """Return the encoded rows of each named validation set, and what is found in them."""
    sets = named_eval_data(d.request)
    made, found = dict[str, Store](), list[Finding]()
    for name, data in sets.items():
        if not made:  # it is the validation set, which has been encoded and checked
            made[name] = d.validation
            metric = d.watched or d.task.figures.best
            message = (
                f"Validation sets: {', '.join(sets)}. Each has its metrics, such as {name}_loss. "
                f"The best step goes by {metric} of {name}, whose metrics are also reported "
                "without its name."
            )
            found.append(note(message))
            continue
        table, made[name] = _encode(d, name, data)
        found += _checked(d, name, table, made[name])
    return made, found


def _encode(d: Draft, name: str, data: Any) -> tuple[Table, Store]:
    """Open and encode one set as `evaluate --data` does."""
    reads, config = d.task.reads, d.config
    with as_stored(reads.own_fields is not None):
        table = open_table(
            data, config.read, config.on_bad_file, "validation", reads.class_files
        ).without(config.ignore)
    accepted = d.pipeline.accept(table)
    stage, rows = f"encoding validation rows of {name}", np.arange(accepted.table.num_rows)
    store = d.pipeline.encode(accepted, rows, progress=d.progress, stage=stage)
    return accepted.table, store


def _checked(d: Draft, name: str, table: Table, store: Store) -> Iterator[Finding]:
    """Yield what is wrong with the rows of one set, and those that are training rows, too."""
    rows = np.arange(table.num_rows)
    yield from remark_findings([(table, store.notes, len(rows))], d.pipeline.encoder)[0]
    positions = num_positions(d.task, d.source, d.pipeline.encoder)
    yield from check_rows(store, table, d.pipeline.vocab_size, positions)
    yield from check_lookups(d.pipeline, [(store, table)])
    parts = row_parts(d.data.table, d.task, d.encoder.roles, None)
    trained = parts.hash_table(d.data.table, d.data.train)
    yield from check_shared_inputs(trained, parts.hash_table(table, rows), table, rows)


def rows_key(d: Draft) -> str:
    """Return the identity of all encoded rows, and of how often sources are drawn."""
    others = [store.key for store in d.named.values() if store is not d.validation]
    drawn = [repr(d.drawn)] if d.drawn else []
    return fingerprint(d.train.key, d.validation.key, *others, *drawn)
