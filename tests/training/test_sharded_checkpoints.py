"""Models that are divided over processes: saved, killed, resumed in other numbers, gathered."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from safetensors.torch import load_file

from builders import events_of, run_python, write_jsonl
from surefit.api import load
from surefit.run.run_folder import open_run
from surefit.training.replay import verify_step

pytestmark = pytest.mark.processes

SCRIPT = Path(__file__).with_name("sharded_checkpoints_script.py")


def test_weights_and_optimizer_state_are_the_same_bits_in_any_number_of_processes(
    tmp_path: Path,
) -> None:
    code, out, said = run_python(tmp_path, str(SCRIPT), str(tmp_path))
    assert code == 0, said[-3000:]
    saved, *parts = out.split("== ")
    lines = [line.split() for line in saved.splitlines()]
    assert [words[1] for words in lines] == ["2", "4", "1", "2", "3", "1"]
    for _, count, *names in lines:
        shards = [f"-{n + 1:05d}-of-{int(count):05d}.safetensors" for n in range(int(count))]
        expected = [f"{kind}{shard}" for kind in ("model", "optimizer") for shard in shards]
        assert names == sorted([*expected, "digests.json", "index.json", "state.json"])
    _judge_kills({part.splitlines()[0]: part.splitlines()[1:] for part in parts})


def _judge_kills(parts: dict[str, list[str]]) -> None:
    """Kills and damage leave the last whole checkpoint."""
    assert len(parts) == 7
    for name, lines in parts.items():
        found = dict(line.split(" ", 1) for line in lines if not line.startswith("failed"))
        assert found["resumes"] == "from step-00000001", name
        is_damaged = name.startswith("damaged")
        assert found["left"].endswith("step-00000002") == is_damaged, name
    assert parts["killed_in_save 0"][0] == "codes -9 1"
    assert parts["killed_in_save 1"][0] == "codes 1 -9"
    assert parts["left_alone 1"][0] == "codes 0 0"
    assert parts["killed_in_gather 1"][0] == "codes 1 -9"
    assert sum("embed.weight. They are not saved." in line for line in parts["not_finite 1"]) == 2
    assert sum("No space left on device" in line for line in parts["full_disk 1"]) == 2
    assert sum("step-00000002 is damaged" in line for line in parts["damaged 1"]) == 2


KILLED = """
import os, signal, sys
import torch
from surefit.cli import main

step = torch.optim.AdamW.step

def killed(*given, **more):
    if os.environ["RANK"] == "1" and os.path.isdir(sys.argv[1]):
        os.kill(os.getpid(), signal.SIGKILL)
    return step(*given, **more)

torch.optim.AdamW.step = killed
main(sys.argv[2:])
"""


def _train(folder: Path, *options: str, kill_at: int = 0) -> int:
    """Train with two processes that divide the model; the second dies when a step is saved."""
    command = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    if kill_at:
        script = folder.with_name("killed.py")
        script.write_text(KILLED)
        command += [str(script), str(folder / "checkpoints" / f"step-{kill_at:08d}")]
    else:
        command += ["-m", "surefit"]
    cache = str(folder.parent / "cache")
    code, _, said = run_python(folder.parent, *command, "train", *options, SUREFIT_CACHE=cache)
    assert kill_at or code == 0, said[-3000:]
    return code


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same run twice: `whole`, and `killed` with kill -9 and resumed."""
    folder = tmp_path_factory.mktemp("runs")
    rows = [{"text": f"{n} and {n + 1} " + "x " * (n % 5)} for n in range(40)]
    data = write_jsonl(folder / "rows.jsonl", rows)
    settings = ["--data", str(data), "--model", "tiny:llama", "--batch-size", "2"]
    settings += ["--grad-accum", "2", "--max-steps", "16", "--set", "parallel=fsdp"]
    settings += ["--set", "save_every=2", "--set", "keep=20"]
    _train(folder / "whole", *settings, "--output", str(folder / "whole"))
    assert _train(folder / "killed", *settings, "--output", str(folder / "killed"), kill_at=4)
    _train(folder / "killed", "--resume", str(folder / "killed"))
    return folder


def test_a_killed_and_resumed_run_equals_an_uninterrupted_one_to_the_bit(runs: Path) -> None:
    assert events_of(runs / "killed") == events_of(runs / "whole")
    one, two = (
        load_file(runs / name / "model" / "model.safetensors") for name in ("whole", "killed")
    )
    assert one.keys() == two.keys()
    assert all(one[name].equal(two[name]) for name in one)


def test_the_gathered_model_loads_in_plain_transformers(runs: Path) -> None:
    from transformers import AutoModelForCausalLM

    plain = AutoModelForCausalLM.from_pretrained(runs / "whole" / "model")
    assert type(plain).__name__ == "LlamaForCausalLM"
    own = load(runs / "whole").state_dict()
    assert all(own[name].equal(value) for name, value in plain.state_dict().items())


def test_a_step_of_two_processes_is_verified_by_one(runs: Path) -> None:
    found = verify_step(open_run(runs / "whole"), 6)
    assert ["not its loss" in each.message for each in found] == [True]
    events = runs / "whole" / "events.jsonl"
    text = events.read_text(encoding="utf-8")
    step = next(line for line in text.splitlines() if '"step": 6,' in line)
    edited = json.loads(step)
    edited["tokens"] += 1
    try:
        events.write_text(text.replace(step, json.dumps(edited)), encoding="utf-8")
        found = verify_step(open_run(runs / "whole"), 6)
    finally:
        events.write_text(text, encoding="utf-8")
    assert [each.code for each in found] == ["SF806"]
