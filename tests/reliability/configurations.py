"""The runs that are disturbed, each of a few seconds, and how a run is compared with another."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import children

from builders import echo_rows, feature_rows, save_ragged, sentiment_rows, write_jsonl, write_module

OUTPUT = "run"


@dataclass(frozen=True)
class Configuration:
    """One kind of run."""

    options: str
    processes: int = 1

    @property
    def arguments(self) -> list[str]:
        """The command that starts it."""
        return ["train", *self.options.split(), "--output", OUTPUT]


SHORT = "--set generate.rows=2 --set generate.max_new_tokens=4"
NET = "--data data.npz --model net:make --lr 0.01"
SAVED = "--set save_every=3 --set eval_every=5"
CONFIGURATIONS = {
    "features": Configuration(f"{NET} --max-tokens 64 --max-steps 12 {SAVED}"),
    "lora": Configuration(
        "--data rows.jsonl --model tiny:llama --lora-r 4 --augmentation-factor 2 --grad-accum 2"
        f" --batch-size 4 --max-steps 9 {SHORT} {SAVED}"
    ),
    "workers": Configuration(
        "--data texts.jsonl --model tiny:bert --batch-size 4 --epochs 2 --set workers=2"
        " --set save_every=4 --set eval_every=9"
    ),
    "two processes": Configuration(
        f"{NET} --batch-size 4 --epochs 2 --set save_every=4 --set eval_every=6", processes=2
    ),
    "early stopping": Configuration(
        f"{NET} --lr 0.3 --batch-size 4 --epochs 30 --set early_stopping.patience=3"
        " --set save_every=7 --set eval_every=5"
    ),
}


def prepare(folder: Path) -> Path:
    """A folder with the data of all configurations."""
    folder.mkdir(parents=True)
    write_jsonl(folder / "rows.jsonl", echo_rows(50))
    write_jsonl(folder / "texts.jsonl", sentiment_rows(80))
    save_ragged(folder / "data.npz", feature_rows(100))
    write_module(folder, dropout=0.2)
    return folder


def go_on(folder: Path) -> list[str]:
    """The options with which a user continues: --resume, or the same start where none began."""
    from surefit.run.run_folder import is_unbegun

    run = folder / OUTPUT
    begun = (run / "plan.json").exists() and (run / "config.yaml").exists()
    return ["train", "--resume", OUTPUT] if begun and not is_unbegun(run) else []


def finish(
    configuration: Configuration, folder: Path, fault: children.Fault | None = None, **more: Any
) -> children.Child:
    """Continue a run in a new process, to its end."""
    arguments = go_on(folder) or configuration.arguments
    return children.run(folder, arguments, fault, processes=configuration.processes, **more)


def continued(configuration: Configuration, folder: Path, undisturbed: Path) -> list[str]:
    """Continue a run to its end; in what it differs from the undisturbed one, and what is left."""
    child = finish(configuration, folder)
    if wrong := children.unfit_messages(child, 0):
        return [f"continued: {each}" for each in wrong]
    wrong = differences(folder / OUTPUT, undisturbed / OUTPUT)
    return wrong + [f"{name} is left over" for name in stray_files(folder)]


def differences(run: Path, reference: Path) -> list[str]:
    """In what a finished run differs from an undisturbed one; times and ids are not compared."""
    if not (run / "events.jsonl").is_file():
        return ["there are no events"]
    found = []
    events, expected = (_events(each) for each in (run, reference))
    if events != expected:
        first = next(
            (n for n, pair in enumerate(zip(events, expected, strict=False)) if pair[0] != pair[1]),
            min(len(events), len(expected)),
        )
        found.append(f"events differ from number {first} on ({len(events)}, {len(expected)})")
    ours, theirs = _names(run), _names(reference)
    found += [f"{name} is missing" for name in sorted(theirs - ours)]
    found += [f"{name} is left over" for name in sorted(ours - theirs)]
    for name in sorted(ours & theirs):
        binary = name.startswith(("model/", "checkpoints/"))
        if binary and (run / name).read_bytes() != (reference / name).read_bytes():
            found.append(f"{name} differs")
    return found


def stray_files(folder: Path) -> list[str]:
    """Temporary files that nobody will ever remove, in the folder of a command and its cache.

    Of a killed process with workers, the empty folder of Python's multiprocessing may stay; the
    temporary of a record in `state/`, which other runs share, is removed an hour later.
    """
    places = (folder / OUTPUT, folder / "cache")
    found = [path for place in places for path in place.rglob(".*") if _is_temporary(path)]
    found += (path for path in (folder / "tmp").iterdir() if not path.name.startswith("pymp-"))
    return sorted(path.relative_to(folder).as_posix() for path in found)


def _is_temporary(path: Path) -> bool:
    return path.name.endswith((".tmp", ".half", ".lock"))


def _events(run: Path) -> list[Any]:
    lines = (run / "events.jsonl").read_text(encoding="utf-8").split("\n")
    return [{**json.loads(line), "seconds": 0} for line in lines if line]


def _names(run: Path) -> set[str]:
    files = (path for path in run.rglob("*") if path.is_file())
    names = {path.relative_to(run).as_posix() for path in files}
    return {name for name in names if not name.startswith("failures/")}
