"""Predicted and measured peak memory over two grids of models; predicted and measured run time.

    python bench/fit_grid.py [--grid fitted|judged|times]... [--seed N] [--results FILE]
                             [--page docs/fit.md]

The share of the heap's holes is fitted to the first grid, and judged on the second one, which has
other families and sizes. `bench/fit_models.py` draws it by a seed, so that anyone can draw another
one. Each case runs in a process of its own, forked from one that has done the imports; the growth
of its resident set size (VmHWM without mapped files) is measured. Measurements are saved case by
case in FILE, so that an interrupted run resumes; predictions are computed each time. --page updates
the tables of the page from all that FILE has.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import itertools
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from fit_models import build, build_drawn, draw

from surefit.memory.limit import Limit
from surefit.memory.predict_peak import HEAP_BYTES, PROCESS_BYTES, allocator_bytes
from surefit.memory.process_memory import anonymous_bytes, peak_bytes, reset_peak
from surefit.memory.trace_step import trace_training
from surefit.models.call import Call
from surefit.models.sharding import meta_copy

ROOT = Path(__file__).resolve().parents[1]
STEPS = 4
FITTED = list(
    itertools.product(
        ("llama", "qwen3", "gpt2", "bert"), (False, True), (128, 256, 512), (2, 8), (False, True)
    )
)
FITTED += [
    ("t5", False, 192, 4, False),
    ("t5", False, 96, 16, True),
    ("t5", True, 192, 8, False),
    ("vit", False, 512, 8, False),
    ("vit", False, 256, 24, False),
    ("vit", True, 512, 16, False),
    ("vit", False, 512, 16, True),
    ("deberta-v2", False, 128, 8, False),
    ("deberta-v2", False, 320, 4, False),
    ("deberta-v2", True, 192, 6, False),
    ("conv and LSTM", False, 200, 16, False),
    ("conv and LSTM", False, 320, 8, False),
    ("roberta", True, 128, 16, False),
    ("roberta", True, 384, 4, False),
    ("roberta", True, 384, 4, True),
    ("distilbert", True, 64, 32, False),
    ("distilbert", False, 300, 6, False),
    ("mixtral", False, 128, 6, False),
    ("mixtral", False, 320, 4, False),
    ("mixtral", True, 192, 4, False),
    ("llama, wide", False, 2048, 1, False),
    ("llama, wide", False, 3072, 1, True),
    ("llama, wide", True, 1536, 2, False),
    ("gpt2", False, 1024, 2, False),
]
"""Model, LoRA, length, rows, gradient checkpointing."""


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--grid", action="append", choices=(*GRIDS, "judged"), help="measure")
    arguments.add_argument("--seed", type=int, default=1, help="of the judged grid")
    arguments.add_argument("--results", type=Path, default=ROOT / "bench/fit_grid.jsonl")
    arguments.add_argument("--page", type=Path, help="the page whose tables are written")
    given = arguments.parse_args()
    import peft  # noqa: F401 - before forking
    import transformers

    transformers.logging.set_verbosity_error()
    known = _read(given.results)
    grids = {**GRIDS, "judged": draw(given.seed)}
    jobs = [(grid, case) for grid in grids for case in grids[grid]]
    for number, (grid, case) in enumerate(jobs):
        before = known.get(_key(case), {})
        if NEEDED[grid] in before or grid not in (given.grid or grids):
            continue
        print(f"{number + 1} of {len(jobs)}: {case}", file=sys.stderr)
        work = _run_time if grid == "times" else _resident
        found = {**case, **_forked(lambda case=case, work=work: work(case))}
        known[_key(case)] = found
        with given.results.open("a") as file:
            file.write(json.dumps(found) + "\n")
    made = [(grid, known[_key(case)]) for grid, case in jobs if _key(case) in known]
    results = [(grid, {**case, **predicted(case)}) for grid, case in made if grid != "times"]
    tables = report(results, [case for grid, case in made if grid == "times"])
    missing = len(grids["judged"]) - sum(grid == "judged" for grid, _ in made)
    if missing:
        tables = (
            f"{missing} of the {len(grids['judged'])} judged cases are not measured.\n\n{tables}"
        )
    print(tables)
    if given.page is not None:
        text = given.page.read_text()
        head, _, rest = text.partition("<!-- from bench/fit_grid.py -->")
        tail = rest.partition("<!-- end -->")[2]
        marked = f"<!-- from bench/fit_grid.py -->\n{tables}\n<!-- end -->"
        given.page.write_text(head + marked + tail)


def build_case(case: dict[str, Any]) -> tuple[Any, Call, Any, dict[str, Any]]:
    """The model of a case of either grid, its Call, its loss and a batch."""
    return build_drawn(case) if "width" in case else build(case)


def predicted(case: dict[str, Any]) -> dict[str, Any]:
    """Predict the peak memory of a case; empty if its code cannot run on the meta device."""
    model, call, loss, batch = build_case(case)
    try:
        traced = trace_training(*meta_copy(model, call), loss, batch)
    except Exception as error:  # transformers' code may fail in any way
        print(f"{case}: not predicted: {error}", file=sys.stderr)
        return {}
    return {"traced": traced, "predicted": traced.peak + allocator_bytes(traced, Limit(0, ""))}


def _resident(case: dict[str, Any]) -> dict[str, Any]:
    make_step(*build_case(_small(case)))()  # what is loaded on first use
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    before = anonymous_bytes()
    step = make_step(*build_case(case))
    reset_peak()
    for _ in range(STEPS):
        step()
    return {"resident": peak_bytes() - before}


def _small(case: dict[str, Any]) -> dict[str, Any]:
    """The same model on one short row, or one image."""
    return {**case, "rows": 1, "length": case["length"] if case["length"] == 224 else 128}


def make_step(model: Any, call: Call, loss: Any, batch: Any) -> Callable[[], None]:
    """A training step like that of the training loop."""
    trained = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=1e-4, fused=True)

    def step() -> None:
        total, count = loss(call(model, batch), batch)
        (total / count).backward()
        torch.nn.utils.clip_grad_norm_(trained, 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    model.train()
    return step


RUNS: dict[str, dict[str, Any]] = {
    "sft, llama": {"task": "sft", "model": "tiny:llama"},
    "causal-lm, gpt2": {"task": "causal-lm", "model": "tiny:gpt2"},
    "text-classification, bert": {"task": "text-classification", "model": "tiny:bert"},
    "seq2seq, t5": {"task": "seq2seq", "model": "tiny:t5"},
}


def _cases(grid: list[tuple[Any, ...]]) -> list[dict[str, Any]]:
    return [
        dict(zip(("arch", "lora", "length", "rows", "ckpt"), case, strict=True)) for case in grid
    ]


GRIDS: dict[str, list[dict[str, Any]]] = {
    "fitted": _cases(FITTED),
    "times": [{"run": name} for name in RUNS],
}


def _run_time(case: dict[str, Any]) -> dict[str, Any]:
    """Predicted time of a small run after its measured step, and its measured time."""
    import random

    from surefit.request import make_request
    from surefit.training.run import start_run
    from surefit.training.work import Listeners

    name, choose = case["run"], random.Random(0)
    words = [f"{a}{b}" for a in "bdfklmnprst" for b in ("a", "e", "i", "o", "u")]

    def text(longest: int) -> str:
        return " ".join(choose.choices(words, k=choose.randint(5, longest)))

    rows = [{"text": text(300), "label": choose.choice("ab")} for _ in range(1200)]
    if RUNS[name]["task"] in ("sft", "seq2seq"):
        names = ("prompt", "completion") if RUNS[name]["task"] == "sft" else ("source", "target")
        rows = [{names[0]: row["text"], names[1]: text(60)} for row in rows]
    if RUNS[name]["task"] == "causal-lm":
        rows = [{"text": row["text"]} for row in rows]
    predictions: list[Any] = []
    with tempfile.TemporaryDirectory() as folder:
        os.environ["SUREFIT_CACHE"] = str(Path(folder) / "cache")
        options = {**RUNS[name], "data": rows, "epochs": 1, "output": f"{folder}/run"}
        start_run(
            make_request(options),
            Listeners(
                on_fit=lambda fit: predictions.append((fit.total_seconds, time.perf_counter()))
            ),
        )
    seconds, began = predictions[0]
    return {"predicted_seconds": seconds, "seconds": time.perf_counter() - began}


def _forked(work: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """The result of `work` in a forked process."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        code = 1
        try:
            os.write(writing, json.dumps(work()).encode())
            code = 0
        finally:
            os._exit(code)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        answer = pipe.read()
    _, status = os.waitpid(child, 0)
    if status != 0:
        raise SystemExit(f"a case failed with status {status}")
    found: dict[str, Any] = json.loads(answer)
    return found


