"""Columns that a trainer removes: sources such as text are expected, weights and masks are not."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sized
from typing import Any

from surefit.checks.trainer_batches import is_stream
from surefit.findings import Finding, rule

COLUMNS_DROPPED = rule(
    "SF723",
    "warning",
    "columns dropped by the trainer",
    why="The model and the loss do not see them, so they have no effect on training.",
    fix=(
        "Let forward name them, or pass remove_unused_columns=False and use them in the collator; "
        "if they are not needed, remove them from the data set."
    ),
)

LOOKED_AT = 8
"""Rows that show what kind of values a column has."""
OF_TOKENIZERS = frozenset(
    ("token_type_ids", "special_tokens_mask", "offset_mapping", "overflow_to_sample_mapping")
)
"""Columns that tokenizers return and few models need."""
OF_PREPARATION = frozenset(("completion_mask", "assistant_masks", "seq_lengths"))
"""Columns that TRL turns into labels before it trains."""


def check_columns(trainer: Any) -> Iterator[Finding]:
    """Columns of numbers that the trainer removes because neither model nor collator names them."""
    dataset = trainer.train_dataset
    names = getattr(dataset, "column_names", None)
    if not names or not trainer.args.remove_unused_columns or is_stream(dataset):
        return
    trainer._set_signature_columns_if_needed()
    kept = set(trainer._signature_columns)
    rows = [dataset[row] for row in range(min(LOOKED_AT, len(dataset)))]
    is_trl = any(base.__module__.startswith("trl.") for base in type(trainer).__mro__)
    prepared = OF_TOKENIZERS | (OF_PREPARATION if is_trl else frozenset())
    lost = {
        name: what
        for name in names
        if name not in kept | prepared and (what := _meaning(name, rows, is_trl)) is not None
    }
    if lost:
        shown = ", ".join(f"{name!r} ({what})" for name, what in lost.items())
        model = type(trainer.model).__name__
        message = f"The trainer drops {shown}: {model}.forward has no such argument."
        yield COLUMNS_DROPPED.finding(message, column=next(iter(lost)))


def _meaning(name: str, rows: list[Mapping[str, Any]], is_trl: bool) -> str | None:
    """What a column holds if the model or the loss could use it; None for sources and counters.

    A text, a message or an id is what the tokens were made from, or names the row. One number per
    token, or a fraction per row, is a weight, a mask or a target.
    """
    values = [row[name] for row in rows]
    if all(_is_aligned(value, row) for value, row in zip(values, rows, strict=True)):
        if name == "attention_mask" and is_trl and all(all(value) for value in values):
            return None  # TRL makes its own, of ones
        return "one number per token"
    if all(isinstance(value, float) for value in values):
        return "one fraction per row"
    return None


def _is_aligned(value: Any, row: Mapping[str, Any]) -> bool:
    """Whether a value has one number for each token of the row."""
    ids = row.get("input_ids")
    if not isinstance(value, Sized) or isinstance(value, str) or not isinstance(ids, Sized):
        return False
    numbers: Any = value.tolist() if hasattr(value, "tolist") else value
    return len(value) == len(ids) > 1 and all(isinstance(n, int | float) for n in numbers)
