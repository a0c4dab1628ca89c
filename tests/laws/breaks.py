"""Break each law by one line and require its test to fail.

Run as a script: `python tests/laws/breaks.py`. For each entry the package and the tests are
copied, one line of the copy is changed, and the law's test must then be red; it must be green
on the unchanged copy first.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class Break:
    """One changed line, and the law that it breaks."""

    law: int
    file: str
    line: str
    broken: str


BREAKS = (
    Break(
        1,
        "checks/encoded_rows.py",
        "wrong = (chunk < 0) | (chunk >= size)",
        "wrong = chunk < 0",
    ),
    Break(
        1,
        "encode/casting.py",
        'if value.dtype.kind == "f" and not np.isfinite(narrow).all():',
        "if False:",
    ),
    Break(
        2,
        "batches/collate.py",
        'batch["attention_mask"] = _mask(lengths, batch[lead].shape[1 + place], padding_side)',
        'batch["attention_mask"] = (batch[lead] != fields[lead].pad).astype(np.int64)',
    ),
    Break(
        2,
        "encode/text/template_rendering.py",
        'part = message["content"] + ((self.end or "") if is_answer else "\\n")',
        'part = message["content"] + ("" if is_answer else "\\n")',
    ),
    Break(
        3,
        "training/step_gradients.py",
        "return step, job.pipeline.divisor(job.train, rows)",
        "return step, job.pipeline.divisor(job.train, step.share.micro_batches[0])",
    ),
    Break(
        4,
        "pipeline/evaluation.py",
        "outputs = pipeline.outputs(batch)",
        "outputs = pipeline.outputs(batch); pipeline.module.__dict__.setdefault('kept', []).append("
        "outputs)",
    ),
    Break(
        5,
        "training/loop.py",
        "seed_step(job.pipeline.seed, place.step, accelerator.process_index)",
        "pass",
    ),
    Break(
        5,
        "batches/order.py",
        "random = np.random.default_rng([batches.seed, epoch, 0xBA7C])",
        "random = np.random.default_rng()",
    ),
    Break(
        5,
        "batches/order.py",
        "return steps_of_rows(rows, batches)",
        "return steps_of_rows(np.argsort(batches.lengths), batches)",
    ),
    Break(
        5,
        "batches/window_order.py",
        "shard_rows = min(windows.shard_rows, 1 << (shard_rows.bit_length() - 1))",
        "shard_rows = windows.shard_rows",
    ),
    Break(
        6,
        "batches/window_order.py",
        "rows = _rows_at(edges, batches.seed, epoch, window)",
        "rows = np.arange(edges.num_rows)[edges.first_row(window) : edges.first_row(window + 1)]",
    ),
    Break(
        5,
        "encode/augment/augmented_copies.py",
        "rng = np.random.default_rng([self.seed, number, copy, *([] if epoch is None else "
        "[epoch])])",
        "rng = np.random.default_rng()",
    ),
    Break(6, "data/row_arrays.py", "if num_rows <= FEW_ROWS:", "if num_rows:"),
    Break(
        6,
        "encode/store.py",
        'return np.asarray(np.memmap(path, dtype, mode="r"))',
        "return np.fromfile(path, dtype)",
    ),
    Break(
        7,
        "encode/tally.py",
        "self.dropped.setdefault(skip.reason, []).append(number)",
        "pass",
    ),
    Break(
        7,
        "plan/prepare_data.py",
        'accepted, data.validation, progress=progress, stage="encoding validation rows"',
        'accepted, data.validation, copies, progress=progress, stage="encoding validation rows"',
    ),
    Break(
        8,
        "models/save_model.py",
        "load_weights(module, str(path))",
        "str(path)",
    ),
    Break(
        8,
        "models/lora_files.py",
        'tensors = {f"{PREFIX}{k}": v.detach().cpu().contiguous() for k, v in state.items()}',
        "tensors = {k: v.detach().cpu().contiguous() for k, v in state.items()}",
    ),
    Break(
        5,
        "encode/augment/array_augment.py",
        "return np.random.default_rng([self.seed, epoch, number, copy, PURPOSE, *more])",
        "return np.random.default_rng()",
    ),
    Break(
        9,
        "atomic.py",
        'return path.with_name(f".{path.name}.{uuid.uuid4().hex[:8]}.tmp")',
        "return path",
    ),
    Break(
        9,
        "digests.py",
        "if found != digest:",
        "if False:",
    ),
    Break(
        9,
        "data/remote/download.py",
        "if file.size is not None and found != file.size:",
        "if False:",
    ),
    Break(
        10,
        "config/bounded_yaml.py",
        "class _BoundedLoader(yaml.SafeLoader):",
        "class _BoundedLoader(yaml.UnsafeLoader):",
    ),
    Break(
        10,
        "data/remote/remote_url.py",
        'if "::" in url.partition("//")[0] or protocol not in PACKAGES:',
        "if False:",
    ),
    Break(
        10,
        "report/page.py",
        'cells = (found["message"], where, found["fix"])',
        'escape = str; cells = (found["message"], where, found["fix"])',
    ),
    Break(
        10,
        "user_code/run_code.py",
        "raise self._not_named(name)",
        "return import_object(name, self._folders())",
    ),
    Break(
        10,
        "user_code/run_code.py",
        "return hash_folder(Path(place)) in record.remote",
        "return True",
    ),
    Break(
        11,
        "cli/__init__.py",
        "return _fail(error.lines, error.fix, error.exit_code, as_json, is_told)",
        "raise",
    ),
    Break(
        12,
        "tasks/column_account.py",
        "return {name: role_of.get(name) for name in columns}",
        "return {name: role_of[name] for name in columns if name in role_of}",
    ),
    Break(
        12,
        "plan/stages.py",
        "kept_where = planner.keep(check_unread(table, planner.plan, config.columns))",
        "kept_where = None",
    ),
    Break(
        12,
        "data/formats/tar_shards.py",
        "self.left_out.add(what, member.name)",
        "pass",
    ),
    Break(
        12,
        "tasks/choose_task.py",
        "refuse_preference(table, chosen)",
        "pass",
    ),
)


def copy_project(folder: Path) -> None:
    """The package and the tests, without caches."""
    ignore = shutil.ignore_patterns("__pycache__")
    for name in ("surefit", "tests"):
        shutil.copytree(ROOT / name, folder / name, ignore=ignore)
    shutil.copy(ROOT / "pyproject.toml", folder)


def run_law(folder: Path, law: int) -> subprocess.CompletedProcess[str]:
    """Run the tests of one law on a copy of the project."""
    tests = sorted((folder / "tests" / "laws").glob(f"test_law_{law:02d}_*.py"))
    assert tests, f"law {law} has no test"
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-x",
        "-p",
        "no:cacheprovider",
        *map(str, tests),
    ]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(folder)}
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)


def apply(change: Break, folder: Path) -> None:
    """Change the one line."""
    path = folder / "surefit" / change.file
    text = path.read_text(encoding="utf-8")
    if text.count(change.line) != 1:
        raise SystemExit(f"{change.file} has {text.count(change.line)} lines {change.line!r}")
    path.write_text(text.replace(change.line, change.broken), encoding="utf-8")


def turns_red(change: Break, folder: Path) -> bool:
    """Whether a copy of the project with the one change fails its law's test."""
    copy_project(folder)
    apply(change, folder)
    red = run_law(folder, change.law).returncode == 1
    told = "red, as it must be" if red else "SURVIVED"
    print(f"law {change.law:>2}: {told}: {change.line}", flush=True)
    return red


def main() -> int:
    """Apply every break; 0 if all of them turned their law's test red."""
    laws = sorted({change.law for change in BREAKS})
    with (
        tempfile.TemporaryDirectory() as temporary,
        ThreadPoolExecutor(os.cpu_count()) as pool,
    ):
        whole = Path(temporary) / "whole"
        copy_project(whole)
        for law, result in zip(laws, pool.map(partial(run_law, whole), laws), strict=True):
            if result.returncode != 0:
                print(f"law {law}: red without any change\n{result.stdout[-2000:]}")
                return 1
        folders = [Path(temporary) / str(number) for number in range(len(BREAKS))]
        red = list(pool.map(turns_red, BREAKS, folders))
    survived = [change for change, is_red in zip(BREAKS, red, strict=True) if not is_red]
    passed = len(BREAKS) - len(survived)
    print(f"{passed} passed, {len(survived)} failed")
    return 1 if survived or laws != list(range(1, 13)) else 0


if __name__ == "__main__":
    sys.exit(main())