def report(results: list[tuple[str, dict[str, Any]]], runs: list[dict[str, Any]]) -> str:
    """The tables of the page."""
    grids = {
        grid: [case for name, case in results if name == grid and "predicted" in case]
        for grid in ("fitted", "judged")
    }
    lines = [
        f"{len(results)} cases on {os.cpu_count()} cores, torch {torch.__version__}; MB; errors "
        f"are predicted / measured − 1, each with {PROCESS_BYTES / 1e6:.0f} MB of the process.",
        "",
        "| | cases | median error | most under | most over |",
        "| --- | --- | --- | --- | --- |",
        *(_summary(grid, cases) for grid, cases in grids.items() if cases),
        "",
        f"The least share with which no fitted case is more than {MOST_UNDER:.0%} under: "
        f"{least_share(grids['fitted']):.4f}.",
        "",
        "The judged cases:",
        "",
        "| model | width × layers | LoRA | length | rows | checkpointing | live tensors "
        "| predicted | measured | error |",
        f"|{' --- |' * 10}",
        *map(_line, grids["judged"]),
        "",
        "| run | predicted seconds | measured seconds | error |",
        "| --- | --- | --- | --- |",
    ]
    lines += [
        f"| {run['run']} | {run['predicted_seconds']:.1f} | {run['seconds']:.1f} "
        f"| {run['predicted_seconds'] / run['seconds'] - 1:+.0%} |"
        for run in runs
    ]
    return "\n".join(lines)


