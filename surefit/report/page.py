"""report.html: a self-contained page about a run; every value in it is escaped."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

from surefit.checks.ledger import Ledger
from surefit.core import files
from surefit.core.foreign import content_of
from surefit.inputs.encoded_row import describe_counts
from surefit.report.examples import draw_examples

if TYPE_CHECKING:
    from surefit.run.run_folder import Run

STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 60rem; padding: 0 1rem;
       color: #1c1e21; }
h1 { font-size: 1.5rem; } h2 { font-size: 1.1rem; margin-top: 2rem; }
table { border-collapse: collapse; width: 100%; }
th, td { text-align: left; vertical-align: top; padding: .3rem .8rem .3rem 0; white-space: pre-line;
         border-bottom: 1px solid #e4e6ea; }
.error { color: #b3261e; } .warning { color: #8a5a00; } .fixed { color: #00658a; }
.info { color: #5f6368; } .quiet { color: #5f6368; }
"""

METRIC_HEADS = ("metric", "code", "better", "predictions")
WARNING_HEADS = ("code", "step", "warning", "fix")


def write_report(run: Run) -> Path:
    """Write the run's report.html and return its path."""
    with content_of(run.path):
        page = render(run)
    files.write_text(run.report_path, page)
    return run.report_path


def render(run: Run) -> str:
    """Return the page as HTML."""
    plan, history = run.plan, run.history
    title = f"surefit: {plan['task']}, {plan['model']['name']}"
    steps = sum(event["event"] == "step" for event in history)
    state = "finished" if run.finished else "not finished"
    progress = f"{run.path}: {state}, {steps:,} of {plan['steps']:,} steps"
    ledger = Ledger(**plan["ledger"])
    best = f" of the best step ({run.best_step:,})" if run.best_step else ""
    sections = [
        f"<h1>{escape(title)}</h1>",
        f"<p class=quiet>{escape(progress)}</p>",
        section(f"Validation metrics{best}", table(("metric", "value"), _figures(run.metrics))),
        section("Baselines", table(("baseline", "metric", "value"), _baselines(plan))),
        section("Loss", _curves(history, ledger.target_unit)),
        section("Warnings of the run", table(WARNING_HEADS, _warnings(history))),
        section("Findings", _findings(plan["findings"])),
        section("Decisions", "".join(f"<p>{escape(text)}</p>" for text in plan["notes"])),
        section("Data", table(("what", "value"), _ledger(ledger))),
        section("Predictions for validation rows", draw_examples(run.examples)),
        section("Augmented training rows", draw_examples(plan.get("examples", ()))),
        section("Frozen parameters and learning rates", table(("what", "value"), _rates(plan))),
        section("Metrics asked for", table(METRIC_HEADS, _metrics(plan))),
        section("Loss settings", table(("setting", "value"), _loss(plan))),
        section("Columns", table(("column", "role"), _columns(plan))),
        section("Generated answers", _answers(history)),
        section("Generation settings", table(("setting", "value"), _generation(plan))),
    ]
    return as_page(title, sections)


def as_page(title: str, sections: Iterable[str]) -> str:
    """Return sections as a whole page."""
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width">'
        f"<title>{escape(title)}</title><style>{STYLE}</style></head><body>"
        f"{''.join(sections)}</body></html>\n"
    )


def section(title: str, body: str) -> str:
    """Return a body under its title; nothing without a body."""
    return f"<h2>{escape(title)}</h2>{body}" if body else ""


