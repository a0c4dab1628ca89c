"""No text makes `explain` fail, and a number that cannot be used does not hide the cause."""

from __future__ import annotations

import json
import re
from itertools import product

from explainer.raised.cited import CITED
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import surefit
from surefit.explainer import Explanation
from surefit.explainer.cause import Message
from surefit.explainer.causes import CAUSES
from surefit.explainer.log_reading import MAX_LINE_CHARS

MESSAGES = [message for cause in CAUSES.values() for message in cause.messages]
LONG = ("9" * 15, "9" * 400, "9" * 5000)
NUMBERS = ("0", "1", "2", "-1", "1.5", "2.0.0", "1e999", "nan", "٣", *LONG)
GLUE = ("\n", " ", "\r", "\r\n", "\x1b[31m", "\x1b]0;", "\0", "\ud800", "E   ", "│ ", "[rank0]: ")
FRAMES = (
    "Traceback (most recent call last):\n",
    'Traceback (most recent call last):\n  File "a.py", line 1, in f\n    g()\n',
    "\nDuring handling of the above exception, another exception occurred:\n\n",
    "Original Traceback (most recent call last):\n",
    "RuntimeError: ",
    "position_embeddings attention batch_size 0 [batch, 0, 0]",
    "{'loss': 1.2.3} {'loss': 0.0}\n{'loss': nan}",
    "Tried to allocate 0 bytes of which 1.2.3 GiB is free 12/34 [",
    "size mismatch for a: copying a param with shape torch.Size([]) from checkpoint, the shape in "
    "current model is torch.Size([]).",
)


def check(text: str) -> Explanation:
    """Explain a text, and print the result in every way."""
    found = surefit.explain(text)
    str(found).encode()
    assert json.loads(json.dumps(found.as_dict(), allow_nan=False))["known"] is found.known
    assert all(len(line) <= 1000 for line in str(found).splitlines())
    return found


@st.composite
def worded(draw: st.DrawFn) -> str:
    """A message of a cause, made from its pattern, with other numbers in it."""
    message: Message = draw(st.sampled_from(MESSAGES))
    text = draw(st.from_regex(message.pattern, alphabet=st.characters(codec="ascii")))
    return re.sub(r"\d+", lambda _: draw(st.sampled_from(NUMBERS)), text, count=8)


fragments = st.one_of(worded(), st.sampled_from([*NUMBERS, *GLUE, *FRAMES]), st.text(max_size=40))
fuzzing = settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])


@fuzzing
@given(st.lists(fragments, max_size=8))
def test_any_text_is_explained_or_unknown(parts: list[str]) -> None:
    check("".join(parts))


@fuzzing
@given(st.text(st.characters(), max_size=400))
def test_any_characters_are_explained_or_unknown(text: str) -> None:
    check(text)


def test_other_numbers_leave_the_cause() -> None:
    for issue, code, quoted in CITED:
        text = " ".join(quoted.split())
        citing = [message for message in CAUSES[code].messages if message.seen == issue]
        match = next(found for message in citing if (found := message.regex.search(text)))
        names = [name for name, value in match.groupdict().items() if value and value.isdecimal()]
        for name, number in product(names, ("0", "7", "9" * 15, "9" * 1000)):
            changed = text[: match.start(name)] + number + text[match.end(name) :]
            if match.re.search(changed):  # \d alone would not match more digits
                assert check(changed).code == code, changed[:200]


def test_a_batch_without_labels_is_explained() -> None:
    found = check("ValueError: Expected input batch_size (4) to match target batch_size (0).")
    assert found.derived == ("There are 4 predictions and no labels: the label tensor is empty.",)
    found = check("ValueError: Expected input batch_size (0) to match target batch_size (4).")
    assert found.derived == ("There are 4 labels and no predictions: the batch has no rows.",)


def test_what_only_looks_like_a_number_is_left_out() -> None:
    found = check("CUDA out of memory. Tried to allocate 2.0.0 GiB of which 1.5 GiB is free")
    assert (found.code, found.derived) == ("SF650", ())
    assert check("{'loss': 1.2.3}\n{'loss': 2.5}\n{'loss': 0.0}").code == "SF628"
    found = check("loss: 1.5\nloss: 1.2.3\nloss: 9.5\nloss: nan")
    assert found.code == "SF637"
    assert "rose from 1.5 to 9.5" in found.derived[0]


def test_a_size_that_is_too_long_is_left_out_and_shortened() -> None:
    found = check(f"mat1 and mat2 shapes cannot be multiplied ({'9' * 1000}x4 and 3x4)")
    assert found.code == "SF610"
    assert found.derived == ()
    assert len(str(found.evidence.values["rows"])) <= 201


def test_a_message_in_a_very_long_line_is_found() -> None:
    for before in (0, MAX_LINE_CHARS - 20, MAX_LINE_CHARS, 3 * MAX_LINE_CHARS):
        assert check("x" * before + " CUDA out of memory " + "y" * 9000).code == "SF650"


def test_terminal_codes_and_unprintable_characters_are_removed() -> None:
    found = check("\x1b]0;title\x07\x1b[31mCUDA\x00 out of\x07 memory\x1b[0m \ud800")
    assert found.code == "SF650"
    assert found.evidence.line == "CUDA out of memory \ufffd"