NEEDED = {"fitted": "resident", "judged": "resident", "times": "seconds"}
MOST_UNDER = 0.1


def least_share(cases: list[dict[str, Any]]) -> float:
    """The share of the bytes on the heap that the allowance needs."""
    return max(
        (
            (1 - MOST_UNDER) * (case["resident"] + PROCESS_BYTES)
            - (case["traced"].peak + PROCESS_BYTES + HEAP_BYTES)
        )
        / case["traced"].heap_bytes
        for case in cases
    )


def _error(case: dict[str, Any]) -> float:
    return float((case["predicted"] + PROCESS_BYTES) / (case["resident"] + PROCESS_BYTES) - 1)


def _summary(grid: str, cases: list[dict[str, Any]]) -> str:
    errors = [_error(case) for case in cases]
    return (
        f"| {grid} | {len(cases)} | {statistics.median(map(abs, errors)):.1%} "
        f"| {min(errors):+.1%} | {max(errors):+.1%} |"
    )


def _line(case: dict[str, Any]) -> str:
    lora, saving = "yes" if case["lora"] else "no", "on" if case["ckpt"] else "off"
    return (
        f"| {case['arch']} | {case['width']} × {case['layers']} | {lora} | {case['length']} "
        f"| {case['rows']} | {saving} | {case['traced'].peak / 1e6:.0f} "
        f"| {case['predicted'] / 1e6:.0f} | {case['resident'] / 1e6:.0f} | {_error(case):+.1%} |"
    )


def _key(case: dict[str, Any]) -> str:
    names = ("arch", "width", "layers", "lora", "length", "rows", "ckpt", "run")
    return json.dumps({name: case[name] for name in names if name in case})


def _read(path: Path) -> dict[str, dict[str, Any]]:
    if not path.is_file():
        return {}
    return {_key(case): case for case in map(json.loads, path.read_text().splitlines())}


if __name__ == "__main__":
    main()
