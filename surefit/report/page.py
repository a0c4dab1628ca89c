"""report.html: a self-contained page about a plan or a run; every value in it is escaped."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

from surefit.checks.ledger import Ledger
from surefit.config import RunConfig
from surefit.core import files
from surefit.core.foreign import content_of
from surefit.errors import UsageError
from surefit.gigabytes import show_gb
from surefit.inputs.encoded_row import describe_counts
from surefit.report.charts import bars, counted, line_chart, show_number
from surefit.report.drawn_rows import LEGEND, draw_batch, draw_examples, text_of, word_differences
from surefit.report.judged_rows import draw_judged
from surefit.run.events import EventTail, metrics_of, outcomes

if TYPE_CHECKING:
    from surefit.run.run_folder import Run

Section = tuple[str, str]
"""A title and a body of HTML; a section without a body is left out."""
SETTLED = ("model", "loss", "metrics", "generate", "augment", "baselines")
"""Parts of a plan that say how it is trained and judged."""
WARNING_HEADS = ("code", "step", "warning", "fix")
MOST_EVALUATIONS = 20
"""Whose generated answers are shown."""
MARK = "<!-- written by surefit -->"
"""How pages of surefit start: a file without it is not replaced."""


@dataclass(frozen=True)
class Subject:
    """What a page is about: a plan, and what a run of it has done so far."""

    plan: Mapping[str, Any]
    asked: Mapping[str, Any]
    """The config as a dict."""
    command: Sequence[str] = ()
    """What repeats it."""
    history: Sequence[Mapping[str, Any]] = ()
    examples: Mapping[str, Any] = field(default_factory=dict)
    metrics: Mapping[str, Any] = field(default_factory=dict)
    best_step: int | None = None
    state: str = "a plan: nothing was trained"

    @property
    def ledger(self) -> Ledger | None:
        """Return what becomes of the rows."""
        return Ledger(**self.plan["ledger"]) if self.plan["ledger"] else None

    @property
    def steps(self) -> list[Mapping[str, Any]]:
        """Return the events of steps."""
        return [event for event in self.history if event["event"] == "step"]

    @property
    def evaluations(self) -> list[Mapping[str, Any]]:
        """Return the events of evaluations."""
        return [event for event in self.history if event["event"] == "eval"]


def write_report(run: Run) -> Path:
    """Write the run's report.html and return its path."""
    with content_of(run.path):
        page = render(run)
    files.write_text(run.report_path, page)
    return run.report_path


def write_page(path: Path, page: str, mark: str = MARK) -> None:
    """Write a page where the user asks for it; a file that does not start as surefit's do is not
    replaced."""
    try:
        if path.exists() and not path.read_text("utf-8", "replace").startswith(mark):
            raise UsageError(f"{path} is not a report of surefit, and is not replaced.", ANOTHER)
        files.write_text(path, page)
    except OSError as error:
        raise UsageError(f"Cannot write {path}: {error.strerror}.", ANOTHER) from None


ANOTHER = "Choose another name for the report."


def subject_of(run: Run, read: EventTail | None = None) -> Subject:
    """Return what a run's page is about; its events as they were `read`, or all of them."""
    plan, best = run.plan, run.best_step
    history = run.history if read is None else read.history
    steps = sum(e["event"] == "step" for e in history) if read is None else read.num_steps
    state = "finished" if run.finished else "not finished"
    return Subject(
        plan,
        run.config.model_dump(mode="json"),
        ("surefit", "train", f"{run.path}/config.yaml", "--output", f"{run.path}-again"),
        history,
        run.examples,
        metrics_of(history, best),
        best,
        f"{run.path}: {state}, {steps:,} of {plan['steps']:,} steps",
    )


def render(run: Run) -> str:
    """Return the page of a run as HTML."""
    return render_subject(subject_of(run))


def render_subject(about: Subject) -> str:
    """Return the page of a plan or a run as HTML."""
    return as_page(title_of(about), about.state, sections_of(about))


