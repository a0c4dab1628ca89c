"""The live view of a terminal: bars per epoch, the spark line, evaluations; clean elsewhere."""

from __future__ import annotations

import io
import re
from collections.abc import Callable
from typing import Any

import pytest
from rich.console import Console

from surefit.cli import display as displays
from surefit.cli.display import Display
from surefit.cli.live_view import MOST_LOSSES, LiveView, evaluation_table

CODE = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
BASELINES = {"unigram": {"loss": 2.0}}


def event(step: int, epoch: int, **more: Any) -> dict[str, Any]:
    known = {"event": "step", "step": step, "epoch": epoch, "loss": 4.0 / step, "lr": 0.1}
    return {**known, "tokens": 100 * step, "seconds": 0.1, **more}


def evaluation(step: int, **more: Any) -> dict[str, Any]:
    metrics = {"loss": 1.5 / step, "perplexity": 12345.678, "confusion": [[1]]}
    return {"event": "eval", "step": step, "epoch": 1, "metrics": metrics, **more}


def rows_of(view: LiveView) -> list[str]:
    """What the live view shows now, line by line."""
    console = Console(width=view.console.width, file=io.StringIO(), no_color=True)
    console.print(view.get_renderable())
    return console.file.getvalue().splitlines()  # type: ignore[attr-defined]


def view(width: int, **options: Any) -> LiveView:
    console = Console(width=width, file=io.StringIO(), force_terminal=True, **options)
    made = LiveView(console)
    made.expect(num_steps=25, num_epochs=3, epoch_steps=10)
    return made


@pytest.mark.parametrize("width", [40, 60, 100])
def test_an_epoch_is_one_line_that_fits(width: int) -> None:
    made = view(width)
    for step in range(1, 26):
        made.note_loss(step, 4.0 / step)
        made.show_step(
            event(step, (step - 1) // 10 + 1), "loss 1.5", "3 min 2 s left", "9 tokens/s"
        )
        (line,) = [row for row in rows_of(made) if row.strip()]
        assert len(line) <= width
    assert line.startswith("epoch 3/3")
    assert "5/5" in line
    assert ("▁" in line) == (width >= 60)
    assert ("tokens/s" in line) == (width == 100)


def test_many_losses_are_thinned() -> None:
    made = view(60)
    for step in range(1, 5 * MOST_LOSSES):
        made.note_loss(step, float(step))
    assert len(made._losses) < MOST_LOSSES
    assert made._sparks == "▁▂▃▄▅▆▇█"


def test_evaluations_stand_side_by_side_as_many_as_fit() -> None:
    every = [evaluation(step) for step in range(1, 8)]
    wide = [line.plain for line in evaluation_table(every, BASELINES, 100)]
    assert wide[0].split() == ["step", "4", "step", "5", "step", "6", "step", "7", "baseline"]
    assert wide[1].split() == ["eval", "loss", "0.3750", "0.3000", "0.2500", "0.2143", "2.0000"]
    assert wide[2].startswith("perplexity")
    assert len(wide) == 3
    narrow = [line.plain for line in evaluation_table(every, BASELINES, 60)]
    assert narrow[0].split() == ["step", "5", "step", "6", "step", "7", "baseline"]
    assert max(map(len, narrow)) <= 60


Printed = Callable[..., str]


@pytest.fixture
def printed(monkeypatch: pytest.MonkeyPatch) -> Printed:
    """What a run of three steps and two evaluations writes to a console."""

    def show(**options: Any) -> str:
        file = io.StringIO()
        console = Console(file=file, width=60, soft_wrap=True, **options)
        monkeypatch.setattr(displays, "to_stderr", lambda: console)
        sample = {"prompt": "a", "expected": "b", "got": "answer one"}
        with Display() as display:
            display.num_steps, display.num_epochs = 3, 1
            if display._bars is not None:
                display._bars.expect(3, 1, 3)
            for step in (1, 2, 3):
                display.observe(event(step, 1))
            display.observe(evaluation(3, samples=[sample, {**sample, "prompt": "c"}]))
            display.observe(evaluation(6, samples=[sample, {**sample, "prompt": "c", "got": "x"}]))
        return file.getvalue()

    return show


def test_a_pipe_has_plain_lines_and_nothing_that_moves(printed: Printed) -> None:
    text = printed(force_terminal=False)
    assert "step 3 of 3: loss 1.3333" in text
    assert not CODE.search(text)
    assert not set("▁█━") & set(text)


def test_a_terminal_has_the_bar_and_the_table_without_colours_if_asked(printed: Printed) -> None:
    text = printed(force_terminal=True, no_color=True, legacy_windows=False)
    assert "epoch 1/1" in text
    assert "step 6" in text
    colours = [code for code in CODE.findall(text) if re.fullmatch(r"\x1b\[[34]\d.*m", code)]
    assert colours == []


def test_an_answer_is_shown_again_only_where_it_changed(printed: Printed) -> None:
    text = printed(force_terminal=False)
    assert text.count("answer one") == 2
    assert text.count("generated") == 3
