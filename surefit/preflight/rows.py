"""One row as the model sees it: tokens and which of them are learned, or shapes."""

from __future__ import annotations

from typing import Any

import numpy as np

from surefit.data.encoder import Encoder
from surefit.data.store import Store


def show_row(store: Store, encoder: Encoder, source_row: int) -> dict[str, Any]:
    """The encoded columns of a row of the data, by name; why it is not there if it was dropped."""
    found = np.flatnonzero(store.source_row == source_row)
    if len(found) == 0:
        reasons = {reason: rows for reason, rows in store.notes["dropped_examples"].items() if rows}
        reason = next((r for r, rows in reasons.items() if source_row in rows), "see the ledger")
        return {"row": source_row, "dropped": reason}
    row = store.row(int(found[0]))
    shown: dict[str, Any] = {"row": source_row, "targets": int(store.num_targets[found[0]])}
    for name, value in row.items():
        if value.ndim == 0:
            shown[name] = value.item()
        elif value.ndim == 1:
            shown[name] = value.tolist()
        else:
            shown[name] = f"{value.dtype} array {list(value.shape)}"
    if "input_ids" in row and encoder.tokenizer is not None:
        apart = "decoder_input_ids" in row  # then the labels are another sequence
        shown["tokens"] = _tokens(row["input_ids"], None if apart else row.get("labels"), encoder)
        if apart and "labels" in row:
            shown["target_tokens"] = _tokens(row["labels"], row["labels"], encoder)
    if "labels" in row and row["labels"].ndim == 0 and "classes" in encoder.fitted:
        shown["class"] = encoder.classes[int(row["labels"])]
    return shown


def _tokens(ids: Any, labels: Any, encoder: Encoder) -> list[dict[str, Any]]:
    learned = labels != -100 if labels is not None and labels.ndim == 1 else None
    special = set(encoder.tokenizer.all_special_ids)
    return [
        {
            "text": encoder.tokenizer.decode([token]),
            "learned": bool(learned[place]) if learned is not None else None,
            "special": token in special,
        }
        for place, token in enumerate(ids.tolist())
    ]
