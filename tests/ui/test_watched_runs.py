"""Runs that are read on while they train: events, the list, links and damage."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

import surefit
from builders import echo_rows
from surefit.core.locks import FILE, STOP, STOP_TEXT, ask_to_stop, is_held, lock_run, locked
from surefit.errors import InterruptedRunError, UsageError
from surefit.run.events import EventTail, read_events
from surefit.run.run_folder import open_run
from surefit.ui.watched_runs import Runs, seconds_left


def step(number: int, **more: Any) -> dict[str, Any]:
    known = {"event": "step", "step": number, "epoch": 1, "loss": 1.0 / number, "lr": 0.1}
    return {**known, "tokens": number * 10, "seconds": 0.5, **more}


def write(path: Path, events: list[dict[str, Any]], mode: str = "w") -> None:
    with path.open(mode) as file:
        file.writelines(json.dumps(event) + "\n" for event in events)


def test_a_tail_reads_what_is_new_and_nothing_twice(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    tail = EventTail(path)
    assert not tail.read()
    write(path, [step(1), step(2)])
    assert tail.read()
    assert not tail.read()
    with path.open("r+") as file:  # what was read is not looked at again
        file.write("x" * 20)
    with path.open("a") as file:
        file.write(json.dumps(step(3)) + '\n{"event": "st')
    assert tail.read()
    assert tail.history == [step(1), step(2), step(3)]
    assert tail.num_steps == 3
    with path.open("a") as file:  # the rest of the line
        file.write('ep", "step": 4}\n')
    tail.read()
    assert tail.history[-1] == {"event": "step", "step": 4}


def test_a_file_that_was_cut_on_resuming_is_read_anew(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    write(path, [step(n) for n in range(1, 9)])
    tail = EventTail(path)
    tail.read()
    replaced = tmp_path / "other"
    write(replaced, [step(1), step(2, loss=9.0)])
    os.replace(replaced, path)
    tail.read()
    assert tail.history == read_events(path)


def test_many_steps_are_kept_as_means_of_neighbours(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    evaluation = {"event": "eval", "step": 500, "epoch": 1, "metrics": {"loss": 2.0}}
    write(path, [step(n, loss=float(n)) for n in range(1, 1002)])
    write(path, [evaluation], "a")
    tail = EventTail(path, most_steps=100)
    tail.read()
    steps = [event for event in tail.history if event["event"] == "step"]
    assert len(steps) < 200
    assert tail.num_steps == 1001
    assert steps[-1]["step"] == 1001
    assert steps[0] == step(8, loss=4.5, seconds=4.0)
    assert sum(each["seconds"] for each in steps) == 1001 * 0.5
    assert evaluation in tail.history


def test_a_line_that_is_no_event_is_named_and_named_again(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    path.write_text(json.dumps(step(1)) + "\nnonsense\n")
    tail = EventTail(path)
    for _ in range(2):
        with pytest.raises(UsageError, match=r"damaged at byte \d+: .*nonsense"):
            tail.read()


def test_time_left_is_that_of_recent_steps() -> None:
    slow, fast = [step(1, seconds=100.0)], [step(n) for n in range(2, 60)]
    assert seconds_left([*slow, *fast], 159) == 50.0
    assert seconds_left([], 5) is None


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("watched") / "echo"
    options: dict[str, Any] = {"max_steps": 4, "generate": {"rows": 0}, "quiet": True}
    surefit.train(data=echo_rows(30), model="tiny:llama", output=str(path), **options)
    return path


@pytest.fixture
def folder(finished: Path, tmp_path: Path) -> Path:
    shutil.copytree(finished, tmp_path / "runs" / "echo")
    return tmp_path / "runs"


def test_runs_are_found_and_summarised_and_links_are_not_followed(folder: Path) -> None:
    shutil.copytree(folder / "echo", folder / "group" / "fold-0")
    (folder / "linked").symlink_to(folder / "echo")
    (folder / "notes").mkdir()
    shutil.copytree(folder / "echo", folder / os.fsdecode(b"\xff"))
    runs = Runs(folder)
    found = {each.name: each for each in runs.summaries()}
    assert set(found) == {"echo", "group/fold-0"}
    about = found["echo"]
    assert (about.state, about.task, about.step, about.steps) == ("finished", "sft", 4, 4)
    assert about.metric == "perplexity"
    for name in ("linked", "../echo", "", "notes"):
        with pytest.raises(UsageError, match="There is no run"):
            runs.get(name)


def test_a_run_with_a_link_or_damage_in_it_says_so_and_shows_nothing(folder: Path) -> None:
    runs, secret = Runs(folder), folder.parent / "secret"
    assert runs.summaries()[0].state == "finished"
    secret.write_text(json.dumps(step(1)) + "\n")
    events = folder / "echo" / "events.jsonl"
    events.unlink()
    events.symlink_to(secret)
    (summary,) = runs.summaries()
    assert summary.state == "damaged"
    assert "is a link" in summary.fault
    with pytest.raises(UsageError, match="is a link"):
        runs.get("echo").drawn()
    events.unlink()
    (folder / "echo" / "plan.json").write_text("{}")
    assert runs.summaries()[0].state == "damaged"


def test_what_has_not_changed_is_not_read_again(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs = Runs(folder)
    before, drawn = runs.summaries(), runs.get("echo").drawn()
    with monkeypatch.context() as patch:
        patch.setattr("surefit.ui.watched_runs.open_run", None)
        assert runs.summaries() == before
        assert runs.get("echo").drawn() == drawn
    write(folder / "echo" / "events.jsonl", [step(5)], "a")
    assert runs.summaries()[0].step == 5


def test_a_lock_is_seen_without_being_taken(tmp_path: Path) -> None:
    path = tmp_path / FILE
    assert not is_held(path)
    with locked(path):
        assert is_held(path)
        assert is_held(path)
    path.write_text('{"pid": 1}')  # of a killed process
    assert not is_held(path)


def test_a_request_to_stop_is_for_one_process_and_another_file_is_kept(tmp_path: Path) -> None:
    stop = tmp_path / STOP
    for text, is_kept in ((STOP_TEXT, False), (b"mine", True)):
        stop.write_bytes(text)
        with lock_run(tmp_path):
            assert stop.exists() == is_kept
            if not is_kept:
                ask_to_stop(tmp_path)
        assert stop.exists() == is_kept


def test_stop_saves_the_step_and_resuming_ends_as_if_it_had_not_been(tmp_path: Path) -> None:
    options: dict[str, Any] = {"max_steps": 6, "generate": {"rows": 0}, "quiet": True}
    output = tmp_path / "run"

    def stop(event: Any) -> None:
        if event["event"] == "step" and event["step"] == 3:
            ask_to_stop(output)

    with pytest.raises(UsageError, match="not being trained"):
        ask_to_stop(output)
    data: dict[str, Any] = {"data": echo_rows(30), "model": "tiny:llama"}
    with pytest.raises(InterruptedRunError):
        surefit.train(**data, output=str(output), callbacks=[stop], **options)
    assert open_run(output).saved_step == 4  # the step that was in work when it was asked for
    assert not (output / ".stop").exists()
    surefit.train(**data, resume=str(output), quiet=True)
    whole = surefit.train(**data, output=str(tmp_path / "whole"), **options)
    losses = [
        [event["loss"] for event in open_run(each).history if event["event"] == "step"]
        for each in (output, whole.path)
    ]
    assert losses[0] == losses[1]