def title_of(about: Subject) -> str:
    """Return the title of a page about a plan or a run."""
    name = (about.plan.get("model") or {}).get("name", "no model")
    return f"surefit: {about.plan['task']}, {name}"


def sections_of(about: Subject) -> list[Section]:
    """Return all sections of the page: what needs action first."""
    plan = about.plan
    best = f" of the best step ({about.best_step:,})" if about.best_step else ""
    return [
        (f"Validation metrics{best}", _results(about)),
        ("Warnings of the run", table(WARNING_HEADS, _warnings(about.history))),
        ("Findings", _findings(plan["findings"])),
        *draw_judged(about.examples, about.metrics),
        ("Batches as the model sees them", _batches(about.examples)),
        ("Curves", _curves(about)),
        ("Evaluations", _evaluations(about)),
        ("Generated answers", _answers(about.evaluations)),
        ("Predictions for validation rows", draw_examples(about.examples.get("predicted", ()))),
        ("Augmented training rows", draw_examples(plan.get("examples", ()))),
        ("Columns", table(("column", "role"), _columns(plan))),
        ("Data", _data(about)),
        ("Memory and time", table(("", "predicted", "measured"), _costs(about))),
        ("What was asked", _asked(about)),
        ("Decisions", "".join(f"<p>{text_of(text)}</p>" for text in plan["notes"])),
        ("What was settled", table(("setting", "value"), _settings(plan))),
    ]


def as_frame(page: str) -> str:
    """Return a page as a part of another one, such as a notebook, which it cannot reach."""
    style = "width: 100%; height: 40rem; border: 1px solid #8888"
    return f'<iframe sandbox="allow-scripts" style="{style}" srcdoc="{escape(page)}"></iframe>'


def as_page(title: str, state: str, sections: Iterable[Section]) -> str:
    """Return sections as a whole page, with links to them."""
    here, shown = Path(__file__).parent, [each for each in sections if each[1]]
    links = "".join(f"<a href='#s{n}'>{escape(name)}</a>" for n, (name, _) in enumerate(shown))
    bodies = "".join(
        f"<section id=s{n}><h2>{escape(name)}</h2>{body}</section>"
        for n, (name, body) in enumerate(shown)
    )
    return (
        f'{MARK}<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(title)}</title><style>{(here / 'page.css').read_text('utf-8')}</style>"
        f"<script>{(here / 'page.js').read_text('utf-8')}</script></head><body>"
        f"<h1>{text_of(title)}</h1><p class=quiet>{text_of(state)}</p>"
        f"<nav>{links}</nav>{bodies}</body></html>\n"
    )


