"""Predicted and measured peak memory of one of several processes, with DDP and with FSDP.

    python bench/fit_processes.py [--grid fitted|judged]... [--results FILE] [--page docs/fit.md]

Each case forks its processes from one that has done the imports. They train a few steps together
over gloo, and each measures the growth of its resident set size (without mapped files), as
`bench/fit_grid.py` does; the largest of them counts. What gloo needs beyond torch's tensors is
fitted to the first grid and judged on the second one, which has other models, sizes and numbers of
processes. Measurements are saved case by case in FILE, so that an interrupted run resumes;
predictions are computed each time.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import json
import os
import statistics
import sys
import tempfile
import traceback
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from fit_models import EncoderClassifier, build

from surefit.memory.held_memory import Sharing
from surefit.memory.limit import Limit
from surefit.memory.predict_peak import PROCESS_BYTES, allocator_bytes
from surefit.memory.process_memory import anonymous_bytes, peak_bytes, reset_peak
from surefit.memory.trace_step import trace_training
from surefit.models.meta_copy import meta_copy
from surefit.models.shard_module import shard_module

ROOT = Path(__file__).resolve().parents[1]
STEPS = 3
NAMES = ("arch", "lora", "length", "rows", "ckpt", "parallel", "processes", "accum")
FITTED = [
    ("llama", False, 128, 4, False, "ddp", 2, 1),
    ("llama", False, 128, 4, False, "ddp", 2, 2),
    ("llama", False, 128, 4, False, "fsdp", 2, 1),
    ("llama", False, 128, 4, False, "fsdp", 2, 2),
    ("llama", False, 128, 4, True, "fsdp", 2, 1),
    ("llama", False, 128, 4, False, "fsdp", 4, 1),
    ("llama", True, 256, 4, False, "ddp", 2, 1),
    ("llama", True, 256, 4, False, "fsdp", 2, 1),
    ("bert", False, 128, 8, False, "ddp", 2, 1),
    ("bert", False, 128, 8, False, "fsdp", 2, 1),
    ("bert", False, 128, 8, False, "fsdp", 4, 2),
    ("bert", True, 128, 8, True, "fsdp", 2, 1),
]
JUDGED = [
    ("gpt2", False, 128, 4, False, "ddp", 2, 1),
    ("gpt2", False, 128, 4, False, "ddp", 4, 2),
    ("gpt2", False, 128, 4, False, "fsdp", 2, 1),
    ("gpt2", False, 128, 4, True, "fsdp", 4, 1),
    ("gpt2", False, 64, 4, False, "fsdp", 4, 2),
    ("gpt2", True, 256, 4, False, "fsdp", 2, 2),
    ("qwen3", False, 192, 3, False, "ddp", 4, 1),
    ("qwen3", False, 192, 3, False, "fsdp", 4, 1),
    ("qwen3", True, 192, 4, True, "fsdp", 4, 1),
    ("llama, wide", False, 256, 2, False, "fsdp", 2, 1),
    ("llama, wide", True, 256, 4, True, "ddp", 4, 1),
    ("roberta", True, 160, 6, False, "ddp", 2, 2),
    ("roberta", False, 160, 6, False, "fsdp", 4, 1),
    ("own module", False, 128, 8, False, "ddp", 2, 1),
    ("own module", False, 128, 8, False, "fsdp", 2, 1),
    ("own module", False, 128, 8, False, "fsdp", 4, 2),
]
GRIDS = {
    name: [dict(zip(NAMES, case, strict=True)) for case in grid]
    for name, grid in (("fitted", FITTED), ("judged", JUDGED))
}


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--grid", action="append", choices=[*GRIDS], help="measure")
    arguments.add_argument("--results", type=Path, default=ROOT / "bench/fit_processes.jsonl")
    arguments.add_argument("--page", type=Path, help="the page whose table is written")
    given = arguments.parse_args()
    import peft  # noqa: F401 - before forking
    import transformers

    transformers.logging.set_verbosity_error()
    known = _read(given.results)
    for grid in given.grid or GRIDS:
        for case in GRIDS[grid]:
            if _key(case) in known:
                continue
            print(f"{grid}: {case}", file=sys.stderr, flush=True)
            peaks = in_processes(case["processes"], partial(measure, case))
            known[_key(case)] = peaks
            with given.results.open("a") as file:
                file.write(json.dumps({**case, "resident": peaks}) + "\n")
    results = [
        (grid, {**case, "resident": max(known[_key(case)]), **predict(case)})
        for grid in GRIDS
        for case in GRIDS[grid]
        if _key(case) in known
    ]
    table = report(results)
    print(table)
    if given.page is not None:
        write_between(given.page, "bench/fit_processes.py", table)


def build_case(case: dict[str, Any]) -> tuple[Any, Any, Any, Any]:
    """The model of a case, its Call, its loss and a batch."""
    if case["arch"] == "own module":
        return build(case, EncoderClassifier(320, 6), "features", classifies=True)
    return build(case)


def predict(case: dict[str, Any]) -> dict[str, Any]:
    """Predicted peak of one process, without what a process needs by itself."""
    model, call, loss, batch = build_case(case)
    sharing = Sharing(case["processes"], case["parallel"])
    traced = trace_training(
        *meta_copy(model, call), loss, batch, accumulates=case["accum"] > 1, sharing=sharing
    )
    return {
        "predicted": traced.peak + allocator_bytes(traced, Limit(0, "")),
        "live": traced.peak,
        "gathers": traced.gathers,
    }


def measure(case: dict[str, Any]) -> int:
    """Growth of this process's memory in a few steps."""
    small = {**case, "rows": 1}
    train(small, 1)  # what is loaded on first use
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    before = anonymous_bytes()
    return train(case, STEPS) - before


