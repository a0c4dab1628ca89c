"""Text generated at each evaluation: what is scored, by whom, and what is done with the score."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import surefit
from builders import echo_rows, sentiment_rows, write_jsonl
from surefit.errors import FindingError, RunFailedError, UsageError
from surefit.pipeline.evaluation import EvaluationSettings
from surefit.targets.generation import Sample


def letters(expected: str, got: str) -> float:
    """Share of the expected letters that were made."""
    return len(set(expected) & set(got)) / max(1, len(set(expected)))


def options(tmp_path: Path, **more: Any) -> dict[str, Any]:
    base = {"data": echo_rows(60), "model": "tiny:llama", "output": str(tmp_path / "run")}
    return {**base, "generate": {"rows": 6, "max_new_tokens": 4}, **more}


def evals(run: surefit.Run) -> list[dict[str, Any]]:
    return [event for event in run.history if event["event"] == "eval"]


def test_own_scorer_from_python_is_a_metric_and_can_be_watched(tmp_path: Path) -> None:
    watched = {"metric": "letters", "patience": 9}
    run = surefit.train(
        **options(tmp_path, scorer=letters, early_stopping=watched, epochs=3, max_steps=12)
    )
    for event in evals(run):
        expected = [letters(s["expected"], s["got"]) for s in event["samples"]]
        assert event["metrics"]["letters"] == pytest.approx(sum(expected) / len(expected))
        assert {"token_f1", "exact_match", "rouge_l", "loss"} <= set(event["metrics"])
    best = max(evals(run), key=lambda e: (e["metrics"]["letters"], -e["metrics"]["loss"]))
    assert run.best_step == best["step"]
    assert run.metrics["letters"] == best["metrics"]["letters"]
    assert "letters" in surefit.evaluate(run, echo_rows(6, seed=3))


def test_own_scorer_by_name_gives_several_figures(tmp_path: Path, monkeypatch: Any) -> None:
    (tmp_path / "mine.py").write_text(
        "def both(expected, got):\n"
        "    return {'starts_alike': float(expected[:1] == got[:1]), 'length': len(got)}\n"
    )
    monkeypatch.chdir(tmp_path)
    data = str(write_jsonl(tmp_path / "rows.jsonl", echo_rows(60)))
    generate = {"rows": 6, "max_new_tokens": 4, "scorer": "mine:both"}
    watched = {"metric": "starts_alike", "patience": 1}
    run = surefit.train(
        **options(tmp_path, data=data, generate=generate, early_stopping=watched, max_steps=3)
    )
    assert {"starts_alike", "length"} <= set(run.metrics)
    assert any(f"[file {tmp_path / 'mine.py'}]" in note for note in run.plan["notes"])
    monkeypatch.chdir(tmp_path.parent)
    again = surefit.evaluate(tmp_path / "run")
    assert again["length"] == pytest.approx(run.metrics["length"])


@pytest.mark.parametrize(
    ("scorer", "message"),
    [
        (lambda expected, got: 1 / 0, "ZeroDivisionError"),
        (lambda expected, got: "good", "could not convert"),
        (lambda expected, got: float("nan"), "gave nan"),
        (lambda expected, got: {}, "gave {}"),
        (lambda expected: 1.0, "TypeError"),
    ],
)
def test_scorer_that_fails_is_found_before_training(
    tmp_path: Path, scorer: Any, message: str
) -> None:
    with pytest.raises(FindingError, match=message) as caught:
        surefit.train(**options(tmp_path, scorer=scorer))
    assert caught.value.findings[0].code == "SF296"
    assert not (tmp_path / "run").exists()


def test_scorer_that_fails_later_names_the_answer(tmp_path: Path) -> None:
    def picky(expected: str, got: str) -> float:
        if expected != got:
            raise ValueError("not alike")
        return 1.0

    with pytest.raises(FindingError, match="picky failed on expected") as caught:
        surefit.train(**options(tmp_path, scorer=picky, max_steps=1))
    assert caught.value.findings[0].code == "SF863"  # found before the first step
    with pytest.raises(RunFailedError, match="picky failed on expected"):
        surefit.train(**options(tmp_path, scorer=picky, max_steps=1, accept=["SF863"]))


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"early_stopping": {"metric": "letters"}}, "cannot watch"),
        (
            {"early_stopping": {"metric": "token_f1"}, "generate": {"rows": 0}},
            "generate.rows is 0",
        ),
        ({"scorer": letters, "early_stopping": {"metric": "lettres"}}, "lettres"),
        ({"generate": {"scorer": "nowhere:score"}}, "no Python module 'nowhere'"),
        ({"generate": {"scorer": "score"}}, "expected module:function"),
        ({"scorer": lambda expected, got: {"token_f1": 1.0}}, "token_f1"),
        (
            {"scorer": letters, "data": sentiment_rows(20), "model": "tiny:bert"},
            "generates none",
        ),
    ],
)
def test_what_cannot_be_scored_or_watched_is_refused(
    tmp_path: Path, more: dict[str, Any], message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        surefit.check(**options(tmp_path, **more))


def test_generation_is_bounded_by_rows_and_tokens_and_reports_progress() -> None:
    plan = surefit.check(data=echo_rows(200), model="tiny:llama", eval_share=0.2)
    asked: list[tuple[int, int, int]] = []
    shown: list[tuple[str, int, int]] = []

    def answer(model: Any, rows: Any, encoder: Any, max_new_tokens: int) -> list[Sample]:
        asked.append((len(rows), max(len(row["input_ids"]) for row in rows), max_new_tokens))
        return [Sample("q", "a", "a") for _ in rows]

    task = replace(plan.task, generate=replace(plan.task.generate, answer=answer))
    settings = EvaluationSettings(4, generate_rows=10, max_new_tokens=3)
    made = replace(plan.job.pipeline, task=task).evaluate(
        plan.job.validation, settings, progress=lambda *state: shown.append(state)
    )
    sizes, lengths, tokens = zip(*asked, strict=True)
    assert (sizes, {*tokens}) == ((4, 4, 2), {3})
    assert list(lengths) == sorted(lengths, reverse=True)  # batched by length
    generating = [("generating", done, 3) for done in range(4)]
    assert [state for state in shown if state[0] == "generating"] == generating
    assert made.metrics["exact_match"] == 1.0
