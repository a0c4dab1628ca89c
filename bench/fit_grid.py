"""Predicted and measured peak memory over a grid of models; predicted and measured run time.

    python bench/fit_grid.py [--quick] [--results FILE] [--page docs/fit.md]

Each case runs in two processes, forked from one that has done the imports. The first counts the
allocations of torch's allocator (memory events of the profiler), the second the growth of the
resident set size (VmHWM without mapped files). Measurements are saved case by case in FILE, so that
an interrupted run resumes; predictions of memory are computed each time. --page updates the tables
of the page.
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

from surefit.memory.limit import Limit
from surefit.memory.predict_peak import allocator_bytes
from surefit.memory.process_memory import anonymous_bytes, peak_bytes, reset_peak
from surefit.memory.trace_step import trace_training
from surefit.models.call import Call
from surefit.models.gradient_checkpointing import enable_checkpointing
from surefit.models.meta_copy import meta_copy

ROOT = Path(__file__).resolve().parents[1]
WORDS = 16_000
LENGTHS, ROWS = (128, 256, 512), (2, 8)
STEPS = 4


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--quick", action="store_true", help="one case in nine")
    arguments.add_argument("--results", type=Path, default=ROOT / "bench/fit_grid.jsonl")
    arguments.add_argument("--page", type=Path, help="the page whose tables are written")
    given = arguments.parse_args()
    import peft  # noqa: F401 - before forking
    import transformers

    transformers.logging.set_verbosity_error()
    known = _read(given.results)
    jobs: list[tuple[dict[str, Any], Callable[..., dict[str, Any]]]] = [
        ({"kind": "memory", "arch": arch, "lora": lora, "length": n, "rows": b, "ckpt": c}, memory)
        for arch, lora, n, b, c in itertools.product(
            BUILDERS, (False, True), LENGTHS, ROWS, (False, True)
        )
    ]
    if given.quick:
        jobs = jobs[4::9]
    jobs += [({"kind": "time", "run": name}, run_time) for name in RUNS]
    for number, (case, measure) in enumerate(jobs):
        if _key(case) in known:
            continue
        print(f"{number + 1} of {len(jobs)}: {case}", file=sys.stderr)
        found = {**case, **measure(case)}
        known[_key(case)] = found
        with given.results.open("a") as file:
            file.write(json.dumps(found) + "\n")
    results = [known[_key(case)] for case, _ in jobs]
    tables = report(
        [{**case, **predicted(case)} if case["kind"] == "memory" else case for case in results]
    )
    print(tables)
    if given.page is not None:
        text = given.page.read_text()
        head, _, rest = text.partition("<!-- from bench/fit_grid.py -->")
        tail = rest.partition("<!-- end -->")[2]
        marked = f"<!-- from bench/fit_grid.py -->\n{tables}\n<!-- end -->"
        given.page.write_text(head + marked + tail)


def memory(case: dict[str, Any]) -> dict[str, Any]:
    """Measure one case in both ways."""
    return {**_forked(lambda: _counted(case)), **_forked(lambda: _resident(case))}


def predicted(case: dict[str, Any]) -> dict[str, Any]:
    """Predict the peak memory of a case from a model without weights."""
    with torch.device("meta"):
        model = BUILDERS[case["arch"]]()
    model, call, loss, batch = build(case, model)
    began = time.perf_counter()
    traced = trace_training(*meta_copy(model, call), loss, batch)
    seconds = time.perf_counter() - began
    return {
        "predicted": traced.peak,
        "predicted_resident": traced.peak + allocator_bytes(traced, Limit(0, "")),
        "trace_seconds": seconds,
    }


def _counted(case: dict[str, Any]) -> dict[str, Any]:
    model, call, loss, batch = build(case)
    step = make_step(model, call, loss, batch)
    step()
    held = sum(_storages(model, step.optimizer, batch).values())  # type: ignore[attr-defined]
    with torch.profiler.profile(
        activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True
    ) as profile:
        step()
    assert profile.profiler is not None
    events = [e for e in profile.profiler.kineto_results.events() if e.name() == "[memory]"]
    sizes = [event.nbytes() for event in sorted(events, key=lambda event: event.start_ns())]
    return {"counted": held + max(itertools.accumulate(sizes), default=0)}


def _resident(case: dict[str, Any]) -> dict[str, Any]:
    make_step(*build({**case, "rows": 1, "length": LENGTHS[0]}))()  # what is loaded on first use
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    before = anonymous_bytes()
    step = make_step(*build(case))
    reset_peak()
    for _ in range(STEPS):
        step()
    return {"resident": peak_bytes() - before}


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

    step.optimizer = optimizer  # type: ignore[attr-defined]
    model.train()
    return step


def _storages(model: Any, optimizer: Any, batch: Any) -> dict[int, int]:
    states = [value for state in optimizer.state.values() for value in state.values()]
    tensors = [*model.parameters(), *model.buffers(), *states, *batch.values()]
    return {t.untyped_storage()._cdata: t.untyped_storage().nbytes() for t in tensors}


def build(case: dict[str, Any], model: Any = None) -> tuple[Any, Call, Any, dict[str, Any]]:
    """The model of a case, its Call, its loss and a batch with some padding."""
    torch.manual_seed(0)
    model = model if model is not None else BUILDERS[case["arch"]]()
    rows, length = case["rows"], case["length"]
    if case["arch"] == "vit":
        side = {128: 112, 256: 160, 512: 224}[length]
        batch = {"pixel_values": torch.randn(rows, 3, side, side)}
        labels = torch.randint(0, 2, (rows,))
    else:
        ids = torch.randint(0, WORDS, (rows, length))
        mask = torch.ones_like(ids)
        mask[0, length * 3 // 4 :] = 0
        batch = {"input_ids": ids, "attention_mask": mask}
        labels = ids if case["arch"] != "bert" else ids[:, 0] % 2
    if case["arch"] == "t5":
        batch["decoder_input_ids"] = batch["input_ids"]
    if case["lora"]:
        from peft import LoraConfig, get_peft_model

        model = get_peft_model(model, LoraConfig(r=16, target_modules="all-linear"))
    if case["ckpt"]:
        enable_checkpointing(getattr(model, "base_model", model))
    batch["labels"] = labels
    arguments = [name for name in batch if name != "labels"]

    def loss(outputs: Any, batch: Any) -> tuple[Any, int]:
        logits, labels = outputs.logits, batch["labels"]
        if logits.ndim == 3:
            logits, labels = logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten()
        total = torch.nn.functional.cross_entropy(logits, labels, reduction="sum")
        return total, len(labels)

    fixed = {"interpolate_pos_encoding": True} if case["arch"] == "vit" else {}
    return model, Call({name: name for name in arguments}, fixed), loss, batch


def _llama() -> Any:
    from transformers import LlamaConfig, LlamaForCausalLM

    return LlamaForCausalLM(LlamaConfig(num_key_value_heads=4, **_sizes()))


def _qwen3() -> Any:
    from transformers import Qwen3Config, Qwen3ForCausalLM

    tied = {"tie_word_embeddings": True, "head_dim": 64}
    return Qwen3ForCausalLM(Qwen3Config(num_key_value_heads=4, **tied, **_sizes()))


def _gpt2() -> Any:
    from transformers import GPT2Config, GPT2LMHeadModel

    return GPT2LMHeadModel(GPT2Config(n_embd=384, n_layer=6, n_head=8, vocab_size=WORDS))


def _bert() -> Any:
    from transformers import BertConfig, BertForSequenceClassification

    return BertForSequenceClassification(BertConfig(**_sizes()))


def _t5() -> Any:
    from transformers import T5Config, T5ForConditionalGeneration

    sizes = {"d_model": 384, "d_ff": 1024, "d_kv": 48, "num_layers": 4, "num_heads": 8}
    return T5ForConditionalGeneration(T5Config(vocab_size=WORDS, **sizes))


def _vit() -> Any:
    from transformers import ViTConfig, ViTForImageClassification

    sizes = {key: value for key, value in _sizes().items() if key != "vocab_size"}
    return ViTForImageClassification(ViTConfig(image_size=224, **sizes))


def _sizes() -> dict[str, int]:
    return {
        "hidden_size": 384,
        "intermediate_size": 1024,
        "num_hidden_layers": 6,
        "num_attention_heads": 8,
        "vocab_size": WORDS,
    }


BUILDERS: dict[str, Callable[[], Any]] = {
    "llama": _llama,
    "qwen3": _qwen3,
    "gpt2": _gpt2,
    "bert": _bert,
    "t5": _t5,
    "vit": _vit,
}

RUNS: dict[str, dict[str, Any]] = {
    "sft, llama": {"task": "sft", "model": "tiny:llama"},
    "causal-lm, gpt2": {"task": "causal-lm", "model": "tiny:gpt2"},
    "text-classification, bert": {"task": "text-classification", "model": "tiny:bert"},
    "seq2seq, t5": {"task": "seq2seq", "model": "tiny:t5"},
}


def run_time(case: dict[str, Any]) -> dict[str, Any]:
    """Predicted time of a small run after its measured step, and its measured time."""
    return _forked(lambda: _run_time(case["run"]))


def _run_time(name: str) -> dict[str, Any]:
    import random

    from surefit.request import make_request
    from surefit.training.start import Listeners, start_run

    choose = random.Random(0)
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


def report(results: list[dict[str, Any]]) -> str:
    """The tables of the page."""
    cases = [result for result in results if result["kind"] == "memory"]
    runs = [result for result in results if result["kind"] == "time"]
    lines = [
        f"{len(cases)} cases on {os.cpu_count()} cores, torch {torch.__version__}; MB; errors are "
        "predicted / measured − 1.",
        "",
        "| | median error | largest error | largest underestimate |",
        "| --- | --- | --- | --- |",
    ]
    for name, predicted, measured in (
        ("against torch's allocator", "predicted", "counted"),
        ("against resident set size (RSS)", "predicted_resident", "resident"),
    ):
        errors = [case[predicted] / case[measured] - 1 for case in cases]
        sizes = [abs(error) for error in errors]
        lines.append(
            f"| {name} | {statistics.median(sizes):.1%} | {max(sizes):.1%} | {min(errors):+.1%} |"
        )
    seconds = [case["trace_seconds"] for case in cases]
    median, longest = statistics.median(seconds), max(seconds)
    lines += ["", f"A trace took {median:.2f} s (median) and {longest:.2f} s (maximum)."]
    lines += [
        "",
        "| model | LoRA | length | rows | checkpointing | predicted | allocator | error "
        "| predicted RSS | RSS | error |",
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for case in cases:
        first, second = case["predicted"], case["predicted_resident"]
        marks = " | ".join(
            str(value)
            for value in (
                case["arch"],
                "yes" if case["lora"] else "no",
                case["length"],
                case["rows"],
                "on" if case["ckpt"] else "off",
            )
        )
        lines.append(
            f"| {marks} | {first / 1e6:.0f} | {case['counted'] / 1e6:.0f} "
            f"| {first / case['counted'] - 1:+.1%} | {second / 1e6:.0f} "
            f"| {case['resident'] / 1e6:.0f} | {second / case['resident'] - 1:+.1%} |"
        )
    lines += [
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


def _key(case: dict[str, Any]) -> str:
    names = ("kind", "arch", "lora", "length", "rows", "ckpt", "run")
    return json.dumps({name: case[name] for name in names if name in case})


def _read(path: Path) -> dict[str, dict[str, Any]]:
    if not path.is_file():
        return {}
    return {_key(case): case for case in map(json.loads, path.read_text().splitlines())}


if __name__ == "__main__":
    main()
