"""Masked tokens as the target: predicted from the tokens around them.

Of a row's tokens 15 % are chosen, anew in every epoch; of these 80 % become the mask token, 10 %
a random token, 10 % stay. How many they are does not change, so the divisor of a step is known.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from surefit.batches.field import IGNORE_INDEX
from surefit.findings import Finding, rule
from surefit.inputs.encoded_row import DropReason, Encoding, drop_row, encoded, refuse_overlong
from surefit.inputs.encoder import Encoder
from surefit.inputs.encoder_state import FittedTarget, MaskingTokens, as_fitted
from surefit.inputs.text.text_reading import encode_text, read_ids
from surefit.targets.task_spec import Batch

NO_MASK_TOKEN = rule(
    "SF320",
    "error",
    "no mask token",
    why="masked-lm hides tokens behind a mask token; without one there is nothing to put there.",
    fix="Choose a model made for it, such as a BERT, or give a tokenizer with --tokenizer.",
)


CHOSEN, MASKED, RANDOM = 0.15, 0.8, 0.1
WRITTEN = "[MASK]"


def fit_masking(
    rows: Iterable[Mapping[str, Any]], encoder: Encoder
) -> tuple[Encoder, list[Finding]]:
    """Return the tokens that masking needs to know, from the tokenizer alone."""
    tokenizer = encoder.tokenizer
    if tokenizer is None or tokenizer.mask_token_id is None:
        found = "no tokenizer is known" if tokenizer is None else "the tokenizer has none"
        raise NO_MASK_TOKEN.error(f"masked-lm hides tokens behind a mask token, and {found}.")
    special = tuple(sorted(int(token) for token in tokenizer.all_special_ids))
    tokens = MaskingTokens(int(tokenizer.mask_token_id), special, len(tokenizer))
    return replace(encoder, target=FittedTarget(masking=tokens)), []


def encode_masked(row: Mapping[str, Any], encoder: Encoder) -> Encoding:
    """The tokenizer's tokens; labels are those that may be chosen, which special ones may not."""
    special = as_fitted(encoder.target.masking).special

    def candidates(ids: Any) -> dict[str, Any]:
        return {"labels": np.where(np.isin(ids, special), IGNORE_INDEX, ids)}

    if encoder.predicting:
        encoder = encoder.with_settings(overlong="truncate")
    if "input_ids" in row:
        ids = read_ids({**row, "labels": None})[0]
        if len(ids) == 0:
            raise drop_row(DropReason.EMPTY)
        kept = ids[: encoder.max_length]
        if len(kept) < len(ids):
            refuse_overlong(len(ids), encoder)
        return encoded({"input_ids": kept, **candidates(kept)}, truncated=len(ids) - len(kept))
    if isinstance(row["text"], str):
        row = {**row, "text": row["text"].replace(WRITTEN, encoder.tokenizer.mask_token)}
    return encode_text(row, encoder, {}, candidates)


def count_chosen(columns: Mapping[str, Any]) -> int:
    """Return how many tokens are chosen: 15 % of those that may be, and at least one."""
    candidates = int((columns["labels"] != IGNORE_INDEX).sum())
    return max(1, round(CHOSEN * candidates)) if candidates else 0


def hide(
    row: Mapping[str, Any], encoder: Encoder, random: np.random.Generator
) -> Mapping[str, Any]:
    """Choose the tokens to predict and mask them."""
    ids, labels = row["input_ids"].copy(), np.full_like(row["labels"], IGNORE_INDEX)
    candidates = np.flatnonzero(row["labels"] != IGNORE_INDEX)
    chosen = random.choice(candidates, count_chosen(row), replace=False)
    labels[chosen] = ids[chosen]
    draw = random.random(len(chosen))
    tokens = as_fitted(encoder.target.masking)
    ids[chosen[draw < MASKED]] = tokens.mask
    swapped = chosen[(draw >= MASKED) & (draw < MASKED + RANDOM)]
    others = random.integers(0, tokens.num_tokens, len(swapped))
    ordinary = ~np.isin(others, tokens.special)
    ids[swapped[ordinary]] = others[ordinary]
    return {**row, "input_ids": ids, "labels": labels}


def fill(outputs: Any, batch: Batch, encoder: Encoder) -> list[dict[str, Any]]:
    """Return the text with the most likely token in place of each mask token."""
    tokenizer, mask = encoder.tokenizer, as_fitted(encoder.target.masking).mask
    ids, best = batch["input_ids"], outputs.logits.argmax(-1)
    filled = ids.where(ids != mask, best)
    answers = []
    for row, hidden, length in zip(
        filled, ids == mask, batch["attention_mask"].sum(1), strict=True
    ):
        tokens = [tokenizer.decode([token]).strip() for token in row[hidden].tolist()]
        text = tokenizer.decode(row[:length], skip_special_tokens=True).strip()
        answers.append({"prediction": text, "filled": tokens})
    return answers
