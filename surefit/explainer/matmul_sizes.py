"""What a failed matrix product says about the data: arithmetic on the four sizes."""

from __future__ import annotations

import re
from collections.abc import Sequence

from surefit.explainer.cause import Context

BATCH_SIZE = re.compile(r"(?i)batch[_\s-]?size[\s=:\"']{0,4}(?:of\s+)?(\d+)")
CONFIGURED = re.compile(r"\[\s*(?:[A-Za-z_]\w*|\d+)\s*,\s*(\d+)\s*,\s*(\d+)\s*\]")
LIKELY_BATCHES = tuple(2**power for power in range(10, 0, -1))


def product_findings(context: Context) -> list[str]:
    """Conclusions from `(m×k and n×p)`, with the batch sizes and shapes that the text names."""
    m, k, n, p = (context.number(name) for name in "mknp")
    shape = _known_input(context, m, k)
    if shape is not None:
        return [
            f"The tensor in the failing frame is {list(shape)}; the layer takes {n} values at its "
            f"last axis, and finds {k}.",
            *_relation(m, k, n, p, []),
        ]
    batches = sorted({int(size) for size in BATCH_SIZE.findall(context.text)}, reverse=True)
    steps = [int(found[0]) for found in CONFIGURED.findall(context.text) if int(found[1]) == n]
    return explain_product(m, k, n, p, batches, steps)


def explain_product(
    m: int, k: int, n: int, p: int, batches: Sequence[int] = (), steps: Sequence[int] = ()
) -> list[str]:
    """Hypotheses about `(m×k) @ (n×p)` in order of likelihood.

    nn.Linear folds all leading axes into m, so m is a batch size times a number of steps.

    >>> explain_product(255744, 4000, 271, 256, [256], [20])[1]
    '255744 = 256 × 999: at the batch size of 256 that is an input of [256, 999, 4000].'
    """
    found = [
        f"The layer is Linear({n}, {p}); nn.Linear folds all leading axes, so {m} is rows × steps "
        f"and {k} is the width of what it was given."
    ]
    folded = next((size for size in batches if size > 1 and m % size == 0 and m > size), None)
    relation = _relation(m, k, n, p, batches)
    if folded is not None:
        length = m // folded
        found.append(
            f"{m} = {folded} × {length}: at the batch size of {folded} that is an input of "
            f"[{folded}, {length}, {k}]."
        )
        if not relation:
            found.append(_other_data(folded, length, k, n, steps))
    elif m in batches:
        found.append(f"{m} is the batch size: the input has two axes, [{m}, {k}].")
    elif not relation:
        found += _guess(m, k)
    return [*found, *relation, *_size(m, k)]


def _relation(m: int, k: int, n: int, p: int, batches: Sequence[int]) -> list[str]:
    """What k and n have to do with each other, if anything."""
    if k > n and k % n == 0:
        return [
            f"{k} = {k // n} × {n}: so wide are {k // n} steps of width {n} flattened into one "
            f"axis. Keep the steps, view(batch, {k // n}, {n}), or build Linear({k}, {p})."
        ]
    if n > k and n % k == 0:
        return [
            f"{n} = {n // k} × {k}: the layer was built for {n // k} steps (or patches) of width "
            f"{k} flattened into one axis, and was given them unflattened. Use flatten(1) first."
        ]
    if k == p:
        return [
            f"{k} is the layer's output width: the weight is transposed, or this is a "
            f"later activation than the layer was built for."
        ]
    turned = [size for size in batches if size * n == m]
    if m == n or turned:
        return [
            f"{m} is a multiple of {n} by the batch size, so the width stands on the other axis: "
            "the last two axes are exchanged. Use transpose(-1, -2)."
        ]
    return []


def _other_data(batch: int, length: int, k: int, n: int, steps: Sequence[int]) -> str:
    known = [count for count in steps if count != length]
    other = f" and {length} steps where {known[0]} are configured" if known else ""
    return (
        f"{k} is no multiple of {n}, so this is other data than the layer was built for: width {k} "
        f"where {n} is configured{other}."
    )


def _guess(m: int, k: int) -> list[str]:
    size = next((size for size in LIKELY_BATCHES if m % size == 0 and m > size), None)
    if size is None:
        return []
    return [
        f"The text names no batch size; at {size}, for example, {m} = {size} × {m // size} would "
        f"be an input of [{size}, {m // size}, {k}]."
    ]


def _size(m: int, k: int) -> list[str]:
    size_bytes = m * k * 4
    if size_bytes < 10**8:
        return []
    return [f"{m} × {k} numbers are {size_bytes / 1e9:.1f} GB a batch in float32."]


def _known_input(context: Context, m: int, k: int) -> tuple[int, ...] | None:
    """A tensor of the failing frames whose leading axes fold to m and whose width is k."""
    for shape in context.shapes.values():
        rows = 1
        for size in shape[:-1]:
            rows *= size
        if len(shape) >= 2 and shape[-1] == k and rows == m:
            return shape
    return None
