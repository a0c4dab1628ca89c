"""A run that was killed resumes exactly where it stopped, also where its data was moved."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

import surefit
from builders import (
    MeanPool,
    echo_rows,
    events_of,
    feature_rows,
    mostly_slow,
    run_python,
    same_pool,
    save_ragged,
    start_python,
    stop_at,
    write_jsonl,
    write_module,
)
from surefit.cli import run as command
from surefit.data.cache import release_entries
from surefit.data.cache_contents import clean_cache
from surefit.processes import SAME_SIGNAL_SECONDS
from surefit.run.choose_checkpoint import latest_checkpoint
from surefit.training import guards
from surefit.training.work import SILENT, StopRequest

TRAIN = ("-m", "surefit", "train")


def weights(run: Path) -> dict[str, torch.Tensor]:
    return load_file(run / "model" / "model.safetensors")


def wait_for_steps(run: Path, count: int) -> None:
    """Wait until so many steps are in the events of a run that is going on."""
    deadline = time.monotonic() + 600
    path = run / "events.jsonl"
    while time.monotonic() < deadline:
        if path.exists() and path.read_text().count('"step"') >= count:
            return
        time.sleep(0.02)
    raise AssertionError("the run took no steps")


KILLED = """
import os, signal, sys, threading
import surefit

def kill(event):
    if event["event"] == "step" and event["step"] == int(sys.argv[1]):
        wait = float(sys.argv[2])
        threading.Timer(wait, os.kill, (os.getpid(), signal.SIGKILL)).start()
    if event["event"] == "step" and event["step"] == 55:
        signal.pause()  # a timer that is late finds the run before its last step

