"""report.html of a cross-validation: the figures of all folds, beside the pages of their runs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from html import escape
from pathlib import Path
from typing import Any

from surefit import atomic
from surefit.report.page import as_page, section, table
from surefit.run.fold_figures import flat_figures
from surefit.run.fold_runs import FoldRuns

REPORT = "report.html"


def write_folds_report(folds: FoldRuns) -> Path:
    """Write the report.html of the folds and return its path."""
    path = folds.path / REPORT
    atomic.write_text(path, render_folds(folds))
    return path


def render_folds(folds: FoldRuns) -> str:
    """The page as HTML."""
    done = [run.path.name for run in folds.runs]
    title = f"surefit: cross-validation, {len(done)} of {folds.num_folds} folds"
    metrics, heads = folds.metrics, ("metric", "mean", "spread", *done)
    links = "".join(f"<p><a href='{escape(name)}/{REPORT}'>{escape(name)}</a></p>" for name in done)
    sections = [
        f"<h1>{escape(title)}</h1>",
        section("Validation metrics", table(heads, _lines(metrics))),
        *(
            section(
                f"{name}: sum of all folds, a line per true class",
                table(("true class", *figures["classes"]), _counts(figures)),
            )
            for name, figures in metrics.items()
            if "sum" in figures
        ),
        section("Runs", links),
    ]
    return as_page(title, sections)


def _lines(metrics: Mapping[str, Any]) -> Iterator[list[Any]]:
    for name, mean, spread, values in flat_figures(metrics):
        yield [name, *("–" if each is None else each for each in (mean, spread, *values))]


def _counts(figures: Mapping[str, Any]) -> Iterator[list[Any]]:
    for name, line in zip(figures["classes"], figures["sum"], strict=True):
        yield [name, *line]
