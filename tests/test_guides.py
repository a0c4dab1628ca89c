"""The files of docs/guides.md: parsed, compared with each other, and run as far as can be here."""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from builders import feature_rows, save_ragged, write_module

ROOT = Path(__file__).resolve().parents[1]
CLUSTER = ROOT / "examples" / "cluster"
TORCHRUN = '#!/bin/sh\nexec "{python}" -m torch.distributed.run "$@"\n'
SRUN = """#!/bin/sh
# Runs the command once per node of the allocation, as srun does with --ntasks-per-node=1.
shift
for node in 1 2; do "$@" > "node-$node.log" 2>&1 & pids="$pids $!"; done
code=0; for pid in $pids; do wait "$pid" || code=$?; done; exit $code
"""


def documents(name: str) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all((CLUSTER / name).read_text()))


def shell_of(name: str) -> str:
    """The commands that a file has a host run."""
    if name == "kubernetes.yaml":
        return str(documents(name)[1]["spec"]["template"]["spec"]["containers"][0]["args"][0])
    if name == "skypilot.yaml":
        return str(documents(name)[0]["run"])
    return (CLUSTER / name).read_text()


SHELLS = ("several-hosts.sh", "slurm.sbatch", "kubernetes.yaml", "skypilot.yaml")


@pytest.mark.parametrize("name", SHELLS)
def test_commands_are_bash_and_options_are_torchruns(name: str) -> None:
    from torch.distributed.run import get_args_parser

    text = shell_of(name)
    subprocess.run(["bash", "-n"], input=text, text=True, check=True)
    command = re.sub(r"\\\n\s*", " ", text)
    found = re.search(r"torchrun (.*)", command)
    assert found is not None
    words = [re.sub(r'"?\$.*', "2", word) for word in found[1].split()]
    known = get_args_parser().parse_args(words)
    assert known.module
    assert known.training_script == "surefit"
    assert known.training_script_args[0] == "train"
    assert known.nnodes == "2"


def test_the_job_of_kubernetes_fits_together() -> None:
    service, job = documents("kubernetes.yaml")
    assert (service["apiVersion"], service["kind"]) == ("v1", "Service")
    assert (job["apiVersion"], job["kind"]) == ("batch/v1", "Job")
    spec, pod = job["spec"], job["spec"]["template"]["spec"]
    assert spec["completionMode"] == "Indexed"
    assert spec["completions"] == spec["parallelism"] == 2
    assert f"--nnodes {spec['completions']}" in shell_of("kubernetes.yaml")
    assert service["spec"]["selector"] == {"job-name": job["metadata"]["name"]}
    first = f"{job['metadata']['name']}-0.{pod['subdomain']}"
    assert pod["subdomain"] == service["metadata"]["name"]
    assert service["spec"]["clusterIP"] == "None"  # headless: pods have names
    assert f"--master-addr {first} " in shell_of("kubernetes.yaml")
    container = pod["containers"][0]
    assert {each["name"] for each in container["volumeMounts"]} == {
        each["name"] for each in pod["volumes"]
    }
    gpus = container["resources"]["limits"]["nvidia.com/gpu"]
    assert f"--nproc-per-node {gpus}" in shell_of("kubernetes.yaml")


def seconds_to_save(name: str, monkeypatch: pytest.MonkeyPatch) -> int | None:
    """How long torchrun waits for its processes after SIGTERM, with the settings of a file."""
    from torch.distributed.launcher.api import LaunchConfig

    found = dict(re.findall(r"^ *export (TORCH_ELASTIC_\w+)=(\S+)", shell_of(name), re.MULTILINE))
    if name == "kubernetes.yaml":
        pod = documents(name)[1]["spec"]["template"]["spec"]
        found |= {each["name"]: each["value"] for each in pod["containers"][0]["env"]}
    for key, value in found.items():
        monkeypatch.setenv(key, value)
    return LaunchConfig(1, 1, 1).shutdown_timeout