surefit.train(
    data="rows.jsonl", model="tiny:bert", task="sft", epochs=4, save_every=7,
    generate={"rows": 4}, output="cut", callbacks=[kill],
)
"""


@pytest.mark.slow
def test_killed_at_a_random_step_and_resumed_is_the_same_run(tmp_path: Path) -> None:
    write_jsonl(tmp_path / "rows.jsonl", echo_rows(120))
    arguments = ["--data", "rows.jsonl", "--model", "tiny:bert", "--task", "sft", "--epochs", "4"]
    arguments += ["--set", "save_every=7", "--set", "generate.rows=4"]
    whole = run_python(tmp_path, *TRAIN, *arguments, "--output", "whole")
    assert whole[0] == 0, whole
    chance = random.SystemRandom()  # the run kills itself: nobody need be awake in time
    moment = [str(chance.randint(1, 45)), f"{chance.random() / 50:.4f}"]
    assert run_python(tmp_path, "-c", KILLED, *moment)[0] == -signal.SIGKILL, moment
    assert run_python(tmp_path, *TRAIN, "--resume", "cut")[0] == 0, moment
    assert events_of(tmp_path / "cut") == events_of(tmp_path / "whole")
    whole_weights, cut_weights = weights(tmp_path / "whole"), weights(tmp_path / "cut")
    assert all(torch.equal(whole_weights[key], cut_weights[key]) for key in whole_weights)


@pytest.mark.parametrize(
    "sent", mostly_slow([signal.SIGHUP, signal.SIGTERM, signal.SIGINT], every=3)
)
def test_signal_finishes_the_step_saves_and_exits_130(tmp_path: Path, sent: signal.Signals) -> None:
    save_ragged(tmp_path / "data.npz", feature_rows(400))
    arguments = ["--data", "data.npz", "--model", write_module(tmp_path, dropout=0.2)]
    arguments += ["--epochs", "4000", "--batch-size", "4", "--output", "run"]
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)  # under nohup, a run ignores it
    process = start_python(tmp_path, *TRAIN, *arguments)
    signal.signal(signal.SIGHUP, before)
    wait_for_steps(tmp_path / "run", 20)
    process.send_signal(sent)
    _, said = process.communicate(timeout=600)
    assert process.returncode == 130
    assert "Traceback" not in said
    latest = latest_checkpoint(tmp_path / "run" / "checkpoints")
    assert int(latest.name.removeprefix("step-")) == events_of(tmp_path / "run")[-1]["step"]
    assert not (tmp_path / "run" / "model").exists()


def test_interrupted_at_an_evaluation_is_evaluated_on_resume(tmp_path: Path) -> None:
    options: dict[str, Any] = {"data": feature_rows(40), "epochs": 2, "batch_size": 4}
    whole = surefit.train(model=same_pool(), output=str(tmp_path / "whole"), **options)
    stopped = {**options, "callbacks": [stop_at(9, signal.SIGINT)]}
    with pytest.raises(surefit.SurefitError, match="saved"):
        surefit.train(model=same_pool(), output=str(tmp_path / "cut"), **stopped)
    surefit.train(model=same_pool(), resume=tmp_path / "cut", **options)
    assert events_of(tmp_path / "cut") == events_of(whole)


def test_resume_refuses_what_contradicts_it(tmp_path: Path, capsys: Any) -> None:
    write_jsonl(tmp_path / "rows.jsonl", echo_rows(20))
    data = ["--data", str(tmp_path / "rows.jsonl"), "--model", "tiny:llama"]
    run = str(tmp_path / "run")
    assert command(["train", *data, "--max-steps", "2", "--output", run]) == 0
    assert command(["train", "--resume", run, "--max-steps", "2"]) == 0
    assert command(["train", "--resume", run, "--seed", "9"]) == 2
    assert "seed: the run has 0, you gave 9" in capsys.readouterr().err
    assert command(["train", *data, "--output", run]) == 2
    write_jsonl(tmp_path / "rows.jsonl", echo_rows(21))
    (tmp_path / "run" / "model").rename(tmp_path / "gone")
    assert command(["train", "--resume", run]) == 1
    assert "SF403" in capsys.readouterr().err


def test_early_stopping_keeps_the_best_step(tmp_path: Path) -> None:
    wrong = [{**row, "label": (row["label"] + 1) % 3} for row in feature_rows(30, seed=1)]
    run = surefit.train(
        data=feature_rows(60),
        eval_data=wrong,  # whose loss grows with what is learned
        model=MeanPool(),
        epochs=50,
        lr=0.5,
        keep=1,
        early_stopping={"metric": "loss", "patience": 2},
        output=str(tmp_path / "run"),
    )
    evals = [event for event in run.history if event["event"] == "eval"]
    losses = [event["metrics"]["loss"] for event in evals]
    assert len(losses) < 50
    best = min(range(len(losses)), key=losses.__getitem__)
    assert len(losses) == best + 3
    assert run.metrics["loss"] == losses[best]
    assert surefit.evaluate(run, feature_rows(60))["loss"] > 0
    names = sorted(path.name for path in (run.path / "checkpoints").iterdir())
    assert names == sorted({f"step-{evals[best]['step']:08d}", f"step-{evals[-1]['step']:08d}"})


def test_truncated_rows_are_known_again(tmp_path: Path) -> None:
    """Cutting a row changes a tokenizer's settings, which must not make other rows of it."""
    texts = [f"{n} " + "red " * (60 if n > 30 else 3) for n in range(60)]  # the last ones are cut
    write_jsonl(tmp_path / "rows.jsonl", [{"text": t, "label": n % 2} for n, t in enumerate(texts)])
    run = str(tmp_path / "run")
    arguments = ["train", "--data", str(tmp_path / "rows.jsonl"), "--model", "tiny:bert"]
    assert command([*arguments, "--max-seq-length", "16", "--max-steps", "2", "--output", run]) == 0
    assert command(["evaluate", run, "--json"]) == 0


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder with a run that stopped after its second step."""
    folder = tmp_path / "home"
    folder.mkdir()
    monkeypatch.chdir(folder)
    write_module(folder, "movednet")
    save_ragged(folder / "data.npz", feature_rows(30))
    options = ["--data", "data.npz", "--model", "movednet:make", "--batch-size", "4"]
    assert command(["train", *options, "--max-steps", "2", "--output", "run"]) == 0
    return folder


def resume(*more: str) -> int:
    return command(["train", "--resume", "run", "--max-steps", "4", *more])


def test_touched_data_is_the_same_and_moved_data_is_named(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    os.utime(home / "data.npz", (1, 1))
    assert command(["evaluate", "run"]) == 0
    content = (home / "data.npz").read_bytes()
    (home / "data.npz").unlink()
    (home / "data.npz").write_bytes(content)  # as after git checkout
    assert resume() == 0
    (home / "later").mkdir()
    shutil.move("data.npz", "later/renamed.npz")
    assert resume("--max-steps", "5") == 2
    assert "--data FILE" in capsys.readouterr().err
    assert resume("--max-steps", "5", "--data", "later/renamed.npz") == 0
    assert str(home / "later" / "renamed.npz") in (home / "run" / "config.yaml").read_text()
    shutil.move("later/renamed.npz", "renamed.npz")
    assert command(["evaluate", "run"]) == 0  # its rows are in the cache


def test_changed_data_is_refused_with_its_rows(
    home: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = feature_rows(30)
    for row in (5, 17):
        rows[row]["features"] = rows[row]["features"] + 1
    stat = (home / "data.npz").stat()
    save_ragged(home / "data.npz", rows)
    os.utime(home / "data.npz", ns=(stat.st_atime_ns, stat.st_mtime_ns))
    assert resume() == 1
    told = capsys.readouterr().err
    assert "2 new or changed: row 5, 17; 2 gone or changed: row 5, 17." in told.replace("\n", " ")
    assert "accept=[SF403]" in told
    assert resume("--set", "accept=[SF403]") == 0
    assert resume("--max-steps", "5") == 0  # they are now the rows of the run
    monkeypatch.setattr("surefit.training.resume.make_plan", None)
    assert command(["evaluate", "run"]) == 0  # and those in the cache


def test_without_the_old_rows_it_says_so(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    release_entries()
    clean_cache()
    save_ragged(home / "data.npz", feature_rows(30, seed=1))
    assert resume() == 1
    assert "cannot be compared" in capsys.readouterr().err.replace("\n", " ")
    plan = json.loads((home / "run" / "plan.json").read_text())
    assert plan["stores"]


def test_signals_close_together_are_one_stop_and_a_later_one_stops_now(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = 100.0
    monkeypatch.setattr(guards, "time", SimpleNamespace(monotonic=lambda: now))
    work: Any = SimpleNamespace(stop=StopRequest(), listeners=SILENT)
    with guards.stop_on_signal(work):
        for _ in range(3):  # as the kernel sends them when a launcher with threads is killed
            os.kill(os.getpid(), signal.SIGTERM)
        assert work.stop.value
        now += SAME_SIGNAL_SECONDS
        with pytest.raises(guards.SecondSignal):
            os.kill(os.getpid(), signal.SIGINT)
