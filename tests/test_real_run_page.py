"""docs/real-runs.md: each run has a result of its present command; each goal can be missed."""

from __future__ import annotations

import shlex
from dataclasses import replace
from pathlib import Path

import pytest

import real_runs
from real_run_commands import fill_in, shown_command, train_arguments
from real_run_goals import Figure
from real_run_list import RUNS, RealRun
from real_run_page import (
    KINDS,
    is_current,
    reaches_goals,
    read_results,
    renew,
    runs_of,
    tables,
    write_results,
)

PAGE = Path(__file__).resolve().parents[1] / "docs" / "real-runs.md"


@pytest.mark.parametrize("run", RUNS, ids=lambda run: run.name)
def test_goals_can_be_missed(run: RealRun) -> None:
    """A goal of 0 or less would be reached without learning anything."""
    least = [figure.least for figure in run.figures if figure.least is not None]
    assert least
    assert min(least) > 0


LISTED = [
    pytest.param(run, kind, id=f"{kind}: {run.name}") for kind in KINDS for run in runs_of(kind)
]


@pytest.mark.parametrize(("run", "kind"), LISTED)
def test_every_run_was_measured_as_it_is_listed(run: RealRun, kind: str) -> None:
    result = read_results()[kind][run.name]
    assert is_current(result, run, kind)
    assert reaches_goals(result, run)
    assert result["machine"]
    assert len(result["date"]) == len("2026-11-16")


def test_page_shows_the_results() -> None:
    page = PAGE.read_text("utf-8")
    assert renew(page, tables(read_results())) == page
    assert "not measured" not in page


def test_measuring_one_run_leaves_the_other_results(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "results.json"
    recorded = read_results()
    write_results(recorded, path)
    run = RUNS[0]
    new = {
        **recorded["first"][run.name],
        "figures": {figure.text: 0.99 for figure in run.figures},
        "machine": "another machine",
        "date": "2030-01-02",
    }
    monkeypatch.setattr(real_runs, "read_results", lambda: read_results(path))
    monkeypatch.setattr(real_runs, "write_results", lambda results: write_results(results, path))
    monkeypatch.setattr(real_runs, "run_apart", lambda *_: new)
    assert real_runs.measure(run, "first", fresh=True)
    written = read_results(path)
    assert "2030-01-02, machine 1" in tables(written)["first"]
    assert written["first"].pop(run.name) == new
    recorded["first"].pop(run.name)
    assert written == recorded


def test_failed_run_keeps_its_former_result(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "results.json"
    write_results(read_results(), path)
    monkeypatch.setattr(real_runs, "write_results", lambda results: write_results(results, path))
    monkeypatch.setattr(real_runs, "run_apart", lambda *_: None)
    assert not real_runs.measure(RUNS[0], "first", fresh=True)
    assert read_results(path) == read_results()


def test_rows_show_missed_goals_and_outdated_results() -> None:
    results = read_results()
    first, second = RUNS[0], RUNS[1]
    results["first"][first.name]["figures"] = {figure.text: 0.0 for figure in first.figures}
    results["first"][second.name]["command"] = "surefit train --another"
    lines = tables(results)["first"].splitlines()
    rows = {line.removeprefix("| ").split(" | ")[0]: line for line in lines}
    assert "| **missed**: 0 |" in rows[first.name]
    assert "| **not measured** |" in rows[second.name]


def test_figures_without_a_goal_are_shown_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    run = replace(RUNS[0], figures=(Figure("accuracy", lambda done: 0.5),))
    monkeypatch.setattr("real_run_page.RUNS", (run,))
    results = read_results()
    results["first"][run.name]["figures"] = {"accuracy": 0.5}
    row = tables(results)["first"].splitlines()[-1]
    assert row.startswith(f"| {run.name} | none |  | accuracy 0.5 |")


def test_runs_that_are_not_repeated_have_no_row_in_the_second_table() -> None:
    rows = tables(read_results())["again"]
    assert all((f"| {run.name} |" in rows) == run.repeated for run in RUNS)


def test_page_shows_the_command_that_is_run(tmp_path: Path) -> None:
    for run in RUNS:
        shown = shown_command(run, seed=3, renamed=False)
        words = train_arguments(run, tmp_path, seed=3, renamed=False)
        assert words == [
            *(fill_in(word, tmp_path) for word in shlex.split(shown)[1:]),
            *("--output", "run"),
        ]


def test_repeated_run_gets_other_names(tmp_path: Path) -> None:
    """Columns and the model's module; the files are written before the command is run."""
    from pyarrow import parquet

    (tmp_path / "rows.csv").write_text("size,price,seller\n1,2,a\n", "utf-8")
    run = RealRun(
        "houses",
        ("$WORK/rows.csv",),
        "--model small_cnn:make --set columns.label=price --set ignore=[seller]",
        (),
        {"features": "size", "label": "price"},
        ("seller",),
    )
    words = train_arguments(run, tmp_path, seed=1, renamed=True)
    assert words[words.index("--data") + 1] == str(tmp_path / "data.parquet")
    assert words[words.index("--model") + 1] == "their_small_cnn:make"
    assert [words[place + 1] for place, word in enumerate(words) if word == "--set"] == [
        "columns.label=their_price",
        "ignore=[their_seller]",
        "columns.features=their_size",
    ]
    names = parquet.read_schema(tmp_path / "data.parquet").names
    assert names == ["their_size", "their_price", "their_seller"]
    assert (tmp_path / "their_small_cnn.py").is_file()
