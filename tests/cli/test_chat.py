"""`surefit chat`: what it answers through a pipe, what it remembers, and what it refuses."""

from __future__ import annotations

import io
import sys
from pathlib import Path
from typing import Any

import pytest

import surefit
from builders import echo_rows, sentiment_rows
from surefit.cli import chat, run
from surefit.errors import UsageError
from surefit.pipeline.conversation import Talk, open_talk
from surefit.run.run_folder import Run, open_run

ASKED = echo_rows(1)[0]["prompt"]
SHORT = ["--set", "generate.max_new_tokens=5"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = str(tmp_path_factory.mktemp("chat") / "run")
    options: dict[str, Any] = {"max_steps": 30, "lr": 5e-3, "generate": {"rows": 0}}
    surefit.train(data=echo_rows(60), model="tiny:llama", output=path, quiet=True, **options)
    return path


def say(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO(text))


def talk(folder: str) -> Talk:
    opened = open_run(folder)
    wanted = opened.config.generate.model_copy(update={"max_new_tokens": 5})
    return open_talk(opened.open_pipeline(), wanted)


def test_a_pipe_gets_a_line_per_message_the_first_as_predict_answers(
    folder: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    say(monkeypatch, f"{ASKED}\n\n/reset\n{ASKED}\n/nonsense\n/exit\nnever answered\n")
    assert run(["chat", folder, *SHORT]) == 0
    said = capsys.readouterr()
    lines = said.out.splitlines()
    settings = {"max_new_tokens": 5}
    (made,) = surefit.predict(folder, [{"prompt": ASKED}], generate=settings, quiet=True)
    assert lines[0]
    assert [line.replace("\\n", "\n") for line in lines] == [made["prediction"]] * 2
    assert "no command /nonsense" in said.err


def test_base_is_the_model_before_training(
    folder: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    say(monkeypatch, f"{ASKED}\n")
    assert run(["chat", folder, "--base", *SHORT]) == 0
    trained, base = capsys.readouterr().out.rstrip("\n").split("\t")
    assert trained != base


def test_the_history_and_the_system_prompt_are_in_the_prompt(folder: str) -> None:
    first = talk(folder).asked(ASKED)
    (alone,) = first.pipeline.encode_row({"messages": list(first.history)})
    second = first.answered("cat").asked(ASKED)
    (both,) = second.pipeline.encode_row({"messages": list(second.history)})
    assert len(both.columns["input_ids"]) > len(alone.columns["input_ids"])
    spoken = second.with_system("Be brief.")
    assert spoken.history == ()
    (third,) = spoken.pipeline.encode_row({"messages": list(first.history)})
    assert len(third.columns["input_ids"]) > len(alone.columns["input_ids"])


def test_parts_that_are_written_are_the_answer_and_ctrl_c_stops_it(folder: str) -> None:
    asked, parts = talk(folder).asked(ASKED), list[str]()
    made = asked.answer(parts.append)
    assert made.text
    assert "".join(parts) == made.text

    class Stopped(io.StringIO):
        def write(self, text: str) -> int:
            if text.strip() and text.strip() != "(stopped)":
                super().write(text)
                raise KeyboardInterrupt
            return super().write(text)

    out = Stopped()
    said, stopped = chat._stream(asked, "", out)
    assert stopped
    assert said == out.getvalue().split(" (stopped)")[0]


def test_other_tasks_are_refused_in_plain_words(tmp_path: Path) -> None:
    made = surefit.train(
        data=sentiment_rows(20),
        model="tiny:bert",
        max_steps=1,
        output=str(tmp_path / "run"),
        quiet=True,
    )
    assert isinstance(made, Run)
    with pytest.raises(UsageError, match="needs a causal language model"):
        open_talk(made.open_pipeline(), made.config.generate)