def table(heads: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """Return rows of cells, escaped; nothing without rows."""
    body = "".join(
        "<tr>" + "".join(f"<td>{_text(cell)}</td>" for cell in row) + "</tr>" for row in rows
    )
    head = "".join(f"<th>{escape(name)}</th>" for name in heads)
    return f"<div class=wide><table><tr>{head}</tr>{body}</table></div>" if body else ""


def _text(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:,.6g}"
    return f"{value:,}" if type(value) is int else text_of(value)


def _results(about: Subject) -> str:
    """Return each metric from before training to after it beside the baseline; others below."""
    known = outcomes(about.history, about.metrics, about.plan.get("baselines") or {})
    rows = [
        (
            each.metric,
            "" if each.before is None else float(each.before),
            float(each.after),
            "" if each.baseline is None else f"{show_number(each.baseline)} {each.baseline_name}",
        )
        for each in known
    ]
    shown = {
        *(each.metric for each in known),
        *(["confusion"] if about.examples.get("classes") else []),
    }
    others = {n: v for n, v in about.metrics.items() if n not in shown}
    heads = ("metric", "before training", "after", "best baseline")
    kept = [place for place in range(len(heads)) if any(row[place] != "" for row in rows)]
    measured = table([heads[n] for n in kept], ([row[n] for n in kept] for row in rows))
    return measured + table(("metric", "value"), _figures(others))


def _batches(examples: Mapping[str, Any]) -> str:
    """Return the first batches, a cell per token."""
    batches = examples.get("batches") or ()
    drawn = "".join(draw_batch(batch) for batch in batches)
    return (LEGEND if "data-tip" in drawn else "") + drawn


def _data(about: Subject) -> str:
    """Return what became of the rows, their lengths and their classes."""
    ledger, known = about.ledger, about.examples.get("data") or {}
    if ledger is None:
        return ""
    titles = {
        "lengths": (f"{ledger.unit} per training row", ledger.unit),
        "targets": (f"labelled {ledger.target_unit} per training row", ledger.target_unit),
    }
    charts = [
        counted(title, known[name]["counts"], known[name]["edges"], unit)
        for name, (title, unit) in titles.items()
        if name in known
    ]
    charts.append(bars("training rows per class", known.get("classes") or {}))
    return table(("what", "value"), _ledger(ledger)) + f"<div class=charts>{''.join(charts)}</div>"


def _costs(about: Subject) -> Iterator[tuple[str, str, str]]:
    """Yield predicted and measured memory and time."""
    memory, time = about.plan["memory"], about.plan["time"]
    measured = about.examples.get("peak_bytes")
    if memory["predicted_peak_bytes"] is not None:
        limit = f" (limit {show_gb(memory['limit_bytes'])})" if memory["limit_bytes"] else ""
        predicted = f"{show_gb(memory['predicted_peak_bytes'])}{limit}"
        yield "peak memory", predicted, show_gb(int(measured)) if measured else ""
    if time["predicted_total_seconds"] is not None:
        spent = sum(event["seconds"] for event in about.steps)
        total = f"{time['predicted_total_seconds']:,.0f} s in total"
        yield "time", total, f"{spent:,.0f} s in {len(about.steps):,} steps" if spent else ""


def _asked(about: Subject) -> str:
    """Return the command that repeats it, and the settings that are no defaults."""
    usual = flat(RunConfig().model_dump(mode="json"))
    asked = {k: v for k, v in flat(about.asked).items() if v != usual.get(k)}
    command = f"<pre>{text_of(shlex.join(about.command))}</pre>" if about.command else ""
    return command + table(("setting", "value"), ((n, str(value)) for n, value in asked.items()))


def flat(settings: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return nested settings under their full names.

    >>> flat({"lora": {"r": 8}, "seed": 0})
    {'lora.r': 8, 'seed': 0}
    """
    found: dict[str, Any] = {}
    for name, value in settings.items():
        inner = isinstance(value, Mapping)
        found |= flat(value, f"{prefix}{name}.") if inner else {f"{prefix}{name}": value}
    return found


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
    yield from ((f"source {name}", ledger.of_source(name)) for name in ledger.sources)
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


def _settings(plan: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield what planning settled beside the config, under its names in plan.json."""
    known = flat({name: plan.get(name) or {} for name in SETTLED})
    for name, value in known.items():
        if value not in (None, [], False, ""):
            yield name, value


def _findings(findings: Sequence[Mapping[str, Any]]) -> str:
    if not findings:
        return "<p class=quiet>None.</p>"
    rows = []
    order = ("error", "warning", "fixed", "info")
    for found in sorted(findings, key=lambda each: order.index(each["severity"])):
        where = ", ".join(f"{key} {value}" for key, value in found["where"].items())
        cells = (found["message"], where, found["fix"])
        rows.append(
            f'<tr><td class="short {escape(found["severity"])}">{escape(found["severity"])}<br>'
            f"{escape(found['code'])}</td>"
            + "".join(f"<td>{text_of(cell)}</td>" for cell in cells)
            + "</tr>"
        )
    head = "<tr><th></th><th>finding</th><th>where</th><th>fix</th></tr>"
    return f"<div class=wide><table>{head}{''.join(rows)}</table></div>"


def _curves(about: Subject) -> str:
    """Return loss, learning rate, gradient norm, speed, parts of the loss and metrics by step."""
    steps, ledger = about.steps, about.ledger
    if not steps or ledger is None:
        return ""
    unit = "row" if ledger.target_unit == "rows" else f"labelled {ledger.target_unit[:-1]}"
    charts = [
        line_chart(
            f"loss per {unit}",
            {"training": points(steps, "loss"), "validation": metric_points(about, "loss")},
            mark=about.best_step,
        )
    ]
    names = dict.fromkeys(name for event in steps for name in event)
    known = [n for n in names if n in ("lr", "grad_norm", "aux_loss") or n.startswith("loss_")]
    titles = {"lr": "learning rate", "grad_norm": "gradient norm"}
    charts += [line_chart(titles.get(n, n), {n: points(steps, n)}) for n in known]
    per_row = ledger.train_views / max(ledger.tokens, 1) if ledger.unit != "tokens" else 1.0
    before = [0, *(event["tokens"] for event in steps)]
    speed = [
        (event["step"], (event["tokens"] - start) * per_row / max(event["seconds"], 1e-9))
        for event, start in zip(steps, before, strict=False)
    ]
    speed_unit = "tokens" if ledger.unit == "tokens" else "rows"
    charts.append(line_chart(f"{speed_unit} per second", {speed_unit: speed}))
    for name in dict.fromkeys(n for event in about.evaluations for n in event["metrics"]):
        if name != "loss" and len(about.evaluations) > 1:
            of_metric = {name: metric_points(about, name)}
            charts.append(line_chart(name, of_metric, mark=about.best_step))
    return f"<div class=charts>{''.join(charts)}</div>"


def points(events: Iterable[Mapping[str, Any]], name: str) -> list[tuple[Any, Any]]:
    """Return step and value of the events that have it."""
    return [(event["step"], event[name]) for event in events if name in event]


def metric_points(about: Subject, name: str) -> list[tuple[Any, Any]]:
    """Return step and value of a metric in each evaluation."""
    return points(({**e["metrics"], "step": e["step"]} for e in about.evaluations), name)


def _evaluations(about: Subject) -> str:
    """Return the figures of each evaluation; the best step is marked."""
    names = dict.fromkeys(
        name
        for event in about.evaluations
        for name, value in event["metrics"].items()
        if isinstance(value, int | float)
    )
    rows = [
        (
            f"{event['step']:,}{' (best)' if event['step'] == about.best_step else ''}",
            event["epoch"],
            *("" if event["metrics"].get(n) is None else event["metrics"][n] for n in names),
        )
        for event in about.evaluations
    ]
    return table(("step", "epoch", *names), rows)


def _answers(evaluations: Sequence[Mapping[str, Any]]) -> str:
    """Return generated answers beside what was expected, word by word: the last evaluation's, and
    below them those of the earlier ones."""
    drawn = [(e, _answer_table(e["samples"])) for e in evaluations if e.get("samples")]
    last = "".join(body for _, body in drawn[-1:])
    return last + "".join(
        f"<details><summary>epoch {e['epoch']}, step {e['step']:,}</summary>{body}</details>"
        for e, body in reversed(drawn[:-1][-MOST_EVALUATIONS:])
    )


def _answer_table(samples: Sequence[Mapping[str, Any]]) -> str:
    rows = (
        f"<tr><td>{text_of(each['prompt'])}</td><td>{text_of(each['expected'] or '')}</td>"
        f"<td>{word_differences(each['expected'], each['got'])}</td></tr>"
        for each in samples
    )
    body = "".join(rows)
    head = "<tr><th>prompt</th><th>expected</th><th>generated</th></tr>"
    return f"<div class=wide><table>{head}{body}</table></div>" if body else ""
