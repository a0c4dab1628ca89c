"""What the four sizes of a failed matrix product reveal about the data."""

from __future__ import annotations

import re
from collections.abc import Sequence
from math import prod

from surefit.explainer.cause import Context
from surefit.explainer.numbers_in_text import factor, read_whole

BATCH_SIZE = re.compile(r"(?i)batch[_\s-]?size[\s=:\"']{0,4}(?:of\s{1,4})?(\d{1,9})(?!\d)")
INPUT_SHAPE = re.compile(r"\[ ?(?:[A-Za-z_]\w{0,40}|\d{1,9}) ?, ?(\d{1,9}) ?, ?(\d{1,9}) ?\]")
"""A shape such as [batch_size, 20, 271] in the text: sequence length and feature size."""
USUAL_BATCH_SIZES = tuple(2**power for power in range(10, 0, -1))


def conclusions(context: Context) -> list[str]:
    """Conclusions from `(rows×features and in_features×out_features)` and the rest of the text."""
    rows, features = context.number("rows"), context.number("features")
    in_features, out_features = context.number("in_features"), context.number("out_features")
    if rows is None or features is None or in_features is None or out_features is None:
        return []  # a wording without sizes, or sizes that are no numbers
    shape = _known_input(context, rows, features)
    if shape is not None:
        return [
            f"The tensor in the failing frame has shape {list(shape)}. The layer expects "
            f"{in_features} features on the last axis, but the tensor has {features}.",
            *_relation(rows, features, in_features, out_features, []),
        ]
    named = {read_whole(size) or 0 for size in BATCH_SIZE.findall(context.text)}
    lengths = [
        read_whole(length) or 0
        for length, size in INPUT_SHAPE.findall(context.text)
        if read_whole(size) == in_features
    ]
    return explain_product(
        rows, features, in_features, out_features, sorted(named, reverse=True), lengths
    )


def explain_product(
    rows: int,
    features: int,
    in_features: int,
    out_features: int,
    batch_sizes: Sequence[int] = (),
    lengths: Sequence[int] = (),
) -> list[str]:
    """Explanations of `(rows×features) @ (in_features×out_features)`, the most likely first.

    `batch_sizes` and `lengths` (of sequences) are those that the text names. nn.Linear flattens all
    leading axes, so `rows` is a batch size times a sequence length.

    >>> explain_product(255744, 4000, 271, 256, [256], [20])[1]
    '255744 = 256 × 999. With the batch size 256, the input has shape [256, 999, 4000].'
    """
    lines = [
        f"The layer is Linear({in_features}, {out_features}). nn.Linear flattens all leading axes: "
        f"{rows} is batch size × sequence length, and {features} is the feature size of the input."
    ]
    if not rows or not features:
        return [*lines, "A size of the input is 0: the batch has no rows or no features."]
    relation = _relation(rows, features, in_features, out_features, batch_sizes)
    batch_size = next((size for size in batch_sizes if size > 1 and factor(rows, size)), None)
    if batch_size is not None:
        length = rows // batch_size
        lines.append(
            f"{rows} = {batch_size} × {length}. With the batch size {batch_size}, the input has "
            f"shape [{batch_size}, {length}, {features}]."
        )
        if not relation:
            lines.append(_other_data(length, features, in_features, lengths))
    elif rows in batch_sizes:
        lines.append(f"{rows} is the batch size. The input has two axes: [{rows}, {features}].")
    elif not relation:
        lines += _guess(rows, features)
    return [*lines, *relation, *_memory(rows, features)]


def _relation(
    rows: int, features: int, in_features: int, out_features: int, batch_sizes: Sequence[int]
) -> list[str]:
    """How the feature size of the input and that of the layer are related, if they are."""
    length = factor(features, in_features)
    if length is not None:
        return [
            f"{features} = {length} × {in_features}. A sequence of length {length} with feature "
            f"size {in_features} was flattened into one axis. Use view(batch, {length}, "
            f"{in_features}), or build Linear({features}, {out_features})."
        ]
    length = factor(in_features, features)
    if length is not None:
        return [
            f"{in_features} = {length} × {features}. The layer expects a flattened sequence of "
            f"length {length} with feature size {features}, but the input is not flattened. Call "
            "flatten(1) first."
        ]
    if features == out_features:
        return [
            f"{features} equals out_features. The weight is transposed, or the layer receives the "
            "output of a later layer."
        ]
    batch_size = next((size for size in batch_sizes if size * in_features == rows), None)
    if batch_size is not None:
        return [
            f"{rows} = {batch_size} × {in_features}: the expected feature size is on the sequence "
            "axis. The last two axes are swapped. Call transpose(-1, -2)."
        ]
    if rows == in_features:
        return [f"{rows} equals in_features: the two axes are swapped. Call transpose(-1, -2)."]
    return []


def _other_data(length: int, features: int, in_features: int, lengths: Sequence[int]) -> str:
    expected = next((known for known in lengths if known != length), None)
    also = "" if expected is None else f", and sequence length {length} instead of {expected}"
    return (
        f"{features} is not a multiple of {in_features}. The layer was built for other data: the "
        f"input has feature size {features} instead of {in_features}{also}."
    )


def _guess(rows: int, features: int) -> list[str]:
    size = next((size for size in USUAL_BATCH_SIZES if factor(rows, size)), None)
    if size is None:
        return []
    return [
        f"The text names no batch size. If it is {size}, then {rows} = {size} × {rows // size}, "
        f"and the input has shape [{size}, {rows // size}, {features}]."
    ]


def _memory(rows: int, features: int) -> list[str]:
    size_bytes = rows * features * 4
    if size_bytes < 10**8:
        return []
    return [f"One batch of {rows} × {features} float32 values takes {size_bytes / 1e9:.1f} GB."]


def _known_input(context: Context, rows: int, features: int) -> tuple[int, ...] | None:
    """A tensor of the failing frames with that feature size and that product of leading axes."""
    for shape in context.shapes.values():
        if len(shape) >= 2 and shape[-1] == features and prod(shape[:-1]) == rows:
            return shape
    return None
