"""Predicted and measured peak memory of real runs: one process, DDP and FSDP.

    python bench/fit_processes.py [--grid alone|shared]... [--seed N] [--results FILE]
                                  [--page docs/fit.md]

Each case is a real `surefit train` of a few steps, with a measured step, a rehearsal, an
evaluation, a checkpoint and a saved model. From outside, /proc tells every 5 ms how much anonymous
and shared memory each process has. The largest figure counts; the largest one before plan.json was
written is that of planning. It is compared with what `surefit check` predicts. No constant is
fitted to these runs. The cases are drawn by a seed. Measurements are saved case by case in FILE, so
that an interrupted run resumes. --predict replaces the predictions in FILE by those of `surefit
check`, without training.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import torch
from fit_models import FAMILIES, FEATURES, WORDS

STEPS = 3
EVAL_ROWS = 12
MODULE = """
import sys
sys.path.insert(0, {bench!r})
from fit_models import FAMILIES

def make():
    return FAMILIES[{family!r}].model({width}, {layers})
"""


def write_case(case: dict[str, Any], folder: Path) -> list[str]:
    """Write the files of a case; returns the arguments of `surefit` that train it."""
    torch.manual_seed(0)
    family = FAMILIES[case["arch"]]
    kind = "classes" if family.input == "text" and family.is_classifier else family.input
    count = (STEPS * case["accum"] * case["processes"] * case["rows"], EVAL_ROWS)
    sides = zip(("train", "eval"), count, strict=True)
    train, held = (_WRITERS[kind](folder / name, case["length"], rows) for name, rows in sides)
    options = {
        "batch_size": case["rows"],
        "grad_accum": case["accum"],
        "parallel": case["parallel"],
        "checkpointing": str(case["ckpt"]).lower(),
        "lora.r": 16 if case["lora"] else 0,
        "padding_free": case["joined"],
        "lr": 1e-4,
        "generate.rows": 0,
        "task": TASKS[kind],
    }
    if kind in ("text", "classes", "seq2seq"):
        options["max_seq_length"] = case["length"]
    settings = [part for key, value in options.items() for part in ("--set", f"{key}={value}")]
    model = _write_model(case, folder)
    return ["--data", train, "--eval-data", held, "--model", model, "--epochs", "1", *settings]


def _write_model(case: dict[str, Any], folder: Path) -> str:
    family, place = FAMILIES[case["arch"]], folder / "model"
    if family.input == "features":
        sizes = {"family": case["arch"], "width": case["width"], "layers": case["layers"]}
        bench = str(Path(__file__).parent)
        (folder / "own.py").write_text(MODULE.format(bench=bench, **sizes))
        return "own:make"
    family.model(case["width"], case["layers"]).save_pretrained(place)
    if family.input == "images":
        from transformers import ViTImageProcessor

        ViTImageProcessor(size={"height": 224, "width": 224}).save_pretrained(place)
    else:
        _write_tokenizer(place)
    return str(place)


def _write_tokenizer(place: Path) -> None:
    """One token per word, with the vocabulary that the models have."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    special = ("[PAD]", "[UNK]", "[BOS]", "[EOS]", "[CLS]", "[SEP]", "[MASK]")
    words = {word: number for number, word in enumerate([*special, *map(_word, range(WORDS - 7))])}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    names = ("pad", "unk", "bos", "eos", "cls", "sep", "mask")
    named = {f"{name}_token": token for name, token in zip(names, special, strict=True)}
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, **named).save_pretrained(place)


def _word(number: int) -> str:
    return f"w{number}"