@pytest.mark.parametrize("name", SHELLS)
def test_torchrun_waits_as_long_as_the_files_promise(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("TORCH_ELASTIC_SHUTDOWN_TIMEOUT", raising=False)
    promised = 300
    if name == "slurm.sbatch":
        promised = int(re.findall(r"--signal=TERM@(\d+)", shell_of(name))[0])
    if name == "kubernetes.yaml":
        pod = documents(name)[1]["spec"]["template"]["spec"]
        promised = pod["terminationGracePeriodSeconds"]
    assert seconds_to_save(name, monkeypatch) == promised


def test_the_guides_name_every_file() -> None:
    page = (ROOT / "docs" / "guides.md").read_text()
    for path in CLUSTER.iterdir():
        if path.is_file():
            assert f"examples/cluster/{path.name}" in page


def prepare(folder: Path) -> dict[str, str]:
    """A small run.yaml, programs with the names of the cluster's, and the environment for them."""
    save_ragged(folder / "data.npz", feature_rows(40))
    settings = {"data": "data.npz", "model": write_module(folder), "batch_size": 4, "max_steps": 3}
    (folder / "run.yaml").write_text(yaml.safe_dump({**settings, "output": "run"}))
    programs = folder / "bin"
    programs.mkdir()
    node_list = "#!/bin/sh\necho 127.0.0.1\necho 127.0.0.2\n"
    texts = {"torchrun": TORCHRUN.format(python=sys.executable), "srun": SRUN}
    for name, text in {**texts, "scontrol": node_list}.items():
        (programs / name).write_text(text)
        (programs / name).chmod(0o755)
    return {
        **os.environ,
        "PATH": f"{programs}:{os.environ['PATH']}",
        "CUDA_VISIBLE_DEVICES": "",
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": f"{ROOT}:{os.environ.get('PYTHONPATH', '')}",
    }


def losses(folder: Path, run: str = "run") -> list[float]:
    lines = (folder / run / "events.jsonl").read_text().splitlines()
    return [event["loss"] for event in map(json.loads, lines) if event["event"] == "step"]


def free_port() -> str:
    with socket.create_server(("127.0.0.1", 0)) as free:
        return str(free.getsockname()[1])


@pytest.mark.processes
def test_the_slurm_script_trains_on_two_nodes(tmp_path: Path) -> None:
    environment = prepare(tmp_path)
    number = str(int(free_port()) - 20000 + 20000 * 7)
    allocated = {"SLURM_JOB_NODELIST": "n[1-2]", "SLURM_JOB_NUM_NODES": "2", "PROCESSES": "1"}
    done = subprocess.run(
        ["bash", str(CLUSTER / "slurm.sbatch"), "run.yaml"],
        cwd=tmp_path,
        env={**environment, **allocated, "SLURM_JOB_ID": number},
        capture_output=True,
        text=True,
        timeout=300,
    )
    logs = "".join(path.read_text() for path in sorted(tmp_path.glob("node-*.log")))
    assert done.returncode == 0, done.stderr + logs
    assert len(losses(tmp_path)) == 3
    assert logs.count("ready to train") == 1


@pytest.mark.processes
def test_ray_train_gives_the_losses_of_torchrun(tmp_path: Path) -> None:
    pytest.importorskip("ray", reason="needs pip install surefit[ray]")
    environment = prepare(tmp_path)
    environment |= {"RAY_TRAIN_WORKER_GROUP_START_TIMEOUT_S": "240", "RAY_DEDUP_LOGS": "0"}
    environment |= {
        "RAY_AIR_NEW_OUTPUT": "0",
        "HOME": str(tmp_path),
        "RAY_USAGE_STATS_ENABLED": "0",
    }
    shared = {"cwd": tmp_path, "env": environment, "capture_output": True, "text": True}
    settings = (tmp_path / "run.yaml").read_text()
    (tmp_path / "ray.yaml").write_text(settings.replace("output: run", "output: ray-run"))
    script = [sys.executable, str(CLUSTER / "ray_train.py"), "ray.yaml", "2"]
    done = subprocess.run(script, **shared, timeout=400)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    plain = ["torchrun", "--standalone", "--nproc-per-node", "2", "-m", "surefit", "train"]
    done = subprocess.run([*plain, "run.yaml"], **shared, timeout=300)
    assert done.returncode == 0, done.stderr[-3000:]
    assert losses(tmp_path, "ray-run") == pytest.approx(losses(tmp_path), abs=1e-6)
