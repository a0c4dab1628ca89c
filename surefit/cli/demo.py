"""`surefit demo`: check, train and predict on generated data."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from surefit.plan.plan import Plan
    from surefit.run.run_folder import Run

FOLDER = Path("runs/demo")
DATA = Path("runs/demo-data/instructions.jsonl")
NUM_ROWS = 3000
SETTINGS: dict[str, Any] = {
    "data": str(DATA),
    "model": "tiny:llama",
    "task": "sft",
    "epochs": 12,
    "batch_size": 32,
    "max_seq_length": 32,
    "lr": 1e-3,
    "output": str(FOLDER),
    "eval_at_start": True,
    "eval_every": 250,
    "generate": {"rows": 300, "max_new_tokens": 12},
}


def command() -> int:
    """Generate an instruction data set, check it, train a small model."""
    from surefit.cli.display import Display, show_plan
    from surefit.request import make_request
    from surefit.training.start import Listeners, start_run

    _write_rows()
    if FOLDER.exists():
        shutil.rmtree(FOLDER)
    with Display() as display:
        display.console.print(f"Wrote {NUM_ROWS} rows to {DATA}. `surefit check` reports:\n")

        def on_plan(plan: Plan, folder: Path) -> None:
            display.expect(plan)
            show_plan(plan, display.console)
            display.console.print("\nTraining:\n")

        listeners = Listeners((display.observe,), display.progress, on_plan)
        run = start_run(make_request(SETTINGS), listeners)
    _show(run)
    return 0


def _write_rows() -> None:
    from surefit import atomic
    from surefit.cli.demo_data import make_rows
    from surefit.run.run_folder import check_writable

    check_writable(DATA.parent)
    DATA.parent.mkdir(parents=True, exist_ok=True)
    rows = make_rows(seed=0, num_rows=NUM_ROWS)
    atomic.write_text(DATA, "".join(json.dumps(row) + "\n" for row in rows))


def _show(run: Run) -> None:
    from rich.table import Table

    from surefit.cli.guarded_console import as_line, to_stdout

    evals = [event for event in run.history if event["event"] == "eval"]
    before, after = evals[0], evals[-1]
    console = to_stdout()
    table = Table("prompt", "expected", "before", "after", title="Validation rows")
    for old, new in zip(before["samples"], after["samples"], strict=True):
        cells = (new["prompt"], new["expected"], old["got"], new["got"])
        table.add_row(*(as_line(_short(cell)) for cell in cells))
    console.print(table)
    for name in ("loss", "token_f1", "exact_match"):
        first, last = before["metrics"][name], after["metrics"][name]
        console.print(as_line(f"{name:<16}{first:.4f} → {last:.4f}"))
    console.print(as_line(f"{'run':<16}{run.path}"))
    console.print(as_line(f"{'report':<16}{run.path / 'report.html'}"))
    question = "What are the opposites of hot and slow?"
    console.print(as_line(f"{'try':<16}surefit predict {run.path} --text '{question}'"))


def _short(text: str) -> str:
    return text if len(text) <= 60 else f"{text[:59]}…"
