"""How much of padded batches is padding, and how the same steps would have less."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from surefit.batches.order import Batches
from surefit.findings import Finding, rule

MUCH_PADDING = rule(
    "SF503",
    "info",
    "much padding",
    why="Padded positions cost time and memory like tokens, and nothing is learned from them.",
    fix="Use smaller micro-batches with more gradient accumulation: the steps stay the same.",
)

MUCH = 0.25
WORTH_SAYING = 0.1
"""The least change of the share of padding that is suggested."""


def check_padding(batches: Batches) -> Iterator[Finding]:
    """Say so if a large share of the positions is padding that smaller micro-batches avoid."""
    share = batches.padding_share()
    parts = next((n for n in (4, 2) if batches.batch_size % n == 0), None)
    if share < MUCH or parts is None or batches.max_tokens is not None:
        return
    rows, accum = batches.batch_size // parts, batches.grad_accum * parts
    smaller = replace(batches, batch_size=rows, grad_accum=accum).padding_share()
    if share - smaller < WORTH_SAYING:
        return
    grouped = replace(batches, order="grouped").padding_share()
    yield MUCH_PADDING.finding(
        f"{share:.0%} of the positions in an epoch are padding.",
        fix=f"Set batch_size={rows} and grad_accum={accum}: the same steps, with {smaller:.0%} "
        f"padding. order=grouped has {grouped:.0%}, but its steps have rows of one length, which "
        "harms training where length and target are related.",
    )
