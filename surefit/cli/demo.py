"""`surefit demo`: check, train and predict on generated data."""

from __future__ import annotations

import json
import random
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
    "epochs": 6,
    "batch_size": 32,
    "max_seq_length": 32,
    "lr": 1e-3,
    "output": str(FOLDER),
    "eval_at_start": True,
    "eval_every": 250,
    "generate": {"rows": 300, "max_new_tokens": 12},
}


def demo() -> int:
    """Generate an instruction data set, check it, train a small model."""
    from surefit.cli.display import Display, show_plan
    from surefit.request import make_request
    from surefit.training.run import start_run
    from surefit.training.work import Listeners

    _write_rows()
    _remove_earlier()
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
    from surefit.core import files
    from surefit.errors import UsageError
    from surefit.run.run_folder import check_writable

    check_writable(DATA.parent)
    DATA.parent.mkdir(parents=True, exist_ok=True)
    rows = make_rows(seed=0, num_rows=NUM_ROWS)
    content = "".join(json.dumps(row) + "\n" for row in rows).encode()
    if not DATA.exists():
        files.write_bytes(DATA, content)
    elif not DATA.is_file() or DATA.read_bytes() != content:
        raise UsageError(
            f"{DATA} is not the data that this demo writes, and is not replaced.",
            "Move it away, or run the demo in another folder.",
        )


def _remove_earlier() -> None:
    """Delete the run of an earlier demo; `start_run` refuses a folder that holds anything else."""
    from surefit.core import digests, files
    from surefit.core.locks import WRITTEN
    from surefit.run.run_folder import Run, is_run

    if FOLDER.is_symlink() or not is_run(FOLDER) or digests.find_damage(FOLDER):
        return
    run = Run(FOLDER)
    parts = [*run.checkpoints.glob("*"), *FOLDER.glob("model"), *FOLDER.glob("failures/*")]
    is_ours = run.config.data == (str(DATA.resolve()),) and all(map(files.is_own, parts))
    if is_ours and {path.name for path in FOLDER.iterdir()} <= {*WRITTEN}:
        files.mark(FOLDER)
        files.delete(FOLDER)


def _show(run: Run) -> None:
    from rich.table import Table

    from surefit.cli.terminal import as_line, to_stdout
    from surefit.errors import shell

    evals = [event for event in run.history if event["event"] == "eval"]
    before, after = evals[0], evals[-1]
    console = to_stdout()
    table = Table("prompt", "expected", "before", "after", title="Validation rows")
    for old, new in zip(before["samples"], after["samples"], strict=True):
        cells = (new["prompt"], new["expected"], old["got"], new["got"])
        short = (cell if len(cell) <= 60 else f"{cell[:59]}…" for cell in cells)
        table.add_row(*map(as_line, short))
    console.print(table)
    for name in ("loss", "token_f1", "exact_match"):
        first, last = before["metrics"][name], after["metrics"][name]
        console.print(as_line(f"{name:<16}{first:.4f} → {last:.4f}"))
    console.print(as_line(f"{'run':<16}{run.path}"))
    console.print(as_line(f"{'report':<16}{run.path / 'report.html'}"))
    question = "What are the opposites of hot and slow?"
    console.print(as_line(f"{'try':<16}surefit predict {shell(run.path)} --text '{question}'"))


NUM_EMPTY_ROWS = 6
NUM_OVERLONG_ROWS = 5
NUM_FILLER_WORDS = 300


def _words(text: str) -> list[str]:
    return text.split()


THINGS = _words(
    "apple bell boat book bread chair cloud coat door drum fish flag fork glass hat horse key lamp "
    "leaf lemon map nest pen plum ring rope shoe spoon star stone table tree"
)
NAMES = ("Anna", "Ben", "Clara", "David", "Emma", "Felix", "Grace", "Hugo", "Ida", "Jonas")
COLOURS = ("red", "blue", "green", "black", "white", "yellow")
PAIRS = _words(
    "hot/cold big/small fast/slow early/late old/new wet/dry high/low full/empty hard/soft "
    "loud/quiet rich/poor open/closed long/short clean/dirty heavy/light near/far"
)
OPPOSITES = dict(pair.split("/") for pair in PAIRS)
OPPOSITES |= {other: word for word, other in OPPOSITES.items()}
SKILLS = {
    "last word": (
        "What is the last word of: {words}",
        "Give me only the final word here: {words}",
        "Which word ends this list? {words}",
    ),
    "opposites": (
        "What are the opposites of {first} and {second}?",
        "Say the contrary of {first} and {second}.",
        "Something is neither {first} nor {second}. What is it instead?",
    ),
    "largest": (
        "Which number is the largest: {numbers}?",
        "Out of {numbers}, name the maximum.",
    ),
    "recall": (
        "{name} has {owned}. What does {name} have?",
        "Yesterday {name} bought {owned} in town. Tell me what {name} bought.",
        "There is {owned} in the house of {name}. What is in the house?",
    ),
}
"""What the rows ask for, in several wordings each."""


def make_rows(seed: int, num_rows: int) -> list[dict[str, str]]:
    """Make rows of prompt, completion and skill, a few of them empty and a few overlong.

    >>> make_rows(seed=0, num_rows=100) == make_rows(seed=0, num_rows=100)
    True
    >>> sorted(make_rows(seed=0, num_rows=100)[0])
    ['completion', 'prompt', 'skill']
    """
    rng = random.Random(seed)
    rows = [_make_row(rng) for _ in range(num_rows)]
    faulty = rng.sample(range(num_rows), NUM_EMPTY_ROWS + NUM_OVERLONG_ROWS)
    for count, position in enumerate(faulty[:NUM_EMPTY_ROWS]):
        rows[position]["prompt" if count % 2 else "completion"] = ""
    for position in faulty[NUM_EMPTY_ROWS:]:
        things = ", ".join(rng.choices(THINGS, k=NUM_FILLER_WORDS))
        rows[position]["prompt"] = f"The shop sells {things}. {rows[position]['prompt']}"
    return rows


def _make_row(rng: random.Random) -> dict[str, str]:
    words, numbers = rng.sample(THINGS, rng.randint(3, 6)), rng.sample(range(1, 31), 3)
    first, second = rng.sample([*OPPOSITES], 2)
    name, owned = rng.choice(NAMES), f"a {rng.choice(COLOURS)} {rng.choice(THINGS)}"
    answers = {
        "last word": words[-1],
        "opposites": f"{OPPOSITES[first]} and {OPPOSITES[second]}",
        "largest": str(max(numbers)),
        "recall": owned,
    }
    skill = rng.choice([*SKILLS])
    prompt = rng.choice(SKILLS[skill]).format(
        words=" ".join(words),
        first=first,
        second=second,
        numbers=", ".join(map(str, numbers)),
        name=name,
        owned=owned,
    )
    return {"prompt": prompt, "completion": answers[skill], "skill": skill}