def _text(choose: random.Random, length: int) -> str:
    """Words of a text; most rows are shorter than the longest."""
    count = choose.randint(length // 2, length + 8)
    return " ".join(_word(choose.randrange(WORDS - 7)) for _ in range(count))


def _write_lines(path: Path, rows: list[dict[str, Any]]) -> str:
    path = path.with_suffix(".jsonl")
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def _write_texts(path: Path, length: int, rows: int) -> str:
    choose = random.Random(path.name)
    return _write_lines(path, [{"text": _text(choose, length)} for _ in range(rows)])


def _write_classes(path: Path, length: int, rows: int) -> str:
    choose = random.Random(path.name)
    texts = ({"text": _text(choose, length)} for _ in range(rows))
    return _write_lines(path, [{**text, "label": "ab"[n % 2]} for n, text in enumerate(texts)])


def _write_pairs(path: Path, length: int, rows: int) -> str:
    choose = random.Random(path.name)
    pairs = [{name: _text(choose, length) for name in ("source", "target")} for _ in range(rows)]
    return _write_lines(path, pairs)


def _write_features(path: Path, length: int, rows: int) -> str:
    draw = np.random.default_rng(rows)
    lengths = draw.integers(length // 2, length + 1, rows)
    values = draw.normal(size=(int(lengths.sum()), FEATURES)).astype("float32")
    path = path.with_suffix(".npz")
    np.savez(path, features=values, lengths=lengths, label=np.arange(rows) % 2)
    return str(path)


def _write_images(path: Path, side: int, rows: int) -> str:
    from PIL import Image

    draw = np.random.default_rng(rows)
    for number in range(rows):
        place = path / "ab"[number % 2]
        place.mkdir(parents=True, exist_ok=True)
        pixels = draw.integers(0, 256, (side, side, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(place / f"{number}.png", compress_level=0)
    return str(path)


_WRITERS = {
    "text": _write_texts,
    "classes": _write_classes,
    "seq2seq": _write_pairs,
    "features": _write_features,
    "images": _write_images,
}
TASKS = {
    "text": "causal-lm",
    "classes": "text-classification",
    "seq2seq": "seq2seq",
    "features": "feature-classification",
    "images": "image-classification",
}


ROOT = Path(__file__).resolve().parents[1]
INTERVAL_SECONDS = 0.005
NAMES = (
    *("arch", "width", "layers", "lora", "length", "rows", "ckpt", "parallel", "processes"),
    *("accum", "joined"),
)
DRAW_SEED = 10
SHARED = ("electra", "opt", "gemma", "gpt-neox", "bart", "convnext")
OWN = "transformer encoder, own module"
ALONE = ("roberta", "opt", "llama, long rows", "t5", "vit", "resnet", "mixtral", "GRU, own module")
SMALL = ("electra", "convnext", OWN)
"""Families with few weights for their width."""


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--grid", action="append", choices=("alone", "shared"), help="measure")
    arguments.add_argument("--seed", type=int, default=DRAW_SEED, help="of the cases")
    arguments.add_argument("--results", type=Path, default=ROOT / "bench/fit_processes.jsonl")
    arguments.add_argument("--page", type=Path, help="the page whose table is written")
    arguments.add_argument("--predict", action="store_true", help="predict anew by `check`")
    given = arguments.parse_args()
    grids = {"alone": draw_alone(given.seed), "shared": draw(given.seed)}
    known = _read(given.results)
    for grid in given.grid or grids:
        for case in grids[grid]:
            if _key(case) not in known:
                print(f"{grid}: {case}", file=sys.stderr, flush=True)
                known[_key(case)] = _in_folder(measure, case)
            elif given.predict:
                known[_key(case)] |= _in_folder(predict, case)
            else:
                continue
            lines = [json.dumps({**json.loads(key), **found}) for key, found in known.items()]
            given.results.write_text("\n".join(lines) + "\n")
    results = [
        (grid, {**case, **known[_key(case)]})
        for grid in grids
        for case in grids[grid]
        if _key(case) in known
    ]
    table = report(results)
    missing = sum(map(len, grids.values())) - len(results)
    if missing:
        table = f"{missing} cases of the grids are not measured.\n\n{table}"
    print(table)
    if given.page is not None:
        write_between(given.page, "bench/fit_processes.py", table)


def draw(seed: int) -> list[dict[str, Any]]:
    """The cases of a seed: each family with DDP and with FSDP."""
    choose = random.Random(seed)
    return [
        {
            "arch": name,
            "width": choose.choice((384, 448, 512)) * (2 if name in SMALL else 1),
            "layers": choose.randint(3, 6),
            "lora": choose.random() < 0.35 and True in FAMILIES[name].lora,
            "length": 224 if FAMILIES[name].input == "images" else choose.choice((48, 80, 112)),
            "rows": choose.choice((2, 3, 5)),
            "ckpt": choose.random() < 0.35 and True in FAMILIES[name].ckpt,
            "parallel": parallel,
            "processes": choose.choice((2, 2, 2, 4)),
            "accum": choose.choice((1, 1, 2)),
            "joined": "auto",
        }
        for name in (*SHARED, OWN)
        for parallel in ("ddp", "fsdp")
    ]


def draw_alone(seed: int) -> list[dict[str, Any]]:
    """The cases of a seed in one process: each family in larger batches."""
    choose = random.Random(seed)
    return [
        {
            "arch": name,
            "width": choose.choice((320, 384, 448)),
            "layers": choose.randint(3, 6),
            "lora": choose.random() < 0.35 and True in FAMILIES[name].lora,
            "length": 224 if FAMILIES[name].input == "images" else choose.choice((64, 96, 160)),
            "rows": choose.choice((4, 6, 8)),
            "ckpt": choose.random() < 0.35 and True in FAMILIES[name].ckpt,
            "parallel": "ddp",
            "processes": 1,
            "accum": choose.choice((1, 1, 2)),
            "joined": "auto",
        }
        for name in (*ALONE, OWN, "conv and LSTM")
    ]


def _in_folder(work: Any, case: dict[str, Any]) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        return dict(work(case, Path(folder)))


def measure(case: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Train a case; peak memory of each process while it plans and afterwards, and the plan's."""
    run = folder / "run"
    arguments = [*write_case(case, folder), "--output", str(run)]
    with (folder / "out.txt").open("w+") as out:
        process = _start("train", case, folder, arguments, out)
        before, after = watch(process, case["processes"], run / "plan.json")
        if process.returncode != 0:
            raise SystemExit((folder / "out.txt").read_text()[-4000:])
    memory = json.loads((run / "plan.json").read_text())["memory"]
    return {"planning": before, "resident": after, **_predicted(memory)}


def predict(case: dict[str, Any], folder: Path) -> dict[str, Any]:
    """What `surefit check` predicts of a case."""
    arguments = [*write_case(case, folder), "--json"]
    process = _start("check", case, folder, arguments, subprocess.PIPE)
    return _predicted(json.loads(process.communicate()[0])["memory"])


def _start(command: str, case: dict[str, Any], folder: Path, more: list[str], out: Any) -> Any:
    count = ["--processes", str(case["processes"])] if case["processes"] > 1 else []
    error = subprocess.STDOUT if command == "train" else subprocess.DEVNULL
    environment = {**os.environ, "SUREFIT_CACHE": str(folder / "cache")}
    words = [sys.executable, "-m", "surefit", command, *more, *count]
    return subprocess.Popen(words, cwd=folder, env=environment, stdout=out, stderr=error)


def _predicted(memory: dict[str, Any]) -> dict[str, Any]:
    return {"predicted": memory["predicted_peak_bytes"], "parts": memory["parts"]}


def watch(process: Any, count: int, plan: Path) -> tuple[list[int], list[int]]:
    """Peak bytes of a process, or its children: before a file is there, and after."""
    parent, peaks, children = psutil.Process(process.pid), ({}, {}), []
    while process.poll() is None:
        if count == 1:
            children = [process.pid]
        elif len(children) < count:
            children = [child.pid for child in parent.children()]
        at: dict[int, int] = peaks[plan.exists()]
        for child in children:
            try:
                text = Path(f"/proc/{child}/status").read_text()
            except OSError:  # it has ended
                continue
            found = re.findall(r"Rss(?:Anon|Shmem):\s+(\d+) kB", text)
            at[child] = max(at.get(child, 0), sum(map(int, found)) * 1024)
        time.sleep(INTERVAL_SECONDS)
    return [*peaks[0].values()], [*peaks[1].values()]


def report(results: list[tuple[str, dict[str, Any]]]) -> str:
    """The tables of the page."""
    lines = [
        f"{len(results)} runs on {os.cpu_count()} cores, torch {torch.__version__}; MB "
        "of the process that needs the most; error is predicted / measured − 1.",
        "",
        "| | cases | median error | most under | most over |",
        "| --- | --- | --- | --- | --- |",
    ]
    for kind in ("one process", "ddp", "fsdp"):
        errors = [_error(case) for _, case in results if _kind(case) == kind]
        if errors:
            middle = statistics.median(map(abs, errors))
            lines.append(
                f"| {kind} | {len(errors)} | {middle:.1%} "
                f"| {min(errors):+.1%} | {max(errors):+.1%} |"
            )
    lines += [
        "",
        "| model | width × layers | LoRA | length | rows | checkpointing | shared by | grad_accum "
        "| planning | predicted | measured | error |",
        f"|{' --- |' * 12}",
    ]
    lines += [_line(case) for _, case in results]
    return "\n".join(lines)


def _kind(case: dict[str, Any]) -> str:
    return str(case["parallel"]) if case["processes"] > 1 else "one process"


def _error(case: dict[str, Any]) -> float:
    return float(case["predicted"] / _measured(case) - 1)


def _measured(case: dict[str, Any]) -> int:
    """Peak of the process that needed the most, from its start to its end."""
    return int(max(*case["planning"], *case["resident"]))


def _line(case: dict[str, Any]) -> str:
    shown = [
        case["arch"],
        f"{case['width']} × {case['layers']}",
        "yes" if case["lora"] else "no",
        case["length"],
        case["rows"],
        "on" if case["ckpt"] else "off",
        f"{case['processes']}, {case['parallel']}" if case["processes"] > 1 else "1",
        case["accum"],
        f"{max(case['planning']) / 1e6:.0f}",
        f"{case['predicted'] / 1e6:.0f}",
        f"{_measured(case) / 1e6:.0f}",
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


def _read(path: Path) -> dict[str, dict[str, Any]]:
    lines = path.read_text().splitlines() if path.exists() else []
    found = map(json.loads, lines)
    return {
        _key(case): {name: value for name, value in case.items() if name not in NAMES}
        for case in found
    }


if __name__ == "__main__":
    main()
