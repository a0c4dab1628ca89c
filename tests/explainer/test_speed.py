"""The time of `explain` grows with the length of a text, not with its square.

The bounds are on the CPU time of this process and many times what is needed.
"""

from __future__ import annotations

import time

import pytest

import surefit
from surefit.explainer.cause import Cause, Context, Message
from surefit.explainer.cause_registry import CAUSES
from surefit.explainer.log_reading import MAX_CHARS, MAX_MESSAGE_CHARS

FILLERS = (
    "1", "a", " ", "\n", "\t\n", ".", "1.", "[1, ", "( ", "loss: ", "0.0 ", "1 GiB ", "12/34 [",
    "batch_size ", "labels ", "torch.Size([", "Traceback (most recent call last):\n", "a.b ", "é",
)  # fmt: skip
LOGS = {
    "losses": "{{'loss': {0}.5, 'grad_norm': 1.{0}, 'learning_rate': 1e-05}}\n",
    "some zero losses": "{{'loss': 1.0}}\n{{'loss': 0.0, 'step': {0}}}\n",
    "ranks": "[rank{0}]: Traceback (most recent call last):\n[rank{0}]: ValueError: x\n",
}


def seconds(text: str) -> float:
    start = time.process_time()
    str(surefit.explain(text))
    return time.process_time() - start


@pytest.mark.parametrize("kind", LOGS)
def test_a_log_of_five_megabytes_takes_seconds(kind: str) -> None:
    line = LOGS[kind]
    log = "".join(line.format(number) for number in range(MAX_CHARS // len(line.format(10**5))))
    assert 4_000_000 < len(log) < MAX_CHARS
    assert seconds(log + "{'loss': 1.5}\n") < 30


def test_a_known_failure_at_the_end_of_five_megabytes_takes_seconds() -> None:
    log = "".join(f"\r{number}/99999 [00:{number}<01:00, 3.21it/s]" for number in range(140_000))
    assert 4_000_000 < len(log) < MAX_CHARS
    memory = "\nRuntimeError: CUDA out of memory. Tried to allocate 2.00 GiB\n"
    assert surefit.explain(log + memory).code == "SF650"
    assert seconds(log + memory) < 30


@pytest.mark.parametrize("filler", FILLERS)
def test_repeated_text_takes_no_longer(filler: str) -> None:
    text = "CUDA out of memory. Tried to allocate 2.00 GiB\n" + filler * (300_000 // len(filler))
    assert seconds(text) < 30


@pytest.mark.parametrize(
    "cause",
    [cause for cause in CAUSES.values() if cause.derive or cause.only_if],
    ids=lambda cause: cause.code,
)
def test_conclusions_and_conditions_take_no_longer(cause: Cause) -> None:
    groups = {name for message in cause.messages for name in message.regex.groupindex}
    start = time.process_time()
    for filler in FILLERS:
        text = filler * (100_000 // len(filler))
        for value in (3, "a" * 200):
            context = Context(dict.fromkeys(groups, value), text)
            if cause.only_if is not None:
                cause.only_if(context)
            if cause.derive is not None:
                cause.derive(context)
    assert time.process_time() - start < 30


@pytest.mark.parametrize(
    "message",
    [message for cause in CAUSES.values() for message in cause.messages],
    ids=lambda message: message.pattern[:40],
)
def test_patterns_take_no_longer(message: Message) -> None:
    start = time.process_time()
    for filler in (*FILLERS, *message.phrases):
        text = filler * (MAX_MESSAGE_CHARS // len(filler))
        for phrase in message.phrases:
            message.regex.search(text[: MAX_MESSAGE_CHARS // 2] + phrase + text)
    assert time.process_time() - start < 10
