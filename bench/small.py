"""The parts of bench/compare.py that train no real model: the feed, the loop, and the machine."""

from __future__ import annotations

import json
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

Measure = Callable[[bool], dict[str, Any]]


def gemm(quick: bool) -> dict[str, Any]:
    """The machine's fp32 matrix product, the limit of everything else."""
    import torch

    size = 512 if quick else 2048
    a, b = torch.randn(size, size), torch.randn(size, size)
    seconds = []
    for _ in range(4 if quick else 12):
        began = time.perf_counter()
        a @ b
        seconds.append(time.perf_counter() - began)
    return {"flops_per_second": 2 * size**3 / min(seconds)}


def ragged_rows(count: int) -> list[dict[str, Any]]:
    """Rows of 30 to 512 tokens with labels."""
    draw = np.random.default_rng(0)
    ids = [draw.integers(1, 40_000, int(draw.integers(30, 512))) for _ in range(count)]
    return [{"input_ids": row, "labels": row} for row in ids]


def per_batch(make: Callable[[Any], Any], quick: bool) -> dict[str, Any]:
    """Median seconds of one batch of 4, 16 and 64 rows."""
    draw = np.random.default_rng(1)
    found = {}
    for size in (4, 16, 64):
        seconds = []
        for _ in range(20 if quick else 200):
            rows = draw.integers(0, 1000, size)
            began = time.perf_counter()
            make(rows)
            seconds.append(time.perf_counter() - began)
        found[f"seconds_{size}"] = statistics.median(seconds)
    return found


def collate_surefit(quick: bool) -> dict[str, Any]:
    """From the store on disk to tensors, as the loop's batches are made."""
    from surefit.batches.collate import Layout
    from surefit.batches.loading import load_batch
    from surefit.inputs.store import Store, new_store
    from surefit.tasks.language_models import CAUSAL_LM as SPEC

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "store"
        with new_store(path, SPEC.fields, {}) as writer:
            for number, row in enumerate(ragged_rows(1000)):
                length = len(row["input_ids"])
                writer.append(row, source_row=number, num_targets=length - 1, length=length)
        store, layout = Store(path), Layout(predicts="next_token")
        return per_batch(lambda rows: load_batch(store, rows, SPEC.fields, layout=layout), quick)


def collate_stock(quick: bool) -> dict[str, Any]:
    """From a datasets table on disk to tensors, by transformers' collator."""
    from datasets import Dataset, load_from_disk
    from trainers import Job, stock_collator

    lists = [{name: column.tolist() for name, column in row.items()} for row in ragged_rows(1000)]
    collate = stock_collator(Job("sft", [], [], None, 0.0, 0))
    with tempfile.TemporaryDirectory() as folder:
        Dataset.from_list(lists).save_to_disk(folder)
        table = load_from_disk(folder)
        return per_batch(lambda rows: collate([table[int(row)] for row in rows]), quick)


def collate_stock_lists(quick: bool) -> dict[str, Any]:
    """The stock collator alone, with rows that are Python lists already."""
    from trainers import Job, stock_collator

    lists = [{name: column.tolist() for name, column in row.items()} for row in ragged_rows(1000)]
    collate = stock_collator(Job("sft", [], [], None, 0.0, 0))
    return per_batch(lambda rows: collate([dict(lists[int(row)]) for row in rows]), quick)


def texts(count: int) -> list[str]:
    """Questions and answers of gsm8k, numbered, so that no two are equal."""
    from trainers import SHARED

    lines = (SHARED / "data" / "gsm8k" / "train.jsonl").read_text(encoding="utf-8").splitlines()
    known = [json.loads(line) for line in lines]
    pairs = (known[n % len(known)] for n in range(count))
    return [f"{n}. {row['question']}\n{row['answer']}" for n, row in enumerate(pairs)]


def tokenizer() -> Any:
    """The fast tokenizer of SmolLM2."""
    from trainers import gguf_path
    from transformers import AutoTokenizer

    path = gguf_path()
    return AutoTokenizer.from_pretrained(str(path.parent), gguf_file=path.name)


def tokenise_surefit(quick: bool) -> dict[str, Any]:
    """The encoding stage of a plan, from a JSON-lines file to flat columns on disk."""
    from surefit.plan.make_plan import make_plan
    from surefit.request import make_request

    count = 2_000 if quick else 100_000
    spent: dict[str, list[float]] = {}

    def progress(stage: str, done: int, total: int) -> None:
        if stage.startswith("encoding"):
            spent.setdefault(stage, []).append(time.perf_counter())

    with tempfile.TemporaryDirectory() as folder:
        os.environ["SUREFIT_CACHE"] = f"{folder}/cache"
        tokenizer().save_pretrained(f"{folder}/tokenizer")
        with open(f"{folder}/rows.jsonl", "w", encoding="utf-8") as file:
            file.writelines(json.dumps({"text": text}) + "\n" for text in texts(count))
        settings = {"data": f"{folder}/rows.jsonl", "tokenizer": f"{folder}/tokenizer"}
        make_plan(make_request({**settings, "model": "tiny:llama", "task": "causal-lm"}), progress)
    seconds = sum(moments[-1] - moments[0] for moments in spent.values())
    return {"rows_per_second": count / seconds}


def tokenise_datasets(quick: bool, processes: int = 1) -> dict[str, Any]:
    """`datasets.map`, batched, with the same tokenizer."""
    from datasets import Dataset, disable_progress_bars

    disable_progress_bars()
    count, read = 2_000 if quick else 100_000, tokenizer()
    with tempfile.TemporaryDirectory() as folder:
        Dataset.from_dict({"text": texts(count)}).save_to_disk(f"{folder}/rows")
        table = Dataset.load_from_disk(f"{folder}/rows")
        began = time.perf_counter()
        table.map(
            lambda rows: read(rows["text"], truncation=True, max_length=1024),
            batched=True,
            remove_columns=["text"],
            num_proc=processes if processes > 1 else None,
        )
        return {"rows_per_second": count / (time.perf_counter() - began)}


