"""report.html: one page about a run, complete in itself; every value in it is escaped."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

from surefit import atomic

if TYPE_CHECKING:
    from surefit.run.run_folder import Run

STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 60rem; padding: 0 1rem;
       color: #1c1e21; }
h1 { font-size: 1.5rem; } h2 { font-size: 1.1rem; margin-top: 2rem; }
table { border-collapse: collapse; width: 100%; }
th, td { text-align: left; vertical-align: top; padding: .3rem .8rem .3rem 0;
         border-bottom: 1px solid #e4e6ea; }
td.number { font-variant-numeric: tabular-nums; }
.error { color: #b3261e; } .warning { color: #8a5a00; } .fixed { color: #00658a; }
.info { color: #5f6368; } .quiet { color: #5f6368; }
"""


def write_report(run: Run) -> Path:
    """Write the run's report.html and return its path."""
    path = run.path / "report.html"
    atomic.write_text(path, render(run))
    return path


def render(run: Run) -> str:
    """The page as HTML."""
    plan, history = run.plan, run.history
    title = f"surefit: {plan['task']}, {plan['model']['name']}"
    steps = sum(event["event"] == "step" for event in history)
    state = "finished" if run.finished else "not finished"
    sections = [
        f"<h1>{escape(title)}</h1>",
        f"<p class=quiet>{escape(str(run.path))}: {state}, {steps} of {plan['steps']} steps</p>",
        _section("Result", _table(("metric", "value"), run.metrics.items())),
        _section("Loss", _curves(history)),
        _section("Findings", _findings(plan["findings"])),
        _section("Ledger", _table(("what", "count"), _ledger(plan["ledger"]))),
        _section("Answers", _answers(history)),
    ]
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width">'
        f"<title>{escape(title)}</title><style>{STYLE}</style></head><body>"
        f"{''.join(sections)}</body></html>\n"
    )


def _section(title: str, body: str) -> str:
    return f"<h2>{escape(title)}</h2>{body}" if body else ""


def _table(heads: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    body = "".join(
        "<tr>" + "".join(f"<td>{escape(_text(cell))}</td>" for cell in row) + "</tr>"
        for row in rows
    )
    head = "".join(f"<th>{escape(name)}</th>" for name in heads)
    return f"<table><tr>{head}</tr>{body}</table>" if body else ""


def _text(value: Any) -> str:
    return f"{value:,.6g}" if isinstance(value, float) else str(value)


def _ledger(ledger: dict[str, Any]) -> list[tuple[str, Any]]:
    rows: list[tuple[str, Any]] = []
    for name, value in ledger.items():
        if isinstance(value, dict):
            rows += [(f"dropped: {reason}", count) for reason, count in value.items()]
        else:
            rows.append((name.replace("_", " "), value))
    return rows


def _findings(findings: list[dict[str, Any]]) -> str:
    if not findings:
        return "<p class=quiet>Nothing was found.</p>"
    rows = []
    for found in findings:
        where = ", ".join(f"{key} {value}" for key, value in found["where"].items())
        cells = (found["message"], where, found["fix"])
        rows.append(
            f'<tr><td class="{escape(found["severity"])}">{escape(found["severity"])}<br>'
            f"{escape(found['code'])}</td>"
            + "".join(f"<td>{escape(cell)}</td>" for cell in cells)
            + "</tr>"
        )
    return (
        f"<table><tr><th></th><th>what</th><th>where</th><th>fix</th></tr>{''.join(rows)}</table>"
    )


def _curves(history: list[dict[str, Any]]) -> str:
    import plotly.graph_objects as go

    steps = [event for event in history if event["event"] == "step"]
    evals = [event for event in history if event["event"] == "eval"]
    if not steps:
        return "<p class=quiet>No step was taken yet.</p>"
    figure = go.Figure()
    figure.add_scatter(
        x=[event["step"] for event in steps],
        y=[event["loss"] for event in steps],
        name="training",
        mode="lines",
        line={"width": 1},
    )
    measured = [event for event in evals if event["metrics"].get("loss") is not None]
    figure.add_scatter(
        x=[event["step"] for event in measured],
        y=[event["metrics"]["loss"] for event in measured],
        name="evaluation",
        mode="lines+markers",
    )
    figure.update_layout(
        template="plotly_white",
        height=360,
        margin={"l": 50, "r": 10, "t": 10, "b": 40},
        xaxis_title="step",
        yaxis_title="loss per target",
        legend={"orientation": "h", "y": 1.1},
    )
    return str(figure.to_html(full_html=False, include_plotlyjs=True))


def _answers(history: list[dict[str, Any]]) -> str:
    samples: list[dict[str, Any]] = next(
        (e["samples"] for e in reversed(history) if e.get("samples")), []
    )
    return _table(
        ("prompt", "expected", "got"),
        ((sample["prompt"], sample["expected"], sample["got"]) for sample in samples),
    )
