"""Processes start together, agree, notice each other's end, and go on in another number."""

from __future__ import annotations

import json
import re
import socket
from pathlib import Path
from typing import Any

import pytest

import surefit
from builders import (
    MeanPool,
    echo_rows,
    events_of,
    feature_rows,
    run_python,
    save_ragged,
    start_python,
    write_jsonl,
    write_module,
)
from surefit.checks.machine import check_launcher
from surefit.cli import run
from surefit.errors import UsageError
from surefit.request import make_request
from surefit.training.resume import resume_run, spread_steps
from surefit.training.work import Listeners


@pytest.mark.processes
def test_a_run_resumes_in_another_number_of_processes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    save_ragged(tmp_path / "data.npz", feature_rows(60))
    save_ragged(tmp_path / "few.npz", feature_rows(1, seed=1))  # leaves processes idle
    start = ["--data", "data.npz", "--eval-data", "few.npz", "--model", write_module(tmp_path)]
    start += ["--batch-size", "2", "--max-steps", "4"]
    for output, counts in {"alone": (1, 1, 1), "several": (2, 4, 1)}.items():
        accumulate = str(4 // counts[0])
        stages = [[*start, "--grad-accum", accumulate, "--output", output]]
        stages += [["--resume", output, "--max-steps", steps] for steps in ("8", "12")]
        for count, arguments in zip(counts, stages, strict=True):
            if count == 1:
                assert run(["train", *arguments, "--trust-code", "net:make"]) == 0
                continue
            code, _, said = run_python(tmp_path, *TRAIN, *arguments, "--processes", str(count))
            assert code == 0, said[-3000:]
            assert said.count("ready to train") == 1  # one process speaks
    alone, several = (events_of(tmp_path / name) for name in ("alone", "several"))
    assert len(alone) == len(several) > 12
    for one, other in zip(alone, several, strict=True):
        assert one["event"] == other["event"]
        if one["event"] == "step":
            assert one["tokens"] == other["tokens"]
            assert other["loss"] == pytest.approx(one["loss"], abs=1e-5)
        if one["event"] == "eval":
            assert other["metrics"]["loss"] == pytest.approx(one["metrics"]["loss"], abs=1e-5)
            assert other["metrics"]["confusion"] == one["metrics"]["confusion"]


TRAIN = ("-m", "surefit", "train")


def by_hand(folder: Path, *arguments: list[str]) -> list[tuple[int, str]]:
    """A process for each list of arguments, as if each were on a host of its own."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = str(free.getsockname()[1])
    shared = {"WORLD_SIZE": str(len(arguments)), "LOCAL_WORLD_SIZE": "1", "LOCAL_RANK": "0"}
    shared |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    started = [
        start_python(folder, *TRAIN, *own, **shared, RANK=str(rank))
        for rank, own in enumerate(arguments)
    ]
    said = [child.communicate(timeout=200)[1] for child in started]
    return [(child.returncode, text) for child, text in zip(started, said, strict=True)]


@pytest.mark.processes
def test_hosts_with_other_data_do_not_train(tmp_path: Path) -> None:
    save_ragged(tmp_path / "data.npz", feature_rows(40))
    save_ragged(tmp_path / "other.npz", feature_rows(40, seed=1))
    shared = ["--model", write_module(tmp_path), "--max-steps", "2", "--output", "run"]
    (code, said), (other_code, other_said) = by_hand(
        tmp_path, ["--data", "data.npz", *shared], ["--data", "other.npz", *shared]
    )
    assert (code, other_code) == (2, 2)
    assert re.search("Process 1 of host .* has other data than process 0", said)
    assert "error" not in other_said  # the first process speaks
    assert not (tmp_path / "run").exists()


MPIRUN = {"ACCELERATE_USE_CPU": "True", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"}


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({"ACCELERATE_USE_DEEPSPEED": "1"}, "DeepSpeed"),
        ({"ACCELERATE_USE_FSDP": "true"}, "--set parallel=fsdp"),
        ({"ACCELERATE_USE_SOMETHING_NEW": "yes"}, "USE_SOMETHING_NEW"),
        ({"ACCELERATE_MIXED_PRECISION": "bf16"}, "--set precision=bf16"),
        ({"ACCELERATE_GRADIENT_ACCUMULATION_STEPS": "4"}, "--grad-accum 4"),
        ({"ACCELERATE_DYNAMO_BACKEND": "INDUCTOR"}, "--set compile=on"),
        (MPIRUN, "several processes on CPUs"),  # which would each train alone
    ],
)
def test_what_accelerate_was_asked_for_and_would_not_happen(
    variables: dict[str, str], expected: str
) -> None:
    with pytest.raises(UsageError) as raised:
        check_launcher("fp32", variables)
    assert expected in f"{raised.value.message} {raised.value.fix}"


def test_what_accelerate_launch_always_says_is_no_fault() -> None:
    said = {"MIXED_PRECISION": "no", "DYNAMO_BACKEND": "NO", "USE_CPU": "true"}
    said |= {"USE_FSDP": "false", "DYNAMO_USE_DYNAMIC": "False", "CPU_AFFINITY": "False"}
    check_launcher("fp32", {f"ACCELERATE_{name}": value for name, value in said.items()})
    check_launcher("bf16", {"ACCELERATE_MIXED_PRECISION": "bf16"})
    check_launcher("fp32", {**MPIRUN, "WORLD_SIZE": "2", "RANK": "0"})
    check_launcher("fp32", {"MASTER_ADDR": "127.0.0.1"})


def test_micro_batches_are_spread_evenly_or_not_at_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from surefit.config import make_config
    from surefit.run.run_folder import Run

    (tmp_path / "plan.json").write_text(
        '{"model": {}, "task": "sft", "steps": 1, "run_format": 2, "num_processes": 2}'
    )
    config, run = make_config({"grad_accum": 3}), Run(tmp_path)
    monkeypatch.setenv("WORLD_SIZE", "1")
    assert spread_steps(run, config).grad_accum == 6
    monkeypatch.setenv("WORLD_SIZE", "4")
    with pytest.raises(UsageError) as raised:
        spread_steps(run, config)
    assert raised.value.fix == "Launch it with 1 or 2 or 3 or 6 processes."


@pytest.mark.processes
def test_an_error_that_all_processes_have_is_printed_once(tmp_path: Path) -> None:
    save_ragged(tmp_path / "data.npz", feature_rows(40))
    asked = ["--data", "data.npz", "--model", write_module(tmp_path), "--set", "scan=5"]
    code, _, said = run_python(tmp_path, *TRAIN, *asked, "--processes", "2")
    assert code == 2
    assert said.count("scan=5 is for check") == 1, said
    assert said.count("fix:") == 1


def test_resuming_a_divided_run_in_one_process_is_no_fault(tmp_path: Path) -> None:
    objects = {"data": feature_rows(40), "model": MeanPool()}
    asked = {"parallel": "fsdp", "max_steps": 2, "output": str(tmp_path / "run")}
    path = surefit.train(**objects, **asked).path
    plans: list[Any] = []
    listeners = Listeners(on_plan=lambda plan, folder: plans.append(plan))
    for named in ({"max_steps": 3}, {"max_steps": 4, "parallel": "fsdp"}):
        resume_run(path, make_request({**objects, **named}), {*objects, *named}, listeners)
    found = [{each.code for each in plan.findings} for plan in plans]
    assert ["SF446" in codes for codes in found] == [False, True]


LAUNCH = ("-m", "accelerate.commands.launch", "--multi_gpu", "--num_processes", "2")
LAUNCH += ("--num_machines", "1", "--mixed_precision", "no", "--dynamo_backend", "no")
LAUNCH += ("--main_process_port", "0")  # one that is free


@pytest.mark.slow
def test_two_processes_add_the_auxiliary_loss_of_their_micro_batches(tmp_path: Path) -> None:
    rows = write_jsonl(tmp_path / "rows.jsonl", echo_rows(40))
    surefit.train(data=str(rows), model="tiny:mixtral", max_steps=1, output=tmp_path / "made")
    config = tmp_path / "made" / "model" / "config.json"
    settings = {**json.loads(config.read_text()), "output_router_logits": True}
    config.write_text(json.dumps(settings))
    shared = ["--data", "rows.jsonl", "--model", str(config.parent), "--batch-size", "4"]
    shared += ["--max-steps", "3", "--set", "generate.rows=0", "--set", "eval_share=0"]
    for output, launch, more in (("alone", (), ["--grad-accum", "2"]), ("both", LAUNCH, [])):
        command = (*launch, *TRAIN, *shared, *more, "--output", output)
        code, _, said = run_python(tmp_path, *command)
        assert code == 0, said[-3000:]
    both = (events_of(tmp_path / name) for name in ("alone", "both"))
    for one, two in zip(*both, strict=True):
        assert one["aux_loss"] > 0
        assert two["loss"] == pytest.approx(one["loss"], abs=1e-4)
        # The micro-batches of the processes are those that one process accumulates.
        assert two["aux_loss"] == pytest.approx(one["aux_loss"], rel=1e-3)
