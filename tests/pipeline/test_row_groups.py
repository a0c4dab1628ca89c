"""Models whose results depend on padding are evaluated and generate without it."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from transformers import GenerationMixin

import surefit
from builders import WORDS, assert_same_predictions, echo_rows, sentiment_rows
from surefit.checks.probes.model_profile import perturb
from surefit.data.open_data import open_table
from surefit.pipeline.evaluation import EvaluationSettings
from surefit.pipeline.pipeline import Pipeline
from surefit.pipeline.row_groups import RowGroups
from surefit.run.run_folder import open_run

PADDED = RowGroups()


def planned(model: str, task: str) -> tuple[Any, Pipeline]:
    """The plan, and its Pipeline with weights on which outputs depend, other than the probes'."""
    rows = {"sft": echo_rows(40), "text-classification": sentiment_rows(40)}
    rows["seq2seq"] = [{"source": r["prompt"], "target": r["completion"]} for r in echo_rows(40)]
    plan = surefit.check(data=rows[task], model=model, task=task, batch_size=8)
    perturb(plan.job.pipeline.module, seed=7)
    return plan, plan.job.pipeline


def predictions(pipeline: Pipeline, task: str, batch_size: int) -> list[dict[str, Any]]:
    column = {"sft": "prompt", "text-classification": "text", "seq2seq": "source"}[task]
    lengths = (2, 3, 3, 5, 8, 8, 11, 13)
    table = open_table([{column: " ".join((WORDS * 2)[:n])} for n in lengths])
    return list(pipeline.predict(table, batch_size, max_new_tokens=6))


def codes(plan: Any) -> set[str]:
    return {found.code for found in plan.findings}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "task", "groups", "code"),
    [
        ("tiny:rwkv", "sft", RowGroups(generation="single"), None),
        ("tiny:xlstm", "sft", RowGroups(generation="equal_length"), None),
        ("tiny:convbert", "text-classification", RowGroups(forward="equal_length"), "SF701"),
        ("tiny:fnet", "text-classification", RowGroups(forward="equal_length"), "SF701"),
    ],
)
def test_predictions_do_not_depend_on_the_batch_size(
    model: str, task: str, groups: RowGroups, code: str | None
) -> None:
    plan, pipeline = planned(model, task)
    assert pipeline.row_groups == groups
    assert plan.choices.row_groups.generation == groups.generation
    assert code in codes(plan) or any("generate for" in note for note in plan.notes)
    alone = predictions(pipeline, task, 1)
    assert_same_predictions(predictions(pipeline, task, 8), alone)
    padded = predictions(replace(pipeline, row_groups=PADDED), task, 8)
    with pytest.raises(AssertionError):
        assert_same_predictions(padded, alone)


@pytest.mark.parametrize(
    ("model", "task"),
    [
        ("tiny:llama", "sft"),
        ("tiny:gpt2", "sft"),
        ("tiny:mamba", "sft"),
        ("tiny:bert", "text-classification"),
        ("tiny:llama", "text-classification"),
        ("tiny:t5", "seq2seq"),
    ],
)
def test_models_that_read_the_mask_stay_batched(model: str, task: str) -> None:
    plan, pipeline = planned(model, task)
    assert pipeline.row_groups == PADDED
    assert not codes(plan) & {"SF701", "SF711"}
    assert_same_predictions(predictions(pipeline, task, 8), predictions(pipeline, task, 1))


def test_evaluation_does_not_depend_on_the_batch_size() -> None:
    plan, pipeline = planned("tiny:convbert", "text-classification")
    store = plan.job.train
    one, several = (pipeline.evaluate(store, EvaluationSettings(size)).metrics for size in (1, 8))
    assert several["loss"] == pytest.approx(one["loss"], rel=1e-6)
    padded = replace(pipeline, row_groups=PADDED).evaluate(store, EvaluationSettings(8)).metrics
    assert padded["loss"] != pytest.approx(one["loss"], rel=1e-5)


@pytest.mark.slow
def test_a_run_keeps_the_choice_and_its_evaluation_generates_by_it(tmp_path: Path) -> None:
    surefit.train(
        data=echo_rows(40),
        model="tiny:xlstm",
        task="sft",
        max_steps=1,
        generate={"rows": 8, "max_new_tokens": 3},
        output=tmp_path / "run",
    )
    plan = json.loads((tmp_path / "run" / "plan.json").read_text())
    assert plan["choices"]["row_groups"] == {"forward": "padded", "generation": "equal_length"}
    assert open_run(tmp_path / "run").open_pipeline().row_groups.generation == "equal_length"


def test_a_model_that_cannot_generate_is_found_and_one_without_padding_gets_single_prompts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    generate = GenerationMixin.generate

    def fail(self: Any, **inputs: Any) -> Any:
        raise ValueError("the cache has the wrong shape")

    def unpadded(self: Any, **inputs: Any) -> Any:
        if not bool(inputs["attention_mask"].all()):
            raise ValueError("padding is not supported")
        return generate(self, **inputs)

    monkeypatch.setattr(GenerationMixin, "generate", fail)
    plan = surefit.check(data=echo_rows(20), model="tiny:llama")
    (found,) = [each for each in plan.findings if each.severity == "error"]
    assert found.code == "SF713"
    assert "ValueError: the cache has the wrong shape" in found.message
    plan = surefit.check(data=echo_rows(20), model="tiny:llama", generate={"rows": 0})
    assert plan.ok, plan.findings
    monkeypatch.setattr(GenerationMixin, "generate", unpadded)
    plan, pipeline = planned("tiny:llama", "sft")
    assert plan.ok, plan.findings
    assert pipeline.row_groups.generation == "single"
    assert len(predictions(pipeline, "sft", 8)) == 8
