"""The planner's table: what stages read is made before; choices are made once; where time went."""

from __future__ import annotations

import dis
import json
from inspect import signature
from itertools import pairwise
from pathlib import Path

import pytest

from builders import sentiment_rows, write_jsonl
from surefit.cli import run as run_cli
from surefit.pipeline.open_pipeline import Choices
from surefit.plan.draft import IN_PLAN, Choice, Draft, Stage, all_stages
from surefit.plan.stages import STAGES


def read_by(stage: Stage) -> set[str]:
    """Names of the attributes of the Draft that the code of a stage mentions."""
    draft = next(iter(signature(stage.run).parameters))
    steps = pairwise(dis.get_instructions(stage.run))
    loads = ((before, after) for before, after in steps if after.opname == "LOAD_ATTR")
    return {str(after.argval) for before, after in loads if before.argval == draft}


def test_what_a_stage_reads_is_made_by_a_stage_before_it() -> None:
    made: set[str] = set()
    for stage in all_stages(STAGES):
        known = Choices.__annotations__ if isinstance(stage, Choice) else Draft.__annotations__
        extra = set() if isinstance(stage, Choice) else {*IN_PLAN, "pipeline", "given_limit"}
        assert {*stage.makes.split()} <= {*known} | extra, stage.name
        reads = read_by(stage) & {*Draft.__annotations__, "pipeline"}
        assert reads <= made, (stage.name, reads - made)
        made |= {*stage.makes.split()} | ({"pipeline"} if stage.makes == "built" else set())
    assert {*Draft.__annotations__} <= made  # nothing is declared in vain


def test_timings_name_the_stages(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = write_jsonl(tmp_path / "rows.jsonl", sentiment_rows(12))
    command = ["check", "--data", str(data), "--model", "tiny:bert", "--timings"]
    assert run_cli([*command, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert {stage.name for stage in all_stages(STAGES)} >= {*found["timings"]}
    assert {"opening the data", "probes", "predicting memory"} <= {*found["timings"]}
    assert found["not_checked"] == []
    assert run_cli(command) == 0
    assert " s          opening the data" in capsys.readouterr().out
    data.write_text(data.read_text() + "{broken")
    assert run_cli([*command, "--json"]) == 1
    found = json.loads(capsys.readouterr().out)
    assert [*found["timings"]] == ["machine", "task", "opening the data"]
    assert "predicting memory" in found["not_checked"]  # an error keeps it from running