def tokenise_alone(quick: bool) -> dict[str, Any]:
    """The tokenizer and nothing else, in batches of 256 texts: the limit of the two."""
    count, read = 2_000 if quick else 100_000, tokenizer()
    rows = texts(count)
    began = time.perf_counter()
    for start in range(0, count, 256):
        read.backend_tokenizer.encode_batch_fast(rows[start : start + 256])
    return {"rows_per_second": count / (time.perf_counter() - began)}


def no_op_model() -> Any:
    """A model that does nothing: what is left is the loop."""
    import torch
    from torch import nn

    class NoOp(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(()))

        def forward(self, input_ids: Any, attention_mask: Any = None, labels: Any = None) -> Any:
            return {"loss": self.weight * 1.0}

    return NoOp()


def overhead(train: str) -> Measure:
    """Seconds per step of a trainer whose model does nothing."""

    def measure(quick: bool) -> dict[str, Any]:
        from trainers import TRAINERS, Job

        steps = 50 if quick else 1000
        rows = [{"input_ids": [1, 2, 3, 4], "labels": [1, 2, 3, 4]} for _ in range(4 * steps)]
        seconds, _ = TRAINERS[train](Job("sft", rows, [], no_op_model(), 1e-3, 4))
        return {"seconds_per_step": seconds / steps}

    return measure


def torch_alone(quick: bool) -> dict[str, Any]:
    """What torch itself takes for such a step: call, backward, norm, clip, AdamW; no data."""
    import torch

    model, steps = no_op_model(), 50 if quick else 1000
    trained = list(model.parameters())
    optimizer = torch.optim.AdamW(trained, lr=1e-3, fused=True)
    ids = torch.ones(4, 4, dtype=torch.int64)
    began = 0.0
    for step in range(steps + 20):
        if step == 20:  # warm by now
            began = time.perf_counter()
        model(ids)["loss"].backward()
        torch.nn.utils.clip_grad_norm_(trained, 1.0)
        optimizer.step()
        optimizer.zero_grad()
    return {"seconds_per_step": (time.perf_counter() - began) / steps}


def rows_cost(times: int) -> Measure:
    """A whole run on a file, planning and training: seconds per row, and peak memory."""

    def measure(quick: bool) -> dict[str, Any]:
        from contend import peak_bytes

        import surefit

        count = (200 if quick else 5_000) * times
        with tempfile.TemporaryDirectory() as folder:
            os.environ["SUREFIT_CACHE"] = f"{folder}/cache"
            with open(f"{folder}/rows.jsonl", "w", encoding="utf-8") as file:
                file.writelines(json.dumps({"text": text}) + "\n" for text in texts(count))
            options: dict[str, Any] = {"eval_share": 0.0, "epochs": 1, "batch_size": 32}
            options |= {"model": "tiny:llama", "task": "causal-lm", "max_seq_length": 32}
            few = [{"text": text} for text in texts(64)]
            # Imports and start-up are paid for by a first run, as they are no cost of rows.
            surefit.train(data=few, **options, output=f"{folder}/first")
            began = time.perf_counter()
            surefit.train(data=f"{folder}/rows.jsonl", **options, output=f"{folder}/run")
            seconds = time.perf_counter() - began
        return {"seconds_per_row": seconds / count, "peak_bytes": peak_bytes()}

    return measure


def profile(quick: bool) -> dict[str, Any]:
    """Shares of the time of a LoRA run's operations: products, attention, the rest."""
    from dataclasses import replace

    from torch.profiler import ProfilerActivity
    from torch.profiler import profile as profiled
    from trainers import lora_job, train_surefit

    job = lora_job(quick)
    found = profiled(activities=[ProfilerActivity.CPU], acc_events=True)

    def watch(event: Any) -> None:  # from the end of the first step to that of the fourth
        if event["event"] == "step" and event["step"] in (1, 4):
            (found.start if event["step"] == 1 else found.stop)()

    train_surefit(replace(job, rows=job.rows[: 4 * job.batch_size]), watch)
    spent = {"matrix products": 0.0, "attention": 0.0, "other operations": 0.0}
    for each in found.key_averages():
        if each.key in ("aten::mm", "aten::addmm", "aten::bmm", "aten::addmm_"):
            spent["matrix products"] += each.self_cpu_time_total
        elif "scaled_dot_product" in each.key or "flash_attention" in each.key:
            spent["attention"] += each.self_cpu_time_total
        elif each.key.startswith("aten::"):
            spent["other operations"] += each.self_cpu_time_total
    return {name: share / sum(spent.values()) for name, share in spent.items()}


SMALL: dict[str, dict[str, Measure]] = {
    "gemm": {"torch": gemm},
    "collating": {
        "surefit": collate_surefit,
        "stock collator": collate_stock,
        "stock collator, rows as lists": collate_stock_lists,
    },
    "tokenising": {
        "surefit": tokenise_surefit,
        "datasets.map": tokenise_datasets,
        "tokenizer alone": tokenise_alone,
        "datasets.map, 2 processes": lambda quick: tokenise_datasets(quick, 2),
    },
    "overhead": {
        "surefit": overhead("surefit"),
        "HF Trainer": overhead("HF Trainer"),
        "torch alone": torch_alone,
    },
    "profile": {"surefit": profile},
    "size": {"surefit": rows_cost(1), "surefit, 10 × the rows": rows_cost(10)},
}
