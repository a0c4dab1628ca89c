"""Break each law by one line and require its test to fail.

Run as a script: `python tests/laws/breaks.py`. For each entry the package and the tests are
copied, one line of the copy is changed, and the law's test must then be red; it must be green
on the unchanged copy. Each copy is tested by a fork of this process, one per core, which has
imported what the package imports, and nothing of the package.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")

import hypothesis  # noqa: F401
import peft  # noqa: F401
import pyarrow.parquet  # noqa: F401
import pytest
from transformers import BertForSequenceClassification, LlamaForCausalLM  # noqa: F401

ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class Break:
    """One changed line, and the law that it breaks."""

    law: int
    file: str
    line: str
    broken: str
    test: str
    """The quickest test of the law that fails then."""

    def test_file(self, folder: Path) -> Path:
        """The tests of the law in a copy of the project."""
        (found,) = (folder / "tests" / "laws").glob(f"test_law_{self.law:02d}_*.py")
        return found


BREAKS = (
    Break(
        1,
        "checks/encoded_rows.py",
        "wrong = (chunk < 0) | (chunk >= size)",
        "wrong = chunk < 0",
        "test_fault_is_a_finding_with_its_row[id beyond the vocabulary]",
    ),
    Break(
        1,
        "encode/casting.py",
        'if value.dtype.kind == "f" and not np.isfinite(narrow).all():',
        "if False:",
        "test_fault_is_a_finding_with_its_row[not a number]",
    ),
    Break(
        2,
        "batches/collate.py",
        'batch["attention_mask"] = _mask(lengths, batch[lead].shape[1 + place], padding_side)',
        'batch["attention_mask"] = (batch[lead] != fields[lead].pad).astype(np.int64)',
        "test_mask_of_encoded_rows_ignores_the_pad_id",
    ),
    Break(
        2,
        "encode/text/template_rendering.py",
        'part = message["content"] + ((self.end or "") if is_answer else "\\n")',
        'part = message["content"] + ("" if is_answer else "\\n")',
        "test_every_row_learns_its_eos_though_eos_pads",
    ),
    Break(
        3,
        "training/step.py",
        "return step, job.pipeline.divisor(job.train, rows)",
        "return step, job.pipeline.divisor(job.train, step.share.micro_batches[0])",
        "test_accumulated_gradient_is_that_of_one_batch[4-2-dtype1-1e-10]",
    ),
    Break(
        4,
        "pipeline/evaluation.py",
        "outputs = pipeline.predicted(batch)",
        "outputs = pipeline.predicted(batch); pipeline.module.__dict__.setdefault('kept', [])."
        "append(outputs)",
        "test_tensors_alive_do_not_grow_with_the_rows_evaluated",
    ),
    Break(
        5,
        "training/loop.py",
        "seed_step(job.pipeline.seed, place.step, accelerator.process_index)",
        "pass",
        "test_resumed_run_equals_the_uninterrupted_one[7]",
    ),
    Break(
        5,
        "batches/keyed_permutation.py",
        "state = np.random.SeedSequence(self.key).generate_state(ROUNDS, np.uint64)",
        "state = np.random.SeedSequence().generate_state(ROUNDS, np.uint64)",
        "test_every_row_once_per_epoch_and_the_same_each_time",
    ),
    Break(
        5,
        "batches/cut_steps.py",
        "rows: Rows = row_order(batches, epoch).rows(int(starts[0]), int(starts[-1]))",
        "rows: Rows = np.argsort(batches.lengths)[int(starts[0]) : int(starts[-1])]",
        "test_epochs_and_seeds_differ",
    ),
    Break(
        5,
        "batches/cut_steps.py",
        "block_rows = min(batches.block_rows, 1 << (block_rows.bit_length() - 1))",
        "block_rows = batches.block_rows",
        "test_a_step_of_blocks_is_a_random_draw_even_of_sorted_rows[shape1]",
    ),
    Break(
        6,
        "batches/cut_steps.py",
        "rows: Rows = row_order(batches, epoch).rows(int(starts[0]), int(starts[-1]))",
        "rows: Rows = row_order(batches, epoch).rows(0, len(batches.lengths))"
        "[int(starts[0]) : int(starts[-1])]",
        "test_the_order_takes_no_memory_per_row",
    ),
    Break(
        5,
        "encode/augment/augmented_copies.py",
        "rng = np.random.default_rng([self.seed, number, copy, *([] if epoch is None else "
        "[epoch])])",
        "rng = np.random.default_rng()",
        "test_views_are_drawn_alike_each_time",
    ),
    Break(
        6,
        "data/row_arrays.py",
        "if num_rows <= FEW_ROWS:",
        "if num_rows:",
        "test_the_rows_of_a_split_are_mapped",
    ),
    Break(
        6,
        "encode/store.py",
        'return np.asarray(np.memmap(path, dtype, mode="r"))',
        "return np.fromfile(path, dtype)",
        "test_columns_are_memory_mapped",
    ),
    Break(
        7,
        "encode/tally.py",
        "self.dropped.setdefault(skip.reason, []).append(number)",
        "pass",
        "test_truncation_and_dropping_are_counted",
    ),
    Break(
        7,
        "plan/prepare_data.py",
        'accepted, data.validation, progress=progress, stage="encoding validation rows"',
        'accepted, data.validation, copies, progress=progress, stage="encoding validation rows"',
        "test_views_are_counted_and_rows_to_evaluate_on_have_none",
    ),
    Break(
        8,
        "models/save_model.py",
        "load_weights(module, str(path))",
        "str(path)",
        "test_own_module_object_is_given_again",
    ),
    Break(
        8,
        "models/lora_files.py",
        'tensors = {f"{PREFIX}{k}": v.detach().cpu().contiguous() for k, v in state.items()}',
        "tensors = {k: v.detach().cpu().contiguous() for k, v in state.items()}",
        "test_adapters_load_in_plain_peft",
    ),
    Break(
        5,
        "encode/augment/array_augment.py",
        "return np.random.default_rng([self.seed, epoch, number, copy, PURPOSE, *more])",
        "return np.random.default_rng()",
        "test_resumed_run_with_augmented_images_equals_the_uninterrupted_one",
    ),
    Break(
        9,
        "core/files.py",
        'return path.with_name(f".{path.name}.{uuid.uuid4().hex[:8]}.tmp")',
        "return path",
        "test_old_file_survives_a_failed_write",
    ),
    Break(
        9,
        "core/digests.py",
        "if found != digest:",
        "if False:",
        "test_a_flipped_bit_is_seen_when_a_checkpoint_is_read",
    ),
    Break(
        9,
        "data/remote/remote_files.py",
        "if file.size is not None and found != file.size:",
        "if False:",
        "test_half_a_download_is_no_file",
    ),
    Break(
        10,
        "core/foreign.py",
        "class _BoundedLoader(yaml.SafeLoader):",
        "class _BoundedLoader(yaml.UnsafeLoader):",
        "test_config_cannot_make_objects",
    ),
    Break(
        10,
        "data/remote/remote_url.py",
        'if "::" in url.partition("//")[0] or protocol not in PACKAGES:',
        "if False:",
        "test_urls_lead_to_the_files_they_name",
    ),
    Break(
        10,
        "report/page.py",
        'cells = (found["message"], where, found["fix"])',
        'escape = str; cells = (found["message"], where, found["fix"])',
        "test_report_escapes_what_comes_from_the_data",
    ),
    Break(
        10,
        "user_code/run_code.py",
        "raise self._not_named(name)",
        "return import_object(name, self._folders())",
        "test_run_folder_brings_neither_code_nor_permission",
    ),
    Break(
        10,
        "user_code/run_code.py",
        "return hash_folder(Path(place)) in record.remote",
        "return True",
        "test_record_of_one_model_does_not_allow_the_code_of_another",
    ),
    Break(
        11,
        "cli/__init__.py",
        "return _fail(error.lines, error.fix, error.exit_code, as_json, is_told)",
        "raise",
        "test_mistake_gets_a_message_and_an_exit_code[missing file]",
    ),
    Break(
        12,
        "tasks/numeric_columns.py",
        "return {name: role_of.get(name) for name in columns}",
        "return {name: role_of[name] for name in columns if name in role_of}",
        "test_columns_of_the_validation_data_are_accounted_for",
    ),
    Break(
        12,
        "plan/stages.py",
        "kept_where = planner.keep(check_unread(table, planner.plan, config.columns))",
        "kept_where = None",
        "test_what_would_be_misread_is_refused[rows2-SF131]",
    ),
    Break(
        12,
        "data/formats/tar_shards.py",
        "self.left_out.add(what, member.name)",
        "pass",
        "test_members_of_a_tar_file_that_are_not_read_are_named",
    ),
    Break(
        12,
        "pipeline/evaluation.py",
        "outputs = pipeline.predicted(batch)",
        "outputs = pipeline.outputs(batch)",
        "test_metrics_use_the_outputs_of_the_call_that_prediction_makes",
    ),
    Break(
        12,
        "plan/job_stages.py",
        "planner.note(probe_targets(probed, train))",
        "pass",
        "test_no_logit_moves_with_a_target_in_the_training_call[number]",
    ),
    Break(
        12,
        "tasks/choose_task.py",
        "refuse_preference(table, chosen)",
        "pass",
        "test_what_would_be_misread_is_refused[rows0-SF130]",
    ),
    Break(
        13,
        "core/files.py",
        "return text in expected",
        "return True",
        "test_what_a_user_put_into_the_cache_stays",
    ),
    Break(
        13,
        "core/files.py",
        "if os.path.islink(path):",
        "if False:",
        "test_a_link_in_a_run_is_not_followed[events.jsonl]",
    ),
    Break(
        13,
        "cli/__init__.py",
        'os.environ["PYTHONSAFEPATH"] = "1"',
        'os.environ["PYTHONSAFEPATH"] = ""',
        "test_processes_do_not_import_from_the_working_folder",
    ),
)


def copy_project(folder: Path) -> None:
    """The package and the tests, without caches."""
    ignore = shutil.ignore_patterns("__pycache__")
    for name in ("surefit", "tests"):
        shutil.copytree(ROOT / name, folder / name, ignore=ignore)
    shutil.copy(ROOT / "pyproject.toml", folder)


def apply(change: Break, folder: Path) -> None:
    """Change the one line."""
    path = folder / "surefit" / change.file
    text = path.read_text(encoding="utf-8")
    if text.count(change.line) != 1:
        raise SystemExit(f"{change.file} has {text.count(change.line)} lines {change.line!r}")
    path.write_text(text.replace(change.line, change.broken), encoding="utf-8")


def start(change: Break | None, folder: Path) -> int:
    """Fork a process that runs the test of a break, or those of all, on a copy of the project."""
    copy_project(folder)
    if change is not None:
        apply(change, folder)
    if pid := os.fork():
        return pid
    changes = BREAKS if change is None else [change]
    named = {f"{each.test_file(folder)}::{each.test}" for each in changes}
    os.chdir(folder)
    sys.path.insert(0, str(folder))
    os.environ["PYTHONPATH"] = str(folder)
    with (folder / "said").open("w") as said:
        os.dup2(said.fileno(), 1)
        os.dup2(said.fileno(), 2)
    code = 3
    try:
        code = pytest.main(["-q", "-x", "-p", "no:cacheprovider", *sorted(named)])
    finally:
        sys.stdout.flush()
        os._exit(code)


def main() -> int:
    """Apply every break; 0 if all of them turned their test red, and it was green before."""
    waiting: list[Break | None] = [None, *BREAKS]
    running: dict[int, tuple[Break | None, Path]] = {}
    failed = 0
    with tempfile.TemporaryDirectory() as temporary:
        while waiting or running:
            if waiting and len(running) < (os.cpu_count() or 1):
                folder = Path(temporary) / str(len(waiting))
                change = waiting.pop(0)
                running[start(change, folder)] = (change, folder)
                continue
            pid, status = os.wait()
            (change, folder), code = running.pop(pid), os.waitstatus_to_exitcode(status)
            good = code == (change is not None)
            failed += not good
            name = f"law {change.law:>2}: {change.line}" if change else "unchanged"
            print(f"{'as it must be' if good else 'WRONG'}: exit code {code}: {name}", flush=True)
            if not good:
                print((folder / "said").read_text(encoding="utf-8")[-2000:])
            shutil.rmtree(folder)
    print(f"{len(BREAKS) + 1 - failed} passed, {failed} failed")
    return 1 if failed or {change.law for change in BREAKS} != {*range(1, 14)} else 0


if __name__ == "__main__":
    sys.exit(main())
