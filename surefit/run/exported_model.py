"""A model that `surefit export` wrote: opened, evaluated and predicted with as a run is.

It is a folder for plain transformers or peft. Beside their files it has encoder.json, how rows are
read, and surefit.json, what of the run's config and plan evaluation and prediction need. It has no
code, and no permission to run any.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any

from surefit.core import digests, files
from surefit.core.files import refuse_special_inside
from surefit.core.foreign import content_of, read_json
from surefit.core.locks import scratch_folder
from surefit.data.cache import use_cache
from surefit.data.formats.numpy_files import as_stored
from surefit.data.open_data import open_table
from surefit.errors import UsageError
from surefit.inputs import encoder
from surefit.run.run_folder import Run, check_plan, check_writable, is_run, open_run

FILE = "surefit.json"
ONNX = "model.onnx"
FORMAT_VERSION = 1
KEPT_SETTINGS = (
    *("task", "read", "on_bad_file", "batch_size", "max_tokens", "epochs"),
    *("generate", "precision", "deterministic", "seed"),
)
KEPT_OF_PLAN = ("task", "precision", "choices", "model", "objects", "steps")


class ExportedModel(Run):
    """An exported model in place of the run that it was exported from."""

    @property
    def model_path(self) -> Path:
        """Return the folder itself."""
        return self.path

    @cached_property
    def _stored(self) -> dict[str, Any]:
        path = self.path / FILE
        if not path.is_file():  # written by version 0.4.0, or the model/ of a run
            task = encoder.read_encoder(self.path).task
            return {"plan": {"task": task, "model": {}, "steps": 0}}
        with content_of(path):
            about = read_json(path, dict[str, Any])
            version = about["format_version"]
        if version != FORMAT_VERSION:
            message = f"{path} was written by another version of surefit."
            raise UsageError(message, "Use the version that wrote it.")
        return about

    @cached_property
    def _settings(self) -> dict[str, Any]:
        with content_of(self.path / FILE):
            stored = dict(self._stored.get("config", {}))
            return {name: stored[name] for name in KEPT_SETTINGS if name in stored}

    @property
    def plan(self) -> dict[str, Any]:
        """Return what the export kept of the run's plan."""
        with content_of(self.path / FILE):
            return check_plan(self._stored["plan"], self.path / FILE)


def open_trained(path: str | Path, trust_code: Iterable[str] = ()) -> Run:
    """Return a run, or an exported model."""
    folder = Path(path)
    if is_run(folder) or not os.path.isfile(folder / encoder.FILE):
        return open_run(folder, trust_code)
    refuse_special_inside(folder)
    if os.path.isfile(folder / ONNX):
        raise UsageError(
            f"{folder} is an ONNX export, which onnxruntime runs and surefit does not open.",
            "Give the folder of the run, or an export without --to onnx.",
        )
    return ExportedModel(folder, trust_code=frozenset(trust_code))


def export_model(run: Run, out: Path, merge: bool = False) -> None:
    """Write a run's trained model to a folder that does not exist yet, or is empty."""
    from surefit.models.lora_files import has_adapters, point_to_base
    from surefit.models.save_model import write_merged

    _refuse_taken(run, out)
    model = run.model_path
    with _new_folder(out) as temporary:
        if merge and has_adapters(model):
            write_merged(model, run.task, temporary, run.code)
        else:
            without_digests = shutil.ignore_patterns(digests.FILE)  # of the run
            shutil.copytree(model, temporary, ignore=without_digests, dirs_exist_ok=True)
            point_to_base(temporary, out)
        files.write_json(temporary / FILE, _about(run))


@contextmanager
def _new_folder(out: Path) -> Iterator[Path]:
    """Give a folder to fill; what a killed export leaves is removed by the next one there."""
    with (
        scratch_folder(out) as scratch,
        files.new_folder(out, sealed=True, inside=scratch) as temporary,
    ):
        yield temporary


def _refuse_taken(run: Run, out: Path) -> None:
    """Refuse a run without a model, and a folder that holds something."""
    if not run.has_model:
        run.load()  # says how to finish the run
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise UsageError(f"{out} already exists.", "Choose another folder.")
    check_writable(out)


def export_onnx(run: Run, out: Path, data: Sequence[str] = ()) -> float:
    """Write a run's trained model as ONNX, with how rows are read for it.

    Its outputs are compared with the module's on rows of `data`, or of the run's own data; gives
    the largest difference.
    """
    from surefit.pipeline.onnx_file import require_onnx, write_onnx
    from surefit.targets.own_outputs import needs_loss_fn

    require_onnx()
    _refuse_taken(run, out)
    config = run.config
    if not (data or config.data):
        raise UsageError(
            f"{run.path} names no data to compare the ONNX file with the module on.",
            "Pass some rows with --data.",
        )
    pipeline = run.open_pipeline()
    with use_cache(config.cache), as_stored(needs_loss_fn(run.task)):
        rows = open_table(list(data or config.data), config.read, config.on_bad_file, "test")
    with _new_folder(out) as temporary:
        pipeline.encoder.save(temporary)
        return write_onnx(pipeline, rows, temporary / ONNX)


def _about(run: Run) -> dict[str, Any]:
    config = run.config.model_dump(mode="json", include=set(KEPT_SETTINGS))
    plan = {name: value for name, value in run.plan.items() if name in KEPT_OF_PLAN}
    return {"format_version": FORMAT_VERSION, "config": config, "plan": plan}
