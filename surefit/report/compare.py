"""Several runs on one page: what differs first, then curves over each other and answers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from surefit.core.foreign import content_of
from surefit.report.charts import line_chart
from surefit.report.drawn_rows import text_of, word_differences
from surefit.report.page import (
    Section,
    Subject,
    as_page,
    flat,
    metric_points,
    points,
    subject_of,
    table,
)
from surefit.run.run_folder import Run

SAME_FOR_ALL = ("output", "resume")
"""Settings that differ between any two runs."""


def compare(runs: Sequence[Run]) -> str:
    """Return the page that compares runs, each by the name of its folder."""
    about: dict[str, Subject] = {}
    for run in runs:
        with content_of(run.path):
            name = run.path.resolve().name
            about[name if name not in about else str(run.path)] = subject_of(run)
    with content_of(runs[0].path.parent):
        state = "; ".join(each.state for each in about.values())
        return as_page(f"surefit: {', '.join(about)}", state, compared(about))


def compared(about: Mapping[str, Subject]) -> list[Section]:
    """Return the sections that compare runs by their names."""
    return [
        ("What differs", _table_of(about, _differences(about))),
        ("Metrics", _table_of(about, _metrics(about))),
        ("Curves", _curves(about)),
        ("Answers", _answers(about)),
    ]


def _table_of(about: Mapping[str, Subject], rows: Iterator[tuple[str, Sequence[Any]]]) -> str:
    return table(("", *about), ((name, *values) for name, values in rows)) or (
        "<p class=quiet>Nothing.</p>"
    )


def _differences(about: Mapping[str, Subject]) -> Iterator[tuple[str, Sequence[Any]]]:
    """Yield config, data, code and versions that are not the same in all runs."""
    every = [
        {
            **{n: v for n, v in flat(each.asked).items() if n not in SAME_FOR_ALL},
            "content of the data": each.plan.get("data_key"),
            "rows": (each.plan.get("ledger") or {}).get("rows"),
            "model": each.plan["model"]["name"],
            "parameters": each.plan["model"].get("parameters"),
            "code": each.plan["model"].get("code"),
            "precision": each.plan.get("precision"),
            "processes": each.plan.get("num_processes"),
            "version of surefit": each.plan.get("version"),
        }
        for each in about.values()
    ]
    for name in dict.fromkeys(name for facts in every for name in facts):
        values = [str(facts.get(name, "")) for facts in every]
        if len(set(values)) > 1:
            yield name, values


def _metrics(about: Mapping[str, Subject]) -> Iterator[tuple[str, Sequence[Any]]]:
    numbers = [
        {n: v for n, v in each.metrics.items() if isinstance(v, int | float)}
        for each in about.values()
    ]
    yield "best step", ["" if each.best_step is None else each.best_step for each in about.values()]
    for name in dict.fromkeys(name for metrics in numbers for name in metrics):
        yield name, [metrics.get(name, "") for metrics in numbers]


def _curves(about: Mapping[str, Subject]) -> str:
    losses = {name: points(each.steps, "loss") for name, each in about.items()}
    rates = {name: points(each.steps, "lr") for name, each in about.items()}
    charts = [line_chart("training loss", losses), line_chart("learning rate", rates)]
    metrics = (n for each in about.values() for e in each.evaluations for n in e["metrics"])
    for metric in dict.fromkeys(metrics):
        lines = {name: metric_points(each, metric) for name, each in about.items()}
        if max(map(len, lines.values())) > 1:
            charts.append(line_chart(f"validation {metric}", lines))
    return f"<div class=charts>{''.join(charts)}</div>"


def _answers(about: Mapping[str, Subject]) -> str:
    """Return the last answers to the same prompts side by side."""
    answers: dict[tuple[str, str], dict[str, str]] = {}
    for name, each in about.items():
        samples = next((e["samples"] for e in reversed(each.evaluations) if e.get("samples")), ())
        for sample in samples:
            asked = str(sample["prompt"]), str(sample["expected"] or "")
            drawn = word_differences(sample["expected"], sample["got"])
            answers.setdefault(asked, {})[name] = drawn
    head = "".join(f"<th>{text_of(name)}</th>" for name in ("prompt", "expected", *about))
    rows = "".join(
        f"<tr><td>{text_of(prompt)}</td><td>{text_of(expected)}</td>"
        + "".join(f"<td>{got.get(name, '')}</td>" for name in about)
        + "</tr>"
        for (prompt, expected), got in answers.items()
    )
    return f"<div class=wide><table><tr>{head}</tr>{rows}</table></div>" if rows else ""
