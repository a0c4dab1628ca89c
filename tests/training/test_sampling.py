"""Settings of generation: each is used, saved with the run, and the same in any batch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import surefit
from builders import echo_rows
from surefit.config import Generation
from surefit.errors import UsageError
from surefit.run.run_folder import Run
from surefit.targets.sampling import choose_settings, cut_at

NEW = 6
ROWS = [{"prompt": row["prompt"]} for row in echo_rows(5, seed=4)]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A model that has hardly learned, so that many tokens are about as likely."""
    made = surefit.train(
        data=echo_rows(60),
        model="tiny:llama",
        max_steps=2,
        lr=1e-5,
        generate={"rows": 2, "max_new_tokens": NEW},
        output=str(tmp_path_factory.mktemp("sampling") / "run"),
        quiet=True,
    )
    assert isinstance(made, Run)
    return made


def answers(run: Run, rows: Any = None, **settings: Any) -> list[Any]:
    made = surefit.predict(run, rows or ROWS, generate=settings, quiet=True)
    return [each["prediction"] for each in made]


def test_samples_differ_repeat_with_the_seed_and_are_those_of_the_row_alone(
    run: Run,
) -> None:
    greedy, sampled = answers(run), answers(run, temperature=1.0)
    assert sampled != greedy
    assert sampled == answers(run, temperature=1.0)
    assert sampled != answers(run, temperature=1.0, seed=8)
    assert sampled == [answers(run, [row], temperature=1.0)[0] for row in ROWS]
    assert answers(run, temperature=1.0, top_k=1) == greedy
    assert answers(run, temperature=1.0, top_p=1e-6) == greedy
    assert answers(run, temperature=1e-3) == greedy
    (made,) = surefit.predict(
        run, ROWS[:1], generate={"temperature": 1.0, "samples": 4}, quiet=True
    )
    assert made["predictions"][0] == made["prediction"] == sampled[0]
    assert len(set(made["predictions"])) > 1


def test_an_answer_ends_at_a_stop_text_and_is_marked_where_it_is_cut_off(run: Run) -> None:
    (whole,) = surefit.predict(run, ROWS[:1], generate={"max_new_tokens": 12}, quiet=True)
    assert whole["cut_off"] is True
    assert whole["prompt"] == ROWS[0]["prompt"]
    stop = whole["prediction"][len(whole["prediction"]) // 2]
    settings = {"max_new_tokens": 12, "stop": stop}
    (made,) = surefit.predict(run, ROWS[:1], generate=settings, quiet=True)
    assert made["prediction"] == whole["prediction"].split(stop)[0].strip()
    assert "cut_off" not in made


def test_the_penalty_counts_and_is_the_same_beside_a_longer_prompt(run: Run) -> None:
    penalized = answers(run, repetition_penalty=50.0)
    assert penalized != answers(run)
    assert penalized == [answers(run, [row], repetition_penalty=50.0)[0] for row in ROWS]


def test_a_system_prompt_is_read_before_the_rows(run: Run) -> None:
    assert answers(run, system="Answer in one word.") != answers(run)
    with pytest.raises(UsageError, match="as they were trained with"):
        surefit.evaluate(run, generate={"system": "Be brief."}, quiet=True)
    plain = surefit.evaluate(run, echo_rows(9), quiet=True)
    other = surefit.evaluate(run, echo_rows(9), generate={"system": "Be brief."}, quiet=True)
    assert plain["loss"] != other["loss"]


def test_a_run_keeps_how_it_generates_and_answers_are_as_long_as_those_of_the_data(
    tmp_path: Path,
) -> None:
    rows = [{"prompt": f"say {n}", "completion": "la " * 40} for n in range(30)]
    settings = {"rows": 2, "temperature": 1.0, "samples": 2, "stop": ["zz"], "seed": 3}
    run = surefit.train(
        data=rows, model="tiny:gpt2", max_steps=1, generate=settings, output=str(tmp_path / "run")
    )
    assert isinstance(run, Run)
    (sample,) = run.history[-1]["samples"][:1]
    assert sample["cut_off"] is True
    assert len(sample["others"]) == 1
    store = run.open_pipeline().encoder.settings
    assert store.seed == 3
    assert store.generate is not None
    assert store.generate["stop_strings"] == ["zz"]
    assert run.plan["generate"]["max_new_tokens"] == store.answer_tokens
    assert 40 <= (store.answer_tokens or 0) <= 256
    (again,) = surefit.predict(run, [{"prompt": sample["prompt"]}], quiet=True)
    assert len(again["predictions"]) == 2
    greedy = surefit.predict(run, [{"prompt": "say 1"}], generate={"temperature": 0}, quiet=True)
    assert "predictions" not in greedy[0]


def test_sampling_that_is_asked_for_is_completed_by_the_model() -> None:
    known = {"do_sample": True, "temperature": 0.6, "top_p": 0.9}
    assert choose_settings({}, Generation(), known) == {}
    as_model = choose_settings({}, Generation(), known, as_model=True)
    assert as_model == known
    assert choose_settings({}, Generation(top_p=0.5), known) == {**known, "top_p": 0.5}
    with pytest.raises(UsageError, match="num_beams 3"):
        choose_settings({"num_beams": 3}, Generation(samples=2), {})
    assert cut_at(["b", "a"], "xay b") == "x"


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"temperature": 0, "samples": 2}, "samples needs sampling"),
        ({"top_p": 0}, "top_p"),
        ({"top_k": 0}, "top_k"),
        ({"temperature": -1}, "temperature"),
        ({"stop": ""}, "expected texts"),
        ({"from_model": ["num_beams"]}, "cannot be set for a trained model"),
    ],
)
def test_bad_settings_are_refused(run: Run, settings: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        surefit.predict(run, ROWS, generate=settings, quiet=True)


def test_settings_of_text_are_refused_where_none_is_made() -> None:
    rows = [{"text": f"{word} {n}", "label": word} for n in range(20) for word in ("good", "bad")]
    with pytest.raises(UsageError, match="no text is generated"):
        surefit.check(data=rows, model="tiny:bert", generate={"temperature": 1.0}, quiet=True)
    with pytest.raises(UsageError, match="does not read"):
        surefit.check(
            data=[{"text": "a b c " * 9}] * 30,
            model="tiny:llama",
            generate={"system": "x"},
            quiet=True,
        )
