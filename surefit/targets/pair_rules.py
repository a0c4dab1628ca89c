"""What is wrong with preference data, seen in encoded rows: after template and truncation."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from surefit.batches.branches import FIRST, PROMPT, branch_bounds
from surefit.data.cache import hash_bytes
from surefit.data.table import Table
from surefit.findings import Finding, rule
from surefit.inputs.chat.pair_rows import GOOD
from surefit.inputs.encoder import Encoder
from surefit.inputs.store import Store

EQUAL_ANSWERS = rule(
    "SF460",
    "warning",
    "pairs of equal answers",
    why="After encoding, the chosen and the rejected answer have the same tokens, so that nothing "
    "can be preferred; for a method without a reference, such rows still push the answer up.",
    fix="Delete the rows, or correct one of their answers.",
    accept="The rows are trained on.",
)
CONTRADICTING_PAIRS = rule(
    "SF461",
    "warning",
    "preferences that contradict each other",
    why="Of the same two answers to a prompt, one row prefers the one and another row the other; "
    "or an answer is good in one row and bad in another. Their gradients cancel.",
    fix="Keep the row that is right.",
    accept="The rows are trained on.",
)
LENGTH_BIAS = rule(
    "SF462",
    "warning",
    "preferences follow the length of answers",
    why="A model can learn to write longer, or shorter, answers in place of better ones. Reward "
    "accuracy means little below what the length alone reaches.",
    fix="Compare reward_accuracy with its baseline, and length_accuracy; balance the lengths, or "
    "use --set preference.method=simpo, which compares per token.",
    accept="The rows are trained on.",
)
ONE_JUDGEMENT = rule(
    "SF463",
    "error",
    "answers of one judgement",
    why="KTO compares good with bad answers. With one of them alone, all answers are pushed the "
    "same way.",
    fix="Add answers of the other judgement; or train on good answers as instructions: --task sft.",
    accept="The rows are trained on.",
)
FEW_OF_ONE_JUDGEMENT = rule(
    "SF464",
    "warning",
    "few answers of one judgement",
    why="Every row counts the same, so that the rare judgement hardly changes the model.",
    fix="Add rows of the rare judgement, or leave out some of the others.",
    accept="The rows are trained on as they are.",
)
OTHER_PROMPTS = rule(
    "SF465",
    "warning",
    "pairs with different prompts",
    why="The two sides differ before their answers begin: in the data, or because the template "
    "renders them differently. The model then learns to tell the prompts apart.",
    fix="Give both answers the same prompt, or another template.",
    accept="The rows are trained on.",
)
CHOSEN_REFUSES = rule(
    "SF466",
    "warning",
    "chosen answers that refuse",
    why="Where the rejected answer helps and the chosen one refuses, the model learns to refuse.",
    fix="Check whether the sides are swapped. If the refusals are meant, accept this.",
    accept="The refusals are preferred.",
)

MOST_EXAMPLES = 3
LONGER_SHARE = 0.65
"""Share of rows in which the longer, or the shorter, answer is chosen, from which it is a bias."""
FEWEST_ROWS = 20
"""Rows below which shares say nothing."""
RARE_SHARE = 0.1
REFUSING_SHARE = 0.05
JUDGED_ROWS, JUDGED_TOKENS = 2_000, 24
"""Rows whose answers are read as text, and tokens of each."""
_REFUSES = re.compile(
    r"\W*(i['’]?m (really |very |so )?sorry|i am sorry|sorry,|i (can ?not|can['’]?t|won['’]?t|am "
    r"unable to|am not able to|will not) |i['’]?m (unable|not able) to|as an ai\b|unfortunately, i "
    r"(can|am))",
    re.IGNORECASE,
)


def check_pairs(store: Store, table: Table, encoder: Encoder) -> Iterator[Finding]:
    """Yield what is wrong with the encoded training rows of a preference task."""
    if not len(store):
        return
    rows = _Rows(store, table, encoder)
    judged = GOOD in store.fields
    yield from _check_contradictions(rows)
    if judged:
        yield from _check_judgements(rows)
        return
    yield from _check_equal(rows)
    yield from _check_prompts(rows)
    yield from _check_lengths(rows)
    yield from _check_refusals(rows)


@dataclass(frozen=True)
class _Rows:
    """The encoded rows, and what a message names of them."""

    store: Store
    table: Table
    encoder: Encoder

    def __len__(self) -> int:
        return len(self.store)

    def parts(self, number: int) -> tuple[Any, Any, Any]:
        """The tokens of the prompt and of both answers."""
        row = self.store.row(number)
        bounds = branch_bounds(int(row[PROMPT]), int(row[FIRST]), len(row["input_ids"]))
        first, second, third = (row["input_ids"][part] for part in bounds)
        return first, second, third

    @cached_property
    def lengths(self) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
        """Tokens of the first and of the second answer of each row."""
        first = self.store.values(FIRST)
        return first, self.store.lengths - self.store.values(PROMPT) - first

    @cached_property
    def digests(self) -> list[tuple[str, str, str]]:
        """The prompt and both answers of each row, as digests."""
        made = []
        for number in range(len(self)):
            prompt, first, second = map(hash_bytes, map(np.ascontiguousarray, self.parts(number)))
            made.append((prompt, first, second))
        return made

    def where(self, number: int) -> dict[str, Any]:
        """File and row of an encoded row."""
        return dict(self.table.where(int(self.store.source_row[number])))

    def shown(self, numbers: Sequence[int]) -> str:
        """Return how many rows of all, and the first of them."""
        named = ", ".join(str(self.where(n)["row"]) for n in numbers[:MOST_EXAMPLES])
        return f"{len(numbers):,} of {len(self):,} training rows (such as {named})"


def _check_equal(rows: _Rows) -> Iterator[Finding]:
    first, second = rows.lengths
    alike = [n for n in np.flatnonzero(first == second).tolist() if _same(*rows.parts(n)[1:])]
    if alike:
        message = f"{rows.shown(alike)} have a chosen and a rejected answer of the same tokens."
        yield EQUAL_ANSWERS.finding(message, rows.where(alike[0]))


def _same(one: Any, other: Any) -> bool:
    return bool(np.array_equal(one, other))


def _check_contradictions(rows: _Rows) -> Iterator[Finding]:
    known: dict[tuple[Any, ...], int] = {}
    against: list[int] = []
    judged = GOOD in rows.store.fields
    good = rows.store.values(GOOD) if judged else None
    for number, (prompt, first, second) in enumerate(rows.digests):
        own: tuple[Any, ...] = (prompt, first, second)
        own = own if good is None else (prompt, first, bool(good[number]))
        other = _other_key(rows, number, good)
        if other in known and own != other:
            against.append(number)
        known.setdefault(own, number)
    if against:
        found = known[_other_key(rows, against[0], good)]
        one, other = (rows.where(number)["row"] for number in (against[0], found))
        message = f"{rows.shown(against)} contradict another row, as row {one} does row {other}."
        yield CONTRADICTING_PAIRS.finding(message, rows.where(against[0]))


def _other_key(rows: _Rows, number: int, good: Any) -> tuple[Any, ...]:
    prompt, first, second = rows.digests[number]
    return (prompt, second, first) if good is None else (prompt, first, not good[number])


def _check_prompts(rows: _Rows) -> Iterator[Finding]:
    """A side whose answer does not begin where the common tokens end has a prompt of its own."""
    if "labels" not in rows.store.fields:  # a reward model scores whole sides
        return
    labels, offsets = rows.store.values("labels"), rows.store.offsets("labels")[:-1]
    prompts, (first, _) = rows.store.values(PROMPT), rows.lengths
    starts = offsets + prompts
    apart = [
        number
        for number, (one, other) in enumerate(
            zip(labels[starts], labels[np.minimum(starts + first, len(labels) - 1)], strict=True)
        )
        if one < 0 or (other < 0 and rows.lengths[1][number])
    ]
    if apart:
        message = f"{rows.shown(apart)} have sides that differ before their answers begin."
        yield OTHER_PROMPTS.finding(message, rows.where(apart[0]))


def _check_lengths(rows: _Rows) -> Iterator[Finding]:
    first, second = rows.lengths
    longer = float(((first > second) + 0.5 * (first == second)).mean())
    if len(rows) < FEWEST_ROWS or max(longer, 1 - longer) < LONGER_SHARE:
        return
    which, share = ("longer", longer) if longer > 0.5 else ("shorter", 1 - longer)
    yield LENGTH_BIAS.finding(
        f"The {which} answer is chosen in {share:.0%} of {len(rows):,} training rows: chosen "
        f"answers have {first.mean():.1f} tokens on average, rejected ones {second.mean():.1f}. "
        f"A predictor by length alone has a reward accuracy of {share:.2f}."
    )


def _check_judgements(rows: _Rows) -> Iterator[Finding]:
    share = float(np.mean(rows.store.values(GOOD)))
    if share in (0.0, 1.0):
        word = "good" if share else "bad"
        message = f"All {len(rows):,} training rows have {word} answers."
        yield ONE_JUDGEMENT.finding(message, column=rows.encoder.column_of("label"))
    elif len(rows) >= FEWEST_ROWS and min(share, 1 - share) < RARE_SHARE:
        word = "good" if share < RARE_SHARE else "bad"
        message = f"{min(share, 1 - share):.1%} of {len(rows):,} training rows have {word} answers."
        yield FEW_OF_ONE_JUDGEMENT.finding(message, column=rows.encoder.column_of("label"))


def _check_refusals(rows: _Rows) -> Iterator[Finding]:
    tokenizer, count = rows.encoder.tokenizer, min(len(rows), JUDGED_ROWS)
    chosen = np.unique(np.linspace(0, len(rows) - 1, count).astype(int)).tolist()
    refusing = []
    for number in chosen:
        _, first, second = rows.parts(number)
        texts = (
            tokenizer.decode(part[:JUDGED_TOKENS], skip_special_tokens=True)
            for part in (first, second)
        )
        one, other = (_REFUSES.match(text) is not None for text in texts)
        if one and not other:
            refusing.append(number)
    if len(refusing) > max(2, REFUSING_SHARE * len(chosen)):
        message = f"{rows.shown(refusing)} have a chosen answer that refuses, and a rejected one "
        yield CHOSEN_REFUSES.finding(f"{message}that does not.", rows.where(refusing[0]))
