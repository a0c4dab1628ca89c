"""The time of `explain` grows with the length of a text, not with its square.

The bounds are multiples of what a plain loop takes here, and many times what is needed.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from functools import partial
from itertools import product

import pytest

import surefit
from surefit.explainer.cause import Cause, Context, Message
from surefit.explainer.causes import CAUSES
from surefit.explainer.log_reading import MAX_CHARS, MAX_MESSAGE_CHARS

pytestmark = pytest.mark.slow
FILLERS = (
    "1", "a", " ", "\n", "\t\n", ".", "1.", "[1, ", "( ", "loss: ", "0.0 ", "1 GiB ", "12/34 [",
    "batch_size ", "labels ", "torch.Size([", "Traceback (most recent call last):\n", "a.b ", "é",
)  # fmt: skip
LOGS = {
    "losses": "{{'loss': {0}.5, 'grad_norm': 1.{0}, 'learning_rate': 1e-05}}\n",
    "some zero losses": "{{'loss': 1.0}}\n{{'loss': 0.0, 'step': {0}}}\n",
    "ranks": "[rank{0}]: Traceback (most recent call last):\n[rank{0}]: ValueError: x\n",
}


def seconds_of(work: Callable[[], object]) -> float:
    start = time.process_time()
    work()
    return time.process_time() - start


@pytest.fixture(scope="module")
def unit() -> float:
    """The CPU time of a loop that takes about 0.1 s, on whatever machine this is."""
    return max(seconds_of(lambda: sum(number * number for number in range(2_000_000))), 0.05)


@pytest.mark.parametrize("kind", LOGS)
def test_a_log_of_five_megabytes(kind: str, unit: float) -> None:
    line = LOGS[kind]
    log = "".join(line.format(number) for number in range(MAX_CHARS // len(line.format(10**5))))
    assert 4_000_000 < len(log) < MAX_CHARS
    assert seconds_of(lambda: str(surefit.explain(log + "{'loss': 1.5}\n"))) < 300 * unit


def test_conclusions_and_conditions(unit: float) -> None:
    def conclude(cause: Cause) -> None:
        groups = {name for message in cause.messages for name in message.regex.groupindex}
        for filler, value in product(FILLERS, (3, "a" * 200)):
            text = filler * (40_000 // len(filler))
            context = Context(dict.fromkeys(groups, value), text)
            if cause.only_if is not None:
                cause.only_if(context)
            if cause.derive is not None:
                cause.derive(context)

    for cause in CAUSES.values():
        assert seconds_of(partial(conclude, cause)) < 100 * unit, cause.code


def test_patterns(unit: float) -> None:
    def search(message: Message) -> None:
        phrase = max(re.findall(r"[\w ,.'-]+", message.pattern), key=len)
        for filler in (*FILLERS, phrase):
            text = filler * (MAX_MESSAGE_CHARS // len(filler))
            message.regex.search(text[: MAX_MESSAGE_CHARS // 2] + phrase + text)

    for message in (message for cause in CAUSES.values() for message in cause.messages):
        assert seconds_of(partial(search, message)) < 100 * unit, message.pattern
