"""Peak memory of each process that loads, trains, saves and gathers a divided model.

    python bench/shard_memory.py      # 200 MB over 4 processes; writes the table into the docs
    python bench/shard_memory.py --megabytes 40 --processes 2 --no-docs

Anonymous memory is counted above what the process holds after its imports; mapped files are not.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]
PAGE = ROOT / "docs" / "sharded-checkpoints.md"
BEGIN, END = "<!-- shard_memory begins -->", "<!-- shard_memory ends -->"
STAGES = ("load", "step", "save", "gather")


@contextmanager
def peak_above(base: int, peaks: dict[str, int], name: str) -> Iterator[None]:
    """Note the largest anonymous memory while the block runs, above a base."""
    from surefit.memory.process_memory import anonymous_bytes, trim_heap

    trim_heap()
    ends, seen = threading.Event(), [anonymous_bytes()]

    def watch() -> None:
        while not ends.is_set():
            seen.append(anonymous_bytes())
            time.sleep(0.001)

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    try:
        yield
    finally:
        seen.append(anonymous_bytes())
        ends.set()
        watcher.join()
        peaks[name] = max(seen) - base


def write_model(folder: Path, megabytes: int) -> int:
    """Write a Llama of about this size in float32; its bytes."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    width = 512
    layer = 4 * (2 * width * width + 2 * width * width // 4 + 3 * width * 2 * width)
    layers = max(2, round((megabytes * 1e6 - 2 * 4 * 2000 * width) / layer))
    config = LlamaConfig(
        vocab_size=2000,
        hidden_size=width,
        intermediate_size=2 * width,
        num_hidden_layers=layers,
        num_attention_heads=8,
        num_key_value_heads=2,
    )
    torch.manual_seed(0)
    model = LlamaForCausalLM(config)
    model.save_pretrained(folder)
    return sum(4 * weight.numel() for weight in model.parameters())


def measure(model: Path, out: Path) -> None:
    """In one of several processes: each stage, with its peak; written into `out`."""
    import torch
    from forked_processes import start_group
    from transformers import AutoConfig, AutoModelForCausalLM

    from surefit.memory.process_memory import anonymous_bytes
    from surefit.models.load_shards import build_late, fill_shards, late_weights
    from surefit.models.sharding import Skeleton, shard_module
    from surefit.processes import is_main, num_processes, process_index
    from surefit.run.checkpoints import save_checkpoint
    from surefit.run.choose_checkpoint import State

    mesh = start_group(num_processes())
    config = AutoConfig.from_pretrained(model)
    base, peaks = anonymous_bytes(), {}
    with peak_above(base, peaks, "load"):
        module = build_late(AutoModelForCausalLM, config, model, None, False).module
        places, skeleton = late_weights(module), Skeleton(module)
        shard_module(module, mesh)
        assert fill_shards(module, places, "cpu", 0, skeleton.module) == []
    optimizer = torch.optim.AdamW(module.parameters(), lr=1e-3)
    with peak_above(base, peaks, "step"):
        ids = torch.arange(8)[None]
        module(input_ids=ids, labels=ids).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    with peak_above(base, peaks, "save"):
        save_checkpoint(out, module, optimizer, {}, State(step=1))
    with peak_above(base, peaks, "gather"):
        whole = skeleton.gather(module, out)
        if is_main():
            whole.save_pretrained(out / "model")
    (out / f"peaks-{process_index()}.json").write_text(json.dumps(peaks), encoding="utf-8")


def run_measure(megabytes: int, processes: int, folder: Path) -> tuple[int, list[dict[str, int]]]:
    """The model's bytes, and the peaks of each process by stage."""
    import accelerate  # noqa: F401 - forked processes have it
    import torch.distributed.checkpoint
    import torch.distributed.fsdp  # noqa: F401
    from forked_processes import run
    from transformers import LlamaForCausalLM  # noqa: F401

    sizes: list[int] = []
    codes = run(1, _write, folder / "base", megabytes, folder)
    assert codes == [0], codes
    sizes.append(int((folder / "bytes").read_text()))
    codes = run(processes, measure, folder / "base", folder)
    assert codes == [0] * processes, codes
    peaks = [json.loads((folder / f"peaks-{n}.json").read_text()) for n in range(processes)]
    return sizes[0], peaks


def _write(model: Path, megabytes: int, folder: Path) -> None:
    """In a process of its own, so that those that measure are not forked from one that is large."""
    (folder / "bytes").write_text(str(write_model(model, megabytes)), encoding="utf-8")


def table(size: int, peaks: list[dict[str, int]]) -> str:
    """The largest and the first process's peak of each stage, beside the model's size."""
    lines = [
        f"A Llama of {size / 1e6:.0f} MB (float32) over {len(peaks)} processes:",
        "",
        "| stage | largest peak of a process | process 0 | share of the model |",
        "| --- | ---: | ---: | ---: |",
    ]
    for stage in STAGES:
        most = max(each[stage] for each in peaks)
        lines.append(
            f"| {stage} | {most / 1e6:.0f} MB | {peaks[0][stage] / 1e6:.0f} MB "
            f"| {most / size:.2f} |"
        )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--megabytes", type=int, default=200)
    parser.add_argument("--processes", type=int, default=4)
    parser.add_argument("--no-docs", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        text = table(*run_measure(options.megabytes, options.processes, Path(folder)))
    print(text)
    if not options.no_docs:
        page = PAGE.read_text(encoding="utf-8")
        before, rest = page.split(BEGIN)
        _, after = rest.split(END)
        PAGE.write_text(f"{before}{BEGIN}\n{text}\n{END}{after}", encoding="utf-8")


if __name__ == "__main__":
    main()
