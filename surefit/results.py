"""What a finished run makes of rows, as frames: the methods of a Run (`run/run_folder.py`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.util import find_spec
from typing import Any

import numpy as np
import pyarrow as pa

from surefit.api import iter_predictions, rows_to_judge
from surefit.core.foreign import content_of
from surefit.data.cache import use_cache
from surefit.data.formats.numpy_files import as_stored
from surefit.data.official_splits import Part
from surefit.data.open_data import open_table
from surefit.data.table import Table
from surefit.errors import UsageError
from surefit.report.page import as_frame, as_page, sections_of, subject_of, title_of
from surefit.report.worst_rows import refuse_by_row, row_by_row
from surefit.run.run_folder import Run
from surefit.targets.own_outputs import needs_loss_fn
from surefit.training.engine import training_numerics


def predictions(run: Run, data: Any = None) -> Any:
    """Return the predictions for rows with their columns beside them; by default for the
    validation rows.
    """
    whole = _whole_table(run, data)
    if data is not None:
        return _frame(whole, list(iter_predictions(run, whole)))
    pipeline, store = rows_to_judge(run)
    if pipeline.accept(whole).table.num_rows != whole.num_rows:
        raise UsageError(
            "The rows of this run are made of several rows of its data.",
            "Pass the rows: run.predictions(data).",
        )
    rows = np.unique(store.source_row)
    arrow, key = whole.arrow.take(pa.array(rows)), f"{whole.key}-validation"
    made = iter_predictions(run, replace(whole, arrow=arrow, key=key))
    return _frame(whole, [{**each, "row": int(rows[each["row"]])} for each in made])


def worst(run: Run, count: int, data: Any = None) -> Any:
    """Return the rows with the highest loss, the highest first, with their columns, their target
    and what is predicted."""
    pipeline, store = rows_to_judge(run, data)
    why = refuse_by_row(pipeline)
    if why:
        raise UsageError(why, "Look at predictions instead: run.predictions(data).")
    with training_numerics(run, pipeline.module, exactly=True):
        judged = list(row_by_row(pipeline, store, np.arange(len(store))))
    known = [row for row in judged if row["loss"] is not None]
    found = sorted(known, key=lambda row: -float(row["loss"]))[:count]
    left_out = ("place", "metrics")
    shown = [{name: value for name, value in row.items() if name not in left_out} for row in found]
    return _frame(_whole_table(run, data), shown)


@dataclass(frozen=True)
class Curves:
    """Curves of a run, as notebooks show them."""

    name: str
    page: str

    def __repr__(self) -> str:
        return f"{self.name}: curves, which notebooks show; surefit report writes them to a file"

    def _repr_html_(self) -> str:
        return as_frame(self.page)


def plot(run: Run) -> Curves:
    """Return loss, learning rate, gradient norm, speed and metrics by step."""
    about = subject_of(run)
    with content_of(run.path):
        drawn = [section for section in sections_of(about) if section[0] == "Curves"]
    return Curves(run.path.name, as_page(title_of(about), about.state, drawn))


def confusion(run: Run) -> Any:
    """Return a line per true class and a column per predicted one, of the run's evaluation."""
    cells, names = run.metrics.get("confusion"), run.examples.get("classes") or []
    if not cells or len(cells) != len(names):
        task = run.plan["task"]
        raise UsageError(
            f"{run.path} has no confusion matrix (task {task}).",
            "It needs a task with classes, an evaluation, and metrics with confusion.",
        )
    columns = {str(name): [line[n] for line in cells] for n, name in enumerate(names)}
    if find_spec("pandas") is None:
        return pa.table({"true": names, **columns})
    import pandas

    index = pandas.Index(names, name="true \\ predicted")
    return pandas.DataFrame(columns, index=index)


def _whole_table(run: Run, data: Any) -> Table:
    """Return the rows that the row numbers of a Store count."""
    config = run.config
    data = run.rows_object if data is None else data
    named = config.eval_data or list(config.data)
    if data is None and not named:
        raise UsageError(
            f"{run.path} was trained on rows passed from Python, which it does not hold.",
            "Pass the rows here as well.",
        )
    part: Part = "test" if data is not None or config.eval_data else "train"
    with use_cache(config.cache), as_stored(needs_loss_fn(run.task)):
        return open_table(named if data is None else data, config.read, config.on_bad_file, part)


def _frame(table: Table, made: Sequence[Mapping[str, Any]]) -> Any:
    """Return rows beside what was made of them: a pandas DataFrame, or a pyarrow Table where
    pandas is not installed."""
    rows = [int(each["row"]) for each in made]
    names = dict.fromkeys(name for each in made for name in each)
    fits = max(rows, default=0) < table.num_rows
    inputs = table.arrow.take(pa.array(rows, pa.int64())) if fits else table.arrow.slice(0, 0)
    taken = {name: inputs[name] for name in inputs.column_names if fits}
    new = {n + "_" * (n in taken): [each.get(n) for each in made] for n in names}
    if find_spec("pandas") is None:
        return pa.table({**taken, **new})
    import pandas

    plain = {name: column.to_pylist() for name, column in taken.items()}
    return pandas.DataFrame({**plain, **new})
