"""Gradient-boosted trees on the rows of a table, beside which a network's result is printed.

They are fitted on the training rows and judged on the same validation rows as the network, in a
process of their own (`fit_trees.py`) with bounds for memory and time. Their figures are kept in the
cache. Whatever keeps them from being fitted is noted, and is no reason for a run to fail.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from threading import Timer
from typing import IO, Any

import numpy as np
import numpy.typing as npt

from surefit import __version__
from surefit.data.cache import fingerprint
from surefit.data.cache_entry import open_json
from surefit.encode.encoder import Encoder
from surefit.encode.store import Store
from surefit.gigabytes import show_size
from surefit.tasks.class_loss import read_class_loss
from surefit.tasks.classes import is_multi_label
from surefit.tasks.column_matrix import ColumnMatrix, feature_rows, is_table, spread_rows
from surefit.tasks.fit_trees import read_array, write_array
from surefit.tasks.task_spec import JudgeRows

Array = npt.NDArray[Any]
TREES = "boosted trees"
NOTE = "note"
"""Where a baseline's figures keep a remark about it."""

FEWEST_ROWS = 200
"""With fewer training rows, trees are not fitted: their figures would be chance."""
MAX_WORK = 400_000_000
"""Rows × columns × models × iterations: about ten seconds of one core."""
MAX_ROWS, MAX_CELLS = 100_000, 4_000_000
"""Rows, and rows × columns, that trees are fitted on."""
CHUNK_CELLS = 1_000_000
"""Values of the encoded rows that are predicted for at a time."""
ITERATIONS, ITERATIONS_EACH = 200, 50
"""Trees for one target, and for each of several classes or targets."""
SECONDS = 120.0
START_BYTES, CELL_BYTES = 300_000_000, 60
"""Memory of the process before it has rows, and for each of their values."""
MISSING = "not fitted; pip install 'surefit[tables]' prints their figures here"


class LeftOutError(Exception):
    """Why there are no figures of trees."""


@dataclass(frozen=True)
class _Fit:
    """What trees are fitted on, and how."""

    matrix: ColumnMatrix
    rows: Array
    iterations: int
    classes: bool

    @property
    def limit_bytes(self) -> int:
        """Memory that the process may use."""
        return START_BYTES + CELL_BYTES * len(self.rows) * len(self.matrix.places)


def measure_trees(
    train: Store, validation: Store, encoder: Encoder, judge: JudgeRows, free_bytes: int
) -> dict[str, Any]:
    """Figures of trees on the validation rows, with a note about rows left out; else a note alone.

    Empty where there is nothing to say: rows that are not those of a table, or too few of them.
    """
    if not is_table(encoder, train) or len(train) < FEWEST_ROWS or not len(validation):
        return {}
    try:
        plan = _plan(train, encoder)
        if plan.limit_bytes > free_bytes:
            needed, free = show_size(plan.limit_bytes), show_size(free_bytes)
            raise LeftOutError(f"not fitted: they need up to {needed}, and {free} are free")
        weights = read_class_loss(encoder.settings).class_weights
        parts = encoder.fitted["columns"]
        about = [train.key, validation.key, parts, weights, plan.iterations, len(plan.rows)]
        key = fingerprint(about, _library_version(), __version__)
        found: dict[str, Any] = open_json(
            "trees", key, lambda: _figures(plan, train, validation, encoder, judge)
        )
    except LeftOutError as left_out:
        return {NOTE: str(left_out)}
    return found


def _library_version() -> str:
    try:
        return version("scikit-learn")
    except PackageNotFoundError:
        raise LeftOutError(MISSING) from None


