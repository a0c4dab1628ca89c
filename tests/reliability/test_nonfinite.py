"""Steps that are not finite change nothing; their row is found; memory that is too small splits."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

import surefit
from builders import MeanPool, feature_rows
from surefit.cli import run as command
from surefit.request import PythonObjects, make_request
from surefit.run.run_folder import open_run
from surefit.run.verify_run import verify_files
from surefit.training.replay import failed_step, find_bad_rows, verify_step
from surefit.training.run import start_run
from surefit.training.work import Listeners

BAD = 17


def rows() -> list[dict[str, Any]]:
    made = feature_rows(40)
    made[BAD]["features"][0, 0] = 77.0
    return made


class Root(torch.autograd.Function):
    """Finite forward; the gradient is not finite where the bad row is."""

    @staticmethod
    def forward(ctx: Any, hidden: Any, marks: Any) -> Any:
        ctx.save_for_backward(marks)
        return hidden.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        (marks,) = ctx.saved_tensors
        return torch.where(marks, float("nan"), gradient), None


class Net(MeanPool):
    def __init__(self) -> None:
        torch.manual_seed(3)
        super().__init__()
        self.norm = torch.nn.BatchNorm1d(3)
        self.armed = True

    def forward(self, inputs_embeds: Any, attention_mask: Any) -> Any:
        logits = super().forward(inputs_embeds.clamp(-9, 9), attention_mask)
        marks = (inputs_embeds == 77.0).any(-1).any(-1, keepdim=True)
        return Root.apply(logits, marks & self.armed & self.training)


class Late(Net):
    """Fails only once training has begun: planning's probes go through."""

    steps = 0

    def forward(self, inputs_embeds: Any, attention_mask: Any) -> Any:
        self.armed = LATE["armed"]
        return super().forward(inputs_embeds, attention_mask)


LATE = {"armed": False}
OPTIONS: dict[str, Any] = {"epochs": 2, "batch_size": 4, "grad_accum": 2, "eval_share": 0.1}


def train(folder: Path, said: list[str], **more: Any) -> Any:
    LATE["armed"] = False

    def arm(plan: Any, _: Path) -> None:
        LATE["armed"] = True

    options = {**OPTIONS, **more, "data": rows(), "model": Late(), "output": str(folder)}
    return start_run(make_request(options), Listeners(on_plan=arm, notice=said.append))


def finite(folder: Path) -> bool:
    files = [path for path in folder.rglob("*.safetensors") if "failures" not in path.parts]
    return all(t.isfinite().all() for f in files for t in load_file(f).values())


def test_a_gradient_that_is_not_finite_stops_the_run_and_its_row_is_found(tmp_path: Path) -> None:
    with pytest.raises(surefit.RunFailedError, match="gradient norm became nan") as caught:
        train(tmp_path / "run", [])
    assert f"explain {tmp_path / 'run'}" in caught.value.fix
    assert finite(tmp_path / "run")
    run = open_run(tmp_path / "run")
    about = failed_step(run)
    assert about is not None
    assert BAD in about["rows"]
    assert run.saved_step == about["step"] - 1
    LATE["armed"] = True
    objects = PythonObjects(data=rows(), model=Late())
    found = find_bad_rows(run, about["step"], objects)
    assert found.rows == [BAD]
    assert f"row {BAD} of the training data" in str(found)


def test_a_step_that_is_skipped_is_counted(tmp_path: Path) -> None:
    said: list[str] = []
    run = train(tmp_path / "run", said, on_nonfinite="skip")
    skipped = [event["step"] for event in run.history if event.get("skipped")]
    assert len(skipped) == 2  # once per epoch
    assert "which was skipped (2 so far)" in said[-1]
    assert finite(run.path)
    assert "NaN" not in (run.path / "events.jsonl").read_text()


class Small(MeanPool):
    """A device with room for two rows."""

    def forward(self, inputs_embeds: Any, attention_mask: Any) -> Any:
        if self.training and LATE["armed"] and len(inputs_embeds) > 2:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")
        return super().forward(inputs_embeds, attention_mask)


@pytest.mark.slow
def test_out_of_memory_splits_the_micro_batch_at_the_same_effective_batch(tmp_path: Path) -> None:
    losses = []
    for name, small in (("large", False), ("small", True)):
        said: list[str] = []
        torch.manual_seed(1)
        module: Any = Small()
        LATE["armed"] = False

        def arm(fit: Any, small: bool = small) -> None:
            LATE["armed"] = small

        options = {"data": feature_rows(40), "model": module, "batch_size": 4, "epochs": 1}
        request = make_request({**options, "output": str(tmp_path / name)})
        run = start_run(request, Listeners(on_fit=arm, notice=said.append))
        losses.append([event["loss"] for event in run.history if event["event"] == "step"])
        assert len(said) == small
    assert "split in two" in said[0]
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("whole") / "run"
    surefit.train(data=feature_rows(40), model=Net(), batch_size=8, epochs=3, output=str(folder))
    return folder


def test_a_whole_run_is_verified_and_a_step_computed_again(whole: Path, capsys: Any) -> None:
    run = open_run(whole)
    assert verify_files(run) == []
    assert command(["verify", str(whole), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["ok"] is True
    objects = PythonObjects(data=feature_rows(40), model=Net())
    assert verify_step(run, 12, objects) == []
    events = (whole / "events.jsonl").read_text()
    step = next(line for line in events.split("\n") if '"step": 12,' in line)
    loss = repr(json.loads(step)["loss"])
    try:
        (whole / "events.jsonl").write_text(events.replace(loss, repr(float(loss) + 1e-9)))
        objects = PythonObjects(data=feature_rows(40), model=Net())
        found = verify_step(run, 12, objects)
    finally:
        (whole / "events.jsonl").write_text(events)
    assert [each.code for each in found] == ["SF806"]
    assert loss in found[0].message


@pytest.mark.parametrize(
    ("name", "code"),
    [
        ("config.yaml", "SF804"),
        ("plan.json", "SF804"),
        ("model/model.safetensors", "SF802"),
        ("checkpoints/*/optimizer-*.safetensors", "SF802"),
        ("events.jsonl", "SF802"),
        ("digests.json", "SF802"),
    ],
)
def test_damage_is_named(tmp_path: Path, whole: Path, name: str, code: str) -> None:
    shutil.copytree(whole, tmp_path / "run")
    path = sorted((tmp_path / "run").glob(name))[-1]
    if name == "digests.json":
        path.unlink()
    elif name == "events.jsonl":
        lines = path.read_text().split("\n")
        path.write_text("\n".join(lines[:3] + lines[4:]))
    elif path.suffix == ".safetensors":
        path.write_bytes(path.read_bytes()[:-1] + b"\x7f")
    else:
        path.write_text(path.read_text() + " ")
    found = verify_files(open_run(tmp_path / "run"))
    assert [each.code for each in found] == [code]
    assert path.name in found[0].message + str(found[0].where)
