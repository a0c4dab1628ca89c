"""A failing step says why, exits 1 without a traceback, and leaves a bundle that repeats it."""

from __future__ import annotations

import io
import json
import re
import sys
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

import surefit
from builders import MeanPool, feature_rows, save_ragged
from surefit.cli import run

ROOT = Path(__file__).resolve().parents[2]
SOURCE = """
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self, num_classes):
        super().__init__()
        self.body = nn.Linear(4, 32)
        self.head = nn.Linear(32, num_classes)

    def forward(self, inputs_embeds, attention_mask):
        hidden = torch.tanh(self.body(inputs_embeds))
        if {condition}:
            hidden = hidden[..., :31]
        return self.head(hidden.mean(1))


def make(num_classes):
    return Net(num_classes)
"""


def write_net(folder: Path, name: str, condition: str) -> None:
    """A module of the user's; one imported before is forgotten."""
    (folder / f"{name}.py").write_text(SOURCE.format(condition=condition), encoding="utf-8")
    sys.modules.pop(name, None)


def command(*arguments: str) -> tuple[int, str]:
    """Exit code and stderr of a command; nothing may be on stdout where it fails."""
    out, err = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(err):
        code = run(list(arguments))
    assert code == 0 or out.getvalue() == ""
    return code, err.getvalue()


def train_command(folder: Path, name: str) -> tuple[int, str]:
    save_ragged(folder / "rows.npz", feature_rows(60))
    options = ["--data", str(folder / "rows.npz"), "--model", f"{name}:make", "--epochs", "1"]
    return command("train", *options, "--output", str(folder / "run"))


def bundle_of(run: Path) -> Path:
    (folder,) = (run / "failures").iterdir()
    return folder


def test_the_command_says_the_cause_and_the_bundle_holds_the_batch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write_net(tmp_path, "failing_net", "self.training and inputs_embeds.shape[1] >= 7")
    code, said = train_command(tmp_path, "failing_net")
    sys.modules.pop("failing_net")
    assert code == 1, said
    bundle = bundle_of(tmp_path / "run")
    step = int(bundle.name.removeprefix("step-"))
    assert "Traceback" not in said
    assert f"Training failed at step {step}: RuntimeError: mat1 and mat2 shapes" in said
    assert "SF610" in said
    assert re.search(r"batch: .*inputs_embeds \[\d, [78], 4\] float32", said)
    assert f"bundle: {bundle} " in said
    assert "fix: " in said
    about = json.loads((bundle / "failure.json").read_text("utf-8"))
    assert (about["seed"], about["stage"]) == (0, "training")
    assert about["versions"]["torch"] == str(torch.__version__)
    assert about["explanation"]["code"] == "SF610"
    batch = load_file(bundle / "batch.safetensors")
    assert set(batch) == {"inputs_embeds", "attention_mask", "labels"}
    assert batch["inputs_embeds"].shape[1] >= 7
    assert about["batch"]["labels"] == f"labels {list(batch['labels'].shape)} int64"
    assert "mat1 and mat2" in (bundle / "traceback.txt").read_text("utf-8")


class Fails(MeanPool):
    """Works in the probe, and goes wrong once training has begun."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.how = how
        self.began = False

    def forward(self, inputs_embeds: torch.Tensor, attention_mask: torch.Tensor) -> Any:
        self.began = self.began or self.training
        if self.how == "training" and self.training:
            raise KeyError("no such thing")
        if self.how == "evaluation" and self.began and not self.training:
            nn.functional.cross_entropy(torch.zeros(2, 3), torch.tensor([0, 7]))
        logits = super().forward(inputs_embeds, attention_mask)
        return logits * float("nan") if self.how == "nan" and self.training else logits


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ("training", ("step 1: KeyError", "cause: not known")),
        ("evaluation", ("Evaluation failed after step 5: IndexError: Target 7", "SF621")),
        ("nan", ("The loss became nan at step 1.",)),
    ],
)
def test_each_failure_is_named_and_leaves_a_bundle(
    how: str, said: tuple[str, ...], tmp_path: Path
) -> None:
    options = {"data": feature_rows(40), "epochs": 1, "output": str(tmp_path / "run")}
    options |= {"accept": ["SF863"]}  # the rehearsal would refuse the run
    with pytest.raises(surefit.RunFailedError) as caught:
        surefit.train(model=Fails(how), **options)
    assert all(each in caught.value.message for each in said), caught.value.message
    assert isinstance(caught.value.__cause__, KeyError) == (how == "training")
    bundle = bundle_of(tmp_path / "run")
    assert load_file(bundle / "batch.safetensors")
    about = json.loads((bundle / "failure.json").read_text("utf-8"))
    assert (about["stage"] == "evaluation") == (how == "evaluation")


def test_a_callback_that_fails_is_the_users_own(tmp_path: Path) -> None:
    def complain(event: Any) -> None:
        raise LookupError("from the callback")

    options = {"data": feature_rows(40), "epochs": 1, "callbacks": [complain]}
    with pytest.raises(LookupError, match="from the callback"):
        surefit.train(model=MeanPool(), output=str(tmp_path / "run"), **options)
    assert not (tmp_path / "run" / "failures").exists()


def test_other_commands_explain_what_nobody_expected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write_net(tmp_path, "broken_net", "False")
    assert train_command(tmp_path, "broken_net")[0] == 0
    write_net(tmp_path, "broken_net", "True")
    options = ["--data", str(tmp_path / "rows.npz"), "--trust-code", "broken_net:make"]
    code, said = command("predict", str(tmp_path / "run"), *options)
    sys.modules.pop("broken_net", None)
    assert code == 1
    assert "cause: SF610" in said
    assert "internal error" not in said