def _plan(train: Store, encoder: Encoder) -> _Fit:
    """As many rows and trees as the bounds allow."""
    matrix, field = ColumnMatrix.of(encoder.fitted["columns"]), train.fields["labels"]
    classes = field.numpy_dtype.kind == "i" or is_multi_label(encoder)
    models = len(train.value("labels", 0)) if field.rank else 1
    if field.numpy_dtype.kind == "i" and len(encoder.classes) > 2:
        models = len(encoder.classes)
    iterations = ITERATIONS if models == 1 else ITERATIONS_EACH
    columns = len(matrix.places)
    bounds = (MAX_ROWS, MAX_CELLS // columns, MAX_WORK // (columns * models * iterations))
    if min(bounds) < FEWEST_ROWS:
        shown = f"{columns} columns and {models} outputs"
        raise LeftOutError(f"not fitted: {shown} leave too few rows in the time for it")
    return _Fit(matrix, spread_rows(train, min(bounds)), iterations, classes)


def _figures(
    plan: _Fit, train: Store, validation: Store, encoder: Encoder, judge: JudgeRows
) -> dict[str, Any]:
    predictions = np.concatenate([*_predict(plan, train, validation, encoder)])
    found = judge(predictions, validation, encoder)
    known = {name: value for name, value in found.items() if np.isfinite(_numbers(value)).all()}
    if len(plan.rows) == len(train):
        return known
    return {**known, NOTE: f"fitted on {len(plan.rows):,} of {len(train):,} training rows"}


def _numbers(figure: Any) -> list[float]:
    """A figure, or those of several targets."""
    return [*figure.values()] if isinstance(figure, dict) else [figure]


def _predict(plan: _Fit, train: Store, validation: Store, encoder: Encoder) -> Iterator[Array]:
    """Fit in another process, and let it predict for the validation rows, some at a time."""
    labels = np.asarray(train.values("labels")).reshape(len(train), -1)[plan.rows]
    field = train.fields["labels"]
    targets = labels if field.rank else labels[:, 0]
    weights = np.ones(len(targets))
    by_class = read_class_loss(encoder.settings).class_weights
    if by_class is not None and not field.rank:
        weights = np.asarray(by_class)[targets]
    settings = {
        "limit_bytes": plan.limit_bytes,
        "iterations": plan.iterations,
        "categories": plan.matrix.categories,
        "classes": plan.classes,
        "seed": 0,
    }
    step = max(CHUNK_CELLS // feature_rows(validation, slice(0, 1)).shape[1], 1)
    with _Child() as child:
        child.send_line(json.dumps(settings))
        for array in (plan.matrix.read(feature_rows(train, plan.rows)), targets, weights):
            child.send(array)
        for start in range(0, len(validation), step):
            child.send(plan.matrix.read(feature_rows(validation, slice(start, start + step))))
            yield child.receive()


class _Child:
    """The process that fits; it is killed after SECONDS, and when the block ends."""

    def __enter__(self) -> _Child:
        self._errors = tempfile.TemporaryFile()
        command = [sys.executable, "-P", str(Path(__file__).with_name("fit_trees.py"))]
        threads = os.environ.get("OMP_NUM_THREADS", str(min(os.cpu_count() or 1, 4)))
        try:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._errors,
                # a thread of OpenBLAS takes memory, and trees need none of them
                env={**os.environ, "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": threads},
            )
        except OSError as error:
            raise LeftOutError(f"not fitted: no process could be started ({error})") from None
        self._timed_out = False
        self._timer = Timer(SECONDS, self._give_up)
        self._timer.daemon = True
        self._timer.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._timer.cancel()
        self._process.kill()
        with self._errors:
            for stream in (self._process.stdin, self._process.stdout):
                assert stream is not None
                with suppress(OSError):  # what was not sent any more
                    stream.close()
            self._process.wait()

    def _give_up(self) -> None:
        self._timed_out = True
        self._process.kill()

    def send_line(self, text: str) -> None:
        """Send a line of text."""
        self._write(lambda stream: stream.write(f"{text}\n".encode()))

    def send(self, array: Array) -> None:
        """Send an array."""
        self._write(lambda stream: write_array(stream, array))

    def _write(self, write: Any) -> None:
        stream: IO[bytes] | None = self._process.stdin
        assert stream is not None
        try:
            write(stream)
        except OSError:
            raise self._failure() from None

    def receive(self) -> Array:
        """The next array that the process sends."""
        assert self._process.stdout is not None
        try:
            return read_array(self._process.stdout)
        except (ValueError, EOFError, OSError):
            raise self._failure() from None

    def _failure(self) -> LeftOutError:
        code = self._process.wait()
        if self._timed_out:
            return LeftOutError(f"not fitted: they took more than {SECONDS:.0f} seconds")
        self._errors.seek(0)
        lines = self._errors.read().decode("utf-8", "replace").strip().splitlines()
        reason = lines[-1][:120] if lines else f"exit code {code}"
        return LeftOutError(f"not fitted: their process failed ({reason})")
