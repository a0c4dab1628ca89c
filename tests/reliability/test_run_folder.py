"""A run's folder survives damage, half-written files, edits and a second process."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import surefit
from builders import events_of, feature_rows, same_pool, stop_at
from surefit.core import files
from surefit.core.digests import find_damage
from surefit.core.locks import YOUNG_SECONDS, lock_run
from surefit.errors import to_resume
from surefit.models.learning_rate import Schedule
from surefit.request import make_request
from surefit.run.choose_checkpoint import choose_checkpoint, latest_checkpoint, list_checkpoints
from surefit.run.events import cut_events, event_writer, read_events
from surefit.run.exported_model import _new_folder
from surefit.training.resume import resume_run
from surefit.training.work import Listeners

ROWS = feature_rows(40)
OPTIONS: dict[str, Any] = {"data": ROWS, "batch_size": 4, "epochs": 2, "lr": 0.01, "save_every": 3}


def train(folder: Path, **more: Any) -> surefit.api.Run:
    return surefit.train(model=same_pool(0.1), output=str(folder), **{**OPTIONS, **more})


def resume(folder: Path, **options: Any) -> list[str]:
    """Resume a run; what it reported."""
    said: list[str] = []
    request = make_request({"data": ROWS, "model": same_pool(0.1), **options})
    listeners = Listeners(notice=said.append, on_plan=lambda plan, _: said.extend(changes(plan)))
    resume_run(folder, request, {"data", "model", *options}, listeners)
    return said


def changes(plan: Any) -> list[str]:
    return [note for note in plan.notes if " → " in note or note.startswith("The run has")]


def cut(folder: Path, step: int, **more: Any) -> Path:
    with pytest.raises(KeyboardInterrupt):
        train(folder, callbacks=[stop_at(step)], **more)
    return folder


def flip_bit(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def truncate(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return train(tmp_path_factory.mktemp("whole") / "run").path


@pytest.mark.parametrize("damage", [flip_bit, truncate, Path.unlink])
@pytest.mark.parametrize("name", ["model-00001-of-00001.safetensors", "state.json", "index.json"])
def test_a_damaged_checkpoint_is_seen(
    tmp_path: Path, whole: Path, name: str, damage: Callable[[Path], None]
) -> None:
    shutil.copytree(whole / "checkpoints", tmp_path / "checkpoints")
    newest, before = list_checkpoints(tmp_path / "checkpoints")[::-1][:2]
    damage(newest / name)
    chosen = choose_checkpoint(tmp_path / "checkpoints")
    assert chosen.path == before
    assert str(newest / name) in chosen.notices[0]
    assert f"Resuming from step {int(before.name[5:])}." in chosen.notices


def test_a_damaged_checkpoint_is_passed_over_and_the_run_is_the_same(
    tmp_path: Path, whole: Path
) -> None:
    run = cut(tmp_path / "run", 11)
    latest = latest_checkpoint(run / "checkpoints")
    assert latest is not None
    flip_bit(latest / "model-00001-of-00001.safetensors")
    for stray in ("step-latest", "step-00000099.bak", "notes.txt"):
        (run / "checkpoints" / stray).mkdir()
    said = resume(run)
    assert f"{latest.name} is damaged" in said[0]
    assert events_of(run) == events_of(whole)
    assert not find_damage(run / "model")
    names = {path.name for path in (run / "checkpoints").iterdir()}
    assert {f"{latest.name}.damaged", "step-latest", "notes.txt"} < names


def test_resuming_leaves_the_checkpoint_it_resumes_from_as_it_was(
    tmp_path: Path, whole: Path
) -> None:
    run = cut(tmp_path / "run", 17)
    resume(run)
    files = [path for path in (run / "checkpoints").rglob("*") if path.is_file()]
    assert {path.parent.name for path in files} == {"step-00000015", "step-00000018"}
    assert [p for p in files if p.read_bytes() != (whole / p.relative_to(run)).read_bytes()] == []


def test_old_checkpoints_that_a_killed_run_did_not_delete_are_deleted(
    tmp_path: Path, whole: Path
) -> None:
    run = tmp_path / "run"
    shutil.copytree(whole, run, ignore=shutil.ignore_patterns("model", "report.html"))
    shutil.copytree(run / "checkpoints/step-00000015", run / "checkpoints/step-00000003")
    resume(run)
    assert (run / "report.html").is_file()
    kept = {path.name for path in list_checkpoints(run / "checkpoints")}
    assert kept == {path.name for path in list_checkpoints(whole / "checkpoints")}
    assert (run / "model").is_dir()
    modes = {path.stat().st_mode & 0o777 for path in run.rglob("*") if path.is_file()}
    before = os.umask(0)
    os.umask(before)
    assert modes == {0o666 & ~before}


def test_without_any_whole_checkpoint_a_run_begins_again(tmp_path: Path, whole: Path) -> None:
    run = cut(tmp_path / "run", 7)
    for path in list_checkpoints(run / "checkpoints"):
        truncate(path / "optimizer-00001-of-00001.safetensors")
    assert "Resuming from step 0." in resume(run)
    assert events_of(run) == events_of(whole)


def test_what_killed_writes_left_is_swept(tmp_path: Path) -> None:
    run = cut(tmp_path / "run", 7)
    left = [run / ".plan.json.0123abcd.tmp", run / "checkpoints" / ".step-00000009.89abcdef.tmp"]
    for folder in left:
        folder.mkdir()
        files.mark(folder)
        (folder / "model.safetensors").write_bytes(b"half")
    newest = list_checkpoints(run / "checkpoints")[-1]
    files.mark(newest)  # killed when the folder had just got its name
    resume(run)
    assert not (newest / files.MARK).exists()
    assert not any(path.exists() for path in left)
    assert not (run / ".lock").exists()


@pytest.mark.parametrize("kept", [[], ["digests.json"], ["config.yaml", "digests.json"]])
def test_a_start_that_was_killed_can_be_repeated(
    tmp_path: Path, kept: list[str], whole: Path
) -> None:
    run = tmp_path / "run"
    (run / "checkpoints").mkdir(parents=True)
    for name in kept:
        (run / name).write_bytes((whole / name).read_bytes())
    with pytest.raises(surefit.UsageError, match="before training began") as caught:
        surefit.train(resume=run)
    assert "--output" in caught.value.fix
    assert events_of(train(run).path) == events_of(whole)


def test_any_unicode_line_break_is_text(tmp_path: Path) -> None:
    breaks = "a\u2028b\u2029c\x85d\x0be\x0cf\x1cg\x1dh\x1ei\rj\ud800"
    path = tmp_path / "events.jsonl"
    written = [
        {"event": "eval", "step": step, "epoch": 1, "samples": [{"prompt": breaks}]}
        for step in (1, 2, 3)
    ]
    with event_writer(path) as write:
        for event in written:
            write(event)
    assert read_events(path) == written
    with path.open("ab") as file:
        file.write(b'{"event": "step", "st\xc3')  # cut off, in the middle of a character
    assert read_events(path) == written
    cut_events(path, 2)
    assert read_events(path) == written[:2]
    path.write_bytes(path.read_bytes().replace(b'"eval"', b'"eval', 1))
    with pytest.raises(surefit.UsageError, match=r"events.jsonl, line 1 is damaged"):
        read_events(path)


def test_a_run_that_is_trained_is_not_resumed_twice(tmp_path: Path) -> None:
    run = cut(tmp_path / "run", 7)
    with lock_run(run), pytest.raises(surefit.UsageError, match=f"process {os.getpid()} on") as it:
        resume(run)
    assert it.value.exit_code == 2
    with pytest.raises(surefit.UsageError, match="where it is; --output is"):
        resume(run, output=str(tmp_path / "other"))
    resume(run)


def test_a_folder_that_is_deleted_is_noticed_at_the_next_step(tmp_path: Path) -> None:
    run, steps = tmp_path / "run", []

    def delete(event: Any) -> None:
        steps.append(event["step"])
        if event["step"] == 4:
            shutil.rmtree(run)

    with pytest.raises(surefit.RunFailedError, match="was deleted or replaced"):
        train(run, callbacks=[delete], save_every=50)
    assert steps == [1, 2, 3, 4]
    assert not run.exists()


def test_more_epochs_extend_a_finished_run(tmp_path: Path) -> None:
    run = train(tmp_path / "run").path
    before = events_of(run)
    assert resume(run, epochs=2) == [f"{run} is already finished."]
    assert events_of(run) == before
    said = resume(run, epochs=4)
    assert said[0] == "epochs: 2 → 4."
    assert said[1].startswith("The run has 36 steps instead of 18. Learning rate (cosine)")
    assert said[1].endswith(": 8.51e-05 at step 18, 0.00546 at step 19.")
    plan = json.loads((run / "plan.json").read_text())
    assert plan["steps"] == 36
    assert plan["spans"] == [[0, 18], [18, 36]]
    after = events_of(run)
    assert after[: len(before)] == before
    rates = {event["step"]: event["lr"] for event in after if event["event"] == "step"}
    assert rates[18] == pytest.approx(0.01 * Schedule("cosine", 0.03).factor(18, 18))
    assert rates[19] == pytest.approx(0.01 * Schedule("cosine", 0.03).factor(19, 36))
    assert len(rates) == 36
    with pytest.raises(surefit.UsageError, match="has finished step 36"):
        resume(run, epochs=1)


def test_a_hand_edited_config_is_refused_or_obeyed(tmp_path: Path) -> None:
    run = cut(tmp_path / "run", 7)
    path = run / "config.yaml"
    text = path.read_text()
    path.write_text(text.replace("lr: 0.01", "lr: 0.02").replace("seed: 0", "seed: 5"))
    with pytest.raises(surefit.UsageError) as caught:
        resume(run)
    assert "lr: the run has 0.01, config.yaml has 0.02" in caught.value.message
    assert "seed: the run has 0, config.yaml has 5" in caught.value.message
    path.write_text(text.replace("save_every: 3", "save_every: 2"))
    resume(run)
    assert json.loads((run / "plan.json").read_text())["changes"] == [{"step": 6, "save_every": 2}]


def test_an_early_stopped_run_goes_on_when_it_is_extended(tmp_path: Path) -> None:
    torch.manual_seed(0)
    run = train(
        tmp_path / "run", lr=1e-9, epochs=8, early_stopping={"metric": "accuracy", "patience": 1}
    )
    stopped = run.saved_step
    assert stopped < 72
    assert run.finished
    resume(run.path, epochs=9)
    assert run.saved_step > stopped


def test_what_a_killed_export_leaves_is_removed_by_the_next_one(tmp_path: Path) -> None:
    child = os.fork()
    if child == 0:
        with _new_folder(tmp_path / "one") as folder:
            (folder / "model.safetensors").write_bytes(bytes(9))
            os._exit(9)
    os.waitpid(child, 0)
    (left,) = tmp_path.iterdir()
    os.utime(left, times=(0, left.stat().st_mtime - 2 * YOUNG_SECONDS))
    with _new_folder(tmp_path / "two") as folder:
        (folder / "x").write_text("x")
    assert [path.name for path in tmp_path.iterdir()] == ["two"]
    assert (tmp_path / "two" / "x").is_file()


@pytest.mark.parametrize("path", ["my run", "it's", "a;b", "plain"])
def test_commands_in_messages_can_be_pasted(path: str) -> None:
    assert shlex.split(to_resume(Path("runs", path))) == [
        *("surefit", "train", "--resume", f"runs/{path}")
    ]


def test_no_message_has_a_command_about_a_bare_path() -> None:
    bare = re.compile(r"surefit (train --resume|export|predict|verify|evaluate) \{(?!shell)")
    texts = [path.read_text() for path in Path(surefit.__file__).parent.rglob("*.py")]
    assert not [match[0] for text in texts for match in bare.finditer(text)]