def table(heads: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """Return rows of cells, escaped; nothing without rows."""
    body = "".join(
        "<tr>" + "".join(f"<td>{escape(_text(cell))}</td>" for cell in row) + "</tr>"
        for row in rows
    )
    head = "".join(f"<th>{escape(name)}</th>" for name in heads)
    return f"<table><tr>{head}</tr>{body}</table>" if body else ""


def _text(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:,.6g}"
    return f"{value:,}" if isinstance(value, int) else str(value)


def _figures(metrics: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield metrics; a confusion matrix with a line per true class, classes and targets apart."""
    for name, value in metrics.items():
        if isinstance(value, list) and value and isinstance(value[0], list):
            yield f"{name} (a line per true class)", "\n".join(map(str, value))
        elif isinstance(value, Mapping):
            yield from ((f"{name}: {part}", figure) for part, figure in value.items())
        else:
            yield name, value


def _warnings(history: Iterable[Mapping[str, Any]]) -> Iterator[tuple[Any, ...]]:
    """Yield what was found while the run was training."""
    for event in history:
        if event["event"] == "warning":
            yield event["code"], event["step"], event["message"], event["fix"]


def _baselines(plan: Mapping[str, Any]) -> Iterator[tuple[str, str, Any]]:
    """Yield figures of simple predictors on the same validation rows."""
    for name, figures in plan.get("baselines", {}).items():
        column = f" ({figures['column']})" if "column" in figures else ""
        for metric, value in figures.items():
            if metric != "column":
                yield f"{name}{column}", metric, value  # a note is text


def _ledger(ledger: Ledger) -> Iterator[tuple[str, Any]]:
    """Yield what became of the rows, and what an epoch holds."""
    yield "rows in the data", ledger.rows
    yield "training rows", ledger.train_rows
    yield "validation rows", ledger.eval_rows
    yield "dropped rows", describe_counts(ledger.dropped_rows) or 0
    yield "truncated rows", ledger.truncated_rows
    if ledger.truncated_rows:
        yield f"truncated {ledger.unit}", ledger.truncated_tokens
    if ledger.split_rows:
        yield "rows split into blocks", ledger.split_rows
        yield "training blocks", ledger.train_blocks
        yield "validation blocks", ledger.eval_blocks
    yield "per training epoch", ledger.per_epoch
    if ledger.dropped_views:
        yield "dropped augmented copies", describe_counts(ledger.dropped_views)
    if ledger.unit == "tokens" and ledger.target_unit == "tokens":
        yield "rows whose end-of-sequence token is labelled", ledger.rows_learning_eos


def _columns(plan: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield each column of the data and its role; the columns that are not used come last."""
    columns = plan.get("columns") or {}
    yield from ((name, role) for name, role in columns.items() if role is not None)
    unused = [name for name, role in columns.items() if role is None]
    if unused:
        yield "columns not used", ", ".join(unused)


def _rates(plan: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield what `freeze` and `lr_by` made of the parameters; nothing without them."""
    model = plan["model"]
    frozen = model.get("frozen")
    if frozen:
        yield f"frozen parameters ({', '.join(frozen['patterns'])})", frozen["parameters"]
    for pattern, rate in model.get("lr_by", {}).items():
        yield f"learning rate of {pattern} ({rate['parameters']:,} parameters)", rate["lr"]


def _metrics(plan: Mapping[str, Any]) -> Iterator[tuple[str, str, str, str]]:
    """Yield the metrics beside the task's own: built in, or the user's."""
    for name, about in (plan.get("metrics") or {}).items():
        kept = "all kept until the end" if about["keeps_predictions"] else "not kept"
        yield name, about["function"] or "", about["better"] or "", kept


def _loss(plan: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Return class weights and label smoothing; nothing where there are none."""
    loss = plan.get("loss") or {}
    for name, weight in (loss.get("class_weights") or {}).items():
        yield f"weight of class {name}", weight
    if loss.get("label_smoothing"):
        yield "label smoothing", loss["label_smoothing"]


def _generation(plan: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield what text is generated with; nothing for tasks that generate none."""
    generate = plan.get("generate") or {}
    for name, value in {**generate, **generate.get("settings", {})}.items():
        if name not in ("settings", "from_model"):
            taken = name in generate["from_model"]
            yield name, f"{value} (the model's generation config)" if taken else str(value)


def _findings(findings: list[dict[str, Any]]) -> str:
    if not findings:
        return "<p class=quiet>None.</p>"
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
    head = "<tr><th></th><th>finding</th><th>where</th><th>fix</th></tr>"
    return f"<table>{head}{''.join(rows)}</table>"


def _curves(history: list[dict[str, Any]], target_unit: str) -> str:
    import plotly.graph_objects as go

    steps = [event for event in history if event["event"] == "step"]
    evals = [event for event in history if event["event"] == "eval"]
    if not steps:
        return "<p class=quiet>No training step has finished yet.</p>"
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
        name="validation",
        mode="lines+markers",
    )
    figure.update_layout(
        template="plotly_white",
        height=360,
        margin={"l": 50, "r": 10, "t": 10, "b": 40},
        xaxis_title="step",
        yaxis_title="loss per row"
        if target_unit == "rows"
        else f"loss per labelled {target_unit[:-1]}",
        legend={"orientation": "h", "y": 1.1},
    )
    return str(figure.to_html(full_html=False, include_plotlyjs=True))


def _answers(history: list[dict[str, Any]]) -> str:
    samples: list[dict[str, Any]] = next(
        (e["samples"] for e in reversed(history) if e.get("samples")), []
    )
    return table(
        ("prompt", "expected", "generated"),
        ((sample["prompt"], sample["expected"], sample["got"]) for sample in samples),
    )