def train(case: dict[str, Any], num_steps: int) -> int:
    """Train a few steps as the training loop does; returns the peak memory."""
    model, call, loss, batch = build_case(case)
    model.train()
    if case["parallel"] == "fsdp":
        mesh = dist.init_device_mesh("cpu", (dist.get_world_size(),))
        model = shard_module(model, mesh)
    else:
        model = torch.nn.parallel.DistributedDataParallel(
            model, find_unused_parameters=True, gradient_as_bucket_view=True
        )
    trained = [weight for weight in model.parameters() if weight.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=1e-4, fused=True)
    gc.collect()
    reset_peak()
    for _ in range(num_steps):
        for number in range(case["accum"]):
            is_last = number == case["accum"] - 1
            with _without_sync(model, is_last):
                total, count = loss(call(model, batch), batch)
                (total / count).backward()
        torch.nn.utils.clip_grad_norm_(trained, 1.0)
        optimizer.step()
        for weight in trained:
            weight.grad = None
    return peak_bytes()


def _without_sync(model: Any, is_last: bool) -> Any:
    if isinstance(model, torch.nn.parallel.DistributedDataParallel):
        return nullcontext() if is_last else model.no_sync()
    model.set_requires_gradient_sync(is_last)
    return nullcontext()


def in_processes(count: int, work: Callable[[], int]) -> list[int]:
    """The results of `work` in so many forked processes that form a gloo group."""
    with tempfile.TemporaryDirectory() as folder:
        children = [_fork(rank, count, folder, work) for rank in range(count)]
        answers = []
        for child, reading in children:
            with os.fdopen(reading, "rb") as pipe:
                answers.append(pipe.read())
            os.waitpid(child, 0)
    if not all(answers):
        raise SystemExit("a process of the case failed")
    return [int(answer) for answer in answers]


def _fork(rank: int, count: int, folder: str, work: Callable[[], int]) -> tuple[int, int]:
    reading, writing = os.pipe()
    child = os.fork()
    if child:
        os.close(writing)
        return child, reading
    try:
        torch.set_num_threads(1)
        store = dist.FileStore(f"{folder}/store", count)
        dist.init_process_group("gloo", store=store, rank=rank, world_size=count)
        os.write(writing, str(work()).encode())
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(0)


def report(results: list[tuple[str, dict[str, Any]]]) -> str:
    """The tables of the page."""
    lines = [
        f"{len(results)} cases with gloo on {os.cpu_count()} cores, torch {torch.__version__}; MB "
        "of the process that needs the most, with its "
        f"{PROCESS_BYTES / 1e6:.0f} MB of imports; error is predicted / measured − 1.",
        "",
        "| | cases | median error | most under | most over |",
        "| --- | --- | --- | --- | --- |",
    ]
    for grid in GRIDS:
        for parallel in ("ddp", "fsdp"):
            cases = [c for name, c in results if name == grid and c["parallel"] == parallel]
            errors = [_error(case) for case in cases]
            if errors:
                middle = statistics.median(map(abs, errors))
                lines.append(
                    f"| {grid}, {parallel} | {len(errors)} | {middle:.1%} "
                    f"| {min(errors):+.1%} | {max(errors):+.1%} |"
                )
    lines += [
        "",
        "| grid | model | LoRA | length | rows | checkpointing | parallel | processes "
        "| grad_accum | gathers | predicted | measured | error |",
        f"|{' --- |' * 13}",
    ]
    lines += [_line(grid, case) for grid, case in results]
    return "\n".join(lines)


def _error(case: dict[str, Any]) -> float:
    return float((case["predicted"] + PROCESS_BYTES) / (case["resident"] + PROCESS_BYTES) - 1)


def _line(grid: str, case: dict[str, Any]) -> str:
    shown = [
        grid,
        case["arch"],
        "yes" if case["lora"] else "no",
        case["length"],
        case["rows"],
        "on" if case["ckpt"] else "off",
        case["parallel"],
        case["processes"],
        case["accum"],
        f"{case['gathers'] / 1e6:.0f}",
        f"{(case['predicted'] + PROCESS_BYTES) / 1e6:.0f}",
        f"{(case['resident'] + PROCESS_BYTES) / 1e6:.0f}",
        f"{_error(case):+.1%}",
    ]
    return "| " + " | ".join(map(str, shown)) + " |"


def write_between(page: Path, source: str, table: str) -> None:
    """Replace what the page has between the marks of a script."""
    begin, end = f"<!-- from {source} -->", f"<!-- end of {source} -->"
    head, _, rest = page.read_text().partition(begin)
    tail = rest.partition(end)[2]
    page.write_text(f"{head}{begin}\n{table}\n{end}{tail}")


def _key(case: dict[str, Any]) -> str:
    return json.dumps({name: case[name] for name in NAMES})


def _read(path: Path) -> dict[str, list[int]]:
    lines = path.read_text().splitlines() if path.exists() else []
    found = map(json.loads, lines)
    return {_key(case): case["resident"] for case in found}


if __name__ == "__main__":
    main()
