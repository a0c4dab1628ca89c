"""Reward accuracy on rows that training has not seen, beside what length alone reaches.

python bench/preference_accuracy.py [--model NAME] [--length 512] [--page docs/preference.md]

DPO and ORPO train on pairs, KTO on single answers that are good or bad, each with LoRA r = 16. 30 %
of the rows are held out. The accuracy is that of the last evaluation, so that none is chosen by the
rows it is measured on; the error is the standard error of a share of that many rows.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
from trainers import SHARED, gguf_path

DATA = SHARED / "data" / "preference"
METHODS = {"dpo": "dpo_en_demo.json", "orpo": "dpo_en_demo.json", "kto": "kto_en_demo.json"}
START, END = "<!-- preference_accuracy -->", "<!-- /preference_accuracy -->"


def measure(method: str, args: argparse.Namespace, folder: str) -> dict[str, Any]:
    """Train by a method; return what was reached on the held-out rows."""
    import surefit

    run = surefit.train(
        data=str(DATA / METHODS[method]),
        model=args.model or str(gguf_path()),
        task="preference",
        preference={"method": method},
        lora_r=16,
        lr=args.lr,
        epochs=args.epochs,
        batch_size=args.batch,
        max_seq_length=args.length,
        max_dropped_share=1,
        eval_share=0.3,
        eval_at_start=True,
        generate={"rows": 0},
        output=f"{folder}/{method}",
        quiet=True,
    )
    evaluations = [event["metrics"] for event in run.history if event["event"] == "eval"]
    [(by, baseline)] = [
        (name, figures["reward_accuracy"])
        for name, figures in run.plan["baselines"].items()
        if "reward_accuracy" in figures
    ]
    rows = run.plan["ledger"]["eval_rows"]
    reached = evaluations[-1]["reward_accuracy"]
    return {
        "method": method,
        "rows": f"{run.plan['ledger']['train_rows']} + {rows}",
        "length alone": f"{baseline:.3f} ({by})",
        "reached": f"{reached:.3f} ± {math.sqrt(reached * (1 - reached) / rows):.3f}",
        "margin": f"{evaluations[0]['reward_margin']:.3f} → {evaluations[-1]['reward_margin']:.3f}",
    }


def main() -> None:
    """Measure each method, print, and write the table into the page."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", help="SmolLM2-135M-Instruct, if none is given")
    parser.add_argument("--length", type=int, default=512)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--lr", type=float, default=2e-4)
    parser.add_argument("--methods", nargs="*", default=[*METHODS], choices=[*METHODS])
    parser.add_argument("--page", type=Path)
    args = parser.parse_args()
    found = []
    with tempfile.TemporaryDirectory() as folder:
        for method in args.methods:
            found.append(measure(method, args, folder))
            print(json.dumps(found[-1], ensure_ascii=False), flush=True)
    load = f"{os.getloadavg()[0]:.1f} on {os.cpu_count()} cores"
    print(f"load of the machine at the end: {load}")
    if args.page is not None:
        names = ("method", "rows", "length alone", "reached", "margin")
        lines = [f"| {' | '.join(names)} |", f"|{' --- |' * len(names)}"]
        lines += [f"| {' | '.join(str(each[name]) for name in names)} |" for each in found]
        page = args.page.read_text(encoding="utf-8")
        before, rest = page.split(START)
        table = "\n".join(lines)
        made = f"{before}{START}\n{table}\n{END}{rest.split(END)[1]}"
        args.page.write_text(made, encoding="utf-8")


if __name__ == "__main__":
    main()
