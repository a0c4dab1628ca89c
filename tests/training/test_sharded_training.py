"""Several processes, data parallel or with a divided model, have the losses of one."""

from __future__ import annotations

import json
import math
import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from same_curves import TASKS, largest_difference, run_bounded, train_curves, write_data
from torch import nn
from training import sharded_cases
from transformers import LlamaConfig, LlamaForCausalLM

from surefit.errors import FindingError
from surefit.inputs.tokenizer import train_tokenizer
from surefit.models.sharding import find_units
from surefit.pipeline.open_pipeline import Parallel
from surefit.plan.choose_parallel import check_divisible, find_use
from surefit.plan.make_plan import make_plan
from surefit.request import make_request

TIME_LIMIT = 400
"""Seconds after which processes that wait for each other are killed."""
LAUNCH = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("curves")
    write_data(made)
    return made


@pytest.fixture(scope="module")
def alone(folder: Path) -> dict[str, list[float]]:
    return train_curves(folder, 1, "fsdp", TASKS, TIME_LIMIT)


@pytest.mark.processes
@pytest.mark.parametrize("parallel", ["ddp", "fsdp"])
def test_processes_have_the_losses_of_one(
    folder: Path, alone: dict[str, list[float]], parallel: str
) -> None:
    found = train_curves(folder, 2, parallel, TASKS, TIME_LIMIT)
    for name in TASKS:
        assert len(found[name]) == 9  # seven steps, two evaluations
        assert largest_difference(alone[name], found[name]) < 1e-5, name


def run_cases(folder: Path, processes: int, parallel: str, *names: str) -> dict[str, Any]:
    made = folder / "-".join(("cases", parallel, str(processes), *names))
    made.mkdir()
    script = [sharded_cases.__file__, str(made), str(processes), parallel, *names]
    launch = [*LAUNCH, str(processes)] if processes > 1 else []
    run_bounded([sys.executable, *launch, *script], TIME_LIMIT)
    found: dict[str, Any] = json.loads((made / "found.json").read_text())
    return found


@pytest.mark.processes
def test_modules_that_are_hard_to_shard(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(sys.path))
    vocabulary = write_llama(folder)
    names = ["chosen", "shared", "weighted", "live", "skipping", "by_shares"]
    one = run_cases(folder, 1, "ddp", *names)
    two = run_cases(folder, 2, "fsdp", "counting", *names, "drawn")
    for name in names:
        assert largest_difference(one[name]["losses"], two[name]["losses"]) < 1e-5, name
    copies = run_cases(folder, 2, "ddp", "weighted")["weighted"]  # a count of all processes
    assert largest_difference(one["weighted"]["losses"], copies["losses"]) < 1e-5
    assert one["skipping"]["skipped"] == two["skipping"]["skipped"] == 1
    assert two["chosen"]["choice"] == {"unused": True, "whole": True}
    assert two["shared"]["choice"]["whole"]
    assert not two["counting"]["choice"]["whole"]
    first, second = two["counting"]["buffers"]
    assert first == second  # each process has seen other rows
    # Both processes skip the step that overflows in one of them, and lower the scale.
    assert two["overflow"] == [[[4.0, False], [4.0, True]]] * 2
    assert abs(two["drawn"]["losses"][0] - math.log(vocabulary)) < 0.3
    assert "its shard when training starts" not in one["by_shares"]["notes"]
    shared = (two["by_shares"], two["drawn"])
    assert all("its shard when training starts" in case["notes"] for case in shared)


def write_llama(folder: Path) -> int:
    """Write a small Llama; its number of tokens."""
    tokenizer = train_tokenizer((folder / "texts.jsonl").read_text().splitlines(), 300)
    sizes = {"hidden_size": 16, "intermediate_size": 24, "num_attention_heads": 2}
    config = LlamaConfig(vocab_size=len(tokenizer), num_hidden_layers=2, **sizes)
    LlamaForCausalLM(config).save_pretrained(folder / "llama")
    tokenizer.save_pretrained(folder / "llama")
    return len(tokenizer)


def blocks_of(module: nn.Module) -> dict[str, nn.Module]:
    names = {id(part): name for name, part in module.named_modules()}
    return {names[id(unit)]: unit for unit in find_units(module)}


def test_units_are_the_blocks_that_own_their_parameters() -> None:
    assert [*blocks_of(sharded_cases.Chosen())] == ["experts.0", "experts.1", "experts.2"]
    assert [*blocks_of(sharded_cases.Shared())] == ["outer.0", "outer.1"]  # not those that share
    assert blocks_of(nn.Sequential(nn.Linear(4, 4), nn.ReLU(inplace=True))) == {}


def use_of(module: nn.Module, lengths: list[int]) -> Any:
    def loss(length: int) -> Any:
        rows, mask = torch.ones(2, length, 4), torch.ones(2, length)
        return module(rows, mask).sum()

    return find_use(module, blocks_of(module), lengths, loss)


def test_what_differs_from_batch_to_batch_is_found() -> None:
    chosen = sharded_cases.Chosen()
    same = use_of(chosen, [2, 2])  # 4 tokens each: always the first expert
    assert not same.uneven
    assert all(name.startswith(("experts.1", "experts.2")) for name in same.unused)
    module = nn.Module()
    module.blocks = nn.ModuleList(nn.Sequential(nn.Linear(4, 4)) for _ in range(2))
    module.forward = lambda rows, mask: module.blocks[: int(rows.shape[1])][-1](rows)
    assert use_of(module, [1, 2]).uneven
    assert all(weight.grad is None for weight in module.parameters())


@pytest.mark.parametrize(
    ("parameter", "expected"),
    [
        (torch.tensor(1.0), "scale is of shape ()"),
        (torch.ones(3, dtype=torch.float64), "scale is not torch.float32"),
        (torch.ones(3, dtype=torch.complex64), "scale is torch.complex64"),
    ],
)
def test_a_model_that_cannot_be_divided_is_refused(parameter: Any, expected: str) -> None:
    module = nn.Linear(2, 2)
    check_divisible(module)
    module.scale = nn.Parameter(parameter)
    with pytest.raises(FindingError) as raised:
        check_divisible(module)
    assert raised.value.findings[0].code == "SF440"
    assert expected in raised.value.findings[0].message
    uncopied = nn.Sequential(nn.utils.weight_norm(nn.Linear(2, 2)))
    uncopied(torch.ones(1, 2))  # its weight is now computed from others
    with pytest.raises(FindingError):
        check_divisible(uncopied)
    check_divisible(nn.Sequential(nn.utils.parametrizations.weight_norm(nn.Linear(2, 2))))


def test_a_plan_of_a_divided_model(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)

    def check_two(**asked: Any) -> Any:
        shared = {"data": "series.npz", "batch_size": 2, "parallel": "fsdp"}
        return make_plan(replace(make_request(shared | asked), processes=2))

    plan = check_two(model=sharded_cases.Chosen(), compile="on")  # compiled layers stay whole
    assert "SF440" in [found.code for found in plan.findings]
    assert not plan.ok
    plan = check_two(model=sharded_cases.Shared())
    assert any("gathered as a whole" in note for note in plan.notes)
    assert plan.choices.parallel == Parallel(unused=True, whole=True)
    assert not plan.choices.compile.compiled
