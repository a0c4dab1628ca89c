"""Does a prompt get the same answer in a padded batch as alone?"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from surefit.checks.probes.probe_batch import differ, tolerance
from surefit.findings import Finding, rule
from surefit.pipeline.row_groups import Together

NOT_BATCHED = rule(
    "SF712",
    "info",
    "generation is batched by prompt length",
    why=(
        "The model's answers depend on padding or on the other prompts of the batch, although an "
        "attention mask is passed."
    ),
    fix="Nothing to do; generation takes longer.",
)

LONG_PROMPT, SHORT_PROMPT, NEW_TOKENS = 24, 15, 3

Prompts = Sequence[Mapping[str, Any]]
Generate = Callable[[Prompts, int], Any]
"""Generates so many tokens for each prompt."""


def choose_generation(
    model: Any, generate: Generate, prompts: tuple[Any, Any]
) -> tuple[Together, list[Finding]]:
    """How prompts may be batched: padded, with prompts of equal length only, or not at all.

    `prompts` are the token ids of two rows. The next-token logits of a few steps are compared.
    """
    long = np.asarray(prompts[0])[:LONG_PROMPT]
    short = np.asarray(prompts[1])[: min(SHORT_PROMPT, len(long) - 1)]
    if not len(short):
        return "padded", []
    alone = _steps(model, generate, [short])
    change = _change(_steps(model, generate, [short, long]), alone)
    if change <= tolerance(next(model.parameters())):
        return "padded", []
    cut = long[: len(short)]
    equal = _change(_steps(model, generate, [short, cut]), alone)
    together: Together = "equal_length"
    if equal > tolerance(next(model.parameters())):
        together = "single"
    how = "prompts of equal length" if together == "equal_length" else "one prompt at a time"
    message = (
        f"A shorter prompt's logits change by {change:.2g} of their size in a padded batch. "
        f"Evaluation and prediction generate for {how}."
    )
    return together, [NOT_BATCHED.finding(message)]


def _steps(model: Any, generate: Generate, prompts: Sequence[Any]) -> list[Any]:
    """The next-token logits of the first prompt at each step of generation."""
    with _recorded(model) as steps:
        generate([{"input_ids": ids} for ids in prompts], NEW_TOKENS)
    return steps


@contextmanager
def _recorded(model: Any) -> Iterator[list[Any]]:
    steps: list[Any] = []

    def keep(_: Any, __: Any, outputs: Any) -> None:
        logits = getattr(outputs, "logits", None)
        if logits is not None:
            steps.append(logits[0, -1].detach().clone())

    inner = getattr(model, "get_base_model", lambda: model)()  # without the peft wrapper
    hook = inner.register_forward_hook(keep)
    try:
        yield steps
    finally:
        hook.remove()


def _change(batched: list[Any], alone: list[Any]) -> float:
    """The largest change of the logits, up to the step at which another token is chosen."""
    largest = 0.0
    for one, other in zip(batched, alone, strict=False):
        largest = max(largest, differ(one, other))
        if int(one.argmax()) != int(other.argmax()):
            break
    return largest
