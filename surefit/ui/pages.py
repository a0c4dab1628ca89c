"""The pages as HTML: the list of runs, a run, several compared, the form, the chat.

What changes while a page is open is a list of parts, each with an id; `ui.js` puts new ones in.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import Any, Literal, get_args, get_origin
from urllib.parse import quote

from surefit.config import config_fields
from surefit.progress import show_seconds
from surefit.report.charts import show_number
from surefit.report.drawn_rows import text_of
from surefit.report.page import Section, table
from surefit.ui.started_jobs import Job
from surefit.ui.watched_runs import RUNNING, Summary

Part = tuple[str, str]
"""An id and its HTML."""
HEADS = ("run", "state", "task", "model", "step", "loss", "metric", "begun", "time left")
SORTED_BY = ("name", "state", "task", "model", "step", "loss", "value", "begun", "seconds_left")
MAIN_KEYS = (
    *("data", "eval_data", "model", "task", "epochs", "max_steps", "batch_size", "grad_accum"),
    *("lr", "lora.r", "max_seq_length", "max_memory_gb", "seed", "accept"),
)
"""Keys of the form that are always shown."""
READ_ONLY = (
    "Read-only: open the address that `surefit ui` printed, with its token, to change things."
)
CHAT_TASKS = ("sft", "causal-lm", "preference")


def shell(title: str, body: str, may_change: bool, live: str = "") -> str:
    """Return a whole page; `live` is the address of its changes."""
    links = '<a href="/">Runs</a>' + ('<a href="/new">New run</a>' if may_change else "")
    note = "" if may_change else escape(READ_ONLY)
    source = f' data-live="{escape(live)}"' if live else ""
    styles = "".join(f'<link rel=stylesheet href="/static/{n}.css">' for n in ("page", "ui"))
    scripts = "".join(f'<script src="/static/{n}.js" defer></script>' for n in ("page", "ui"))
    return (
        '<!doctype html><html lang=en><head><meta charset=utf-8><link rel=icon href="data:,">'
        '<meta name=viewport content="width=device-width, initial-scale=1">'
        f"<title>{escape(title)}</title>{styles}{scripts}</head><body{source}>"
        "<a class=skip href=#main>To the content</a>"
        f'<header><a class=brand href="/">surefit</a><nav aria-label=Pages>{links}</nav></header>'
        f"<main id=main><h1>{text_of(title)}</h1><p id=note role=status>{note}</p>{body}</main>"
        "</body></html>\n"
    )


def drawn_parts(parts: Iterable[Part]) -> str:
    """Return parts as they are when the page opens."""
    return "<div id=parts>" + "".join(f"<section id={i}>{b}</section>" for i, b in parts) + "</div>"


def as_parts(sections: Iterable[Section]) -> list[Part]:
    """Return sections of a report as parts, with links to them; their numbers are in no id."""
    shown = [(name, body) for name, body in sections if body]
    shown.sort(key=lambda section: section[0] != "Curves")  # what moves while a run trains
    ids = [
        re.sub(r"[^a-z]+", "-", re.sub(r" of the best .*", "", name.lower())) for name, _ in shown
    ]
    links = "".join(
        f"<a href='#{place}'>{escape(name)}</a>"
        for place, (name, _) in zip(ids, shown, strict=True)
    )
    bodies = (f"<h2>{escape(name)}</h2>{body}" for name, body in shown)
    return [
        ("contents", f"<nav aria-label=Sections>{links}</nav>"),
        *zip(ids, bodies, strict=True),
    ]


def run_address(name: str, page: str = "run") -> str:
    """Return the address of a page about a run."""
    return f"/{page}/{quote(name)}"


def list_body(summaries: Sequence[Summary]) -> str:
    """Return the table of runs, with what filters, sorts and compares them."""
    heads = "".join(
        f"<th scope=col><button type=button data-sort={key}>{escape(name)}</button></th>"
        for name, key in zip(HEADS, SORTED_BY, strict=True)
    )
    return (
        "<form id=compare action=/compare><div class=bar><label>Filter "
        "<input id=filter type=search placeholder='name, task, state …' autocomplete=off></label>"
        "<button id=comparing disabled>Compare</button><span id=shown class=quiet></span></div>"
        f"<table class=runs><thead><tr><th><span class=hidden>compare</span></th>{heads}</tr>"
        f"</thead><tbody id=rows>{list_rows(summaries)}</tbody></table></form>"
    )


def list_rows(summaries: Sequence[Summary]) -> str:
    """Return a row per run, or how to begin."""
    if not summaries:
        return (
            "<tr><td></td><td colspan=9>No runs yet: surefit train --data … writes one.</td></tr>"
        )
    return "".join(map(_list_row, summaries))


def _list_row(run: Summary) -> str:
    name, left = text_of(run.name), run.seconds_left
    share = f"{run.step:,} of {run.steps:,}" if run.steps else ""
    metric = "" if run.value is None else f"{text_of(run.metric)} {show_number(run.value)}"
    cells = (
        f'<a href="{run_address(run.name)}">{name}</a>' + f" <small>{text_of(run.fault)}</small>",
        f"<span class='state {run.state}'>{run.state}</span>",
        text_of(run.task),
        text_of(run.model),
        share,
        "" if run.loss is None else show_number(run.loss),
        metric,
        time.strftime("%Y-%m-%d %H:%M", time.localtime(run.begun)) if run.begun else "",
        "" if left is None else show_seconds(left),
    )
    drawn = "".join(
        f'<td data-name="{head}" data-value="{escape(str(_sorted_by(run, key)))}">{cell}</td>'
        for head, key, cell in zip(HEADS, SORTED_BY, cells, strict=True)
    )
    box = f'<input type=checkbox name=run value="{escape(run.name)}" aria-label="compare {name}">'
    return f"<tr><td>{box}</td>{drawn}</tr>"


def _sorted_by(run: Summary, key: str) -> Any:
    value = getattr(run, key)
    return "" if value is None else value


def run_parts(
    run: Summary | None, sections: Sequence[Section], job: Job | None, may_change: bool
) -> list[Part]:
    """Return the parts of a run's page; before its folder is there, what planning prints."""
    parts: list[Part] = [("state", _state(run, job))]
    if may_change and run is not None:
        parts.append(("actions", _actions(run)))
    if job is not None and (run is None or run.state not in RUNNING or not sections):
        printed = text_of(" ".join(job.command)), "<br>".join(map(text_of, job.printed.split("\n")))
        parts.append(("printed", f"<h2>Output</h2><pre>$ {printed[0]}\n{printed[1]}</pre>"))
    return [*parts, *(as_parts(sections) if sections else ())]


def _state(run: Summary | None, job: Job | None) -> str:
    if run is None:
        ended = "" if job is None or job.exit_code is None else f": ended with {job.exit_code}"
        state = "failed" if ended else "planning"
        return f"<p><span class='state {state}'>{state}</span>{ended}</p>"
    left = f"about {show_seconds(run.seconds_left)} left" if run.seconds_left is not None else ""
    loss = f"loss {show_number(run.loss)}" if run.loss is not None else ""
    metric = f"{text_of(run.metric)} {show_number(run.value)}" if run.value is not None else ""
    step = f"step {run.step:,} of {run.steps:,}"
    facts = " · ".join(filter(None, (step, loss, metric, left)))
    return (
        f"<p><span class='state {run.state}'>{run.state}</span> {facts}</p>"
        f'<progress max={max(run.steps, 1)} value={run.step} aria-label="{step}"></progress>'
    )


def _actions(run: Summary) -> str:
    buttons = []
    if run.state == "training":
        buttons.append("<button data-post=stop>Stop after this step</button>")
    if run.state in ("stopped", "failed"):
        buttons.append("<button data-post=resume>Resume</button>")
    if run.state == "finished" and run.task in CHAT_TASKS:
        buttons.append(f'<a class=button href="{run_address(run.name, "chat")}">Chat</a>')
    again = f"/new?from={quote(run.name)}"
    buttons.append(f'<a class=button href="{again}">New run like this</a>')
    return f"<div class=bar>{''.join(buttons)}</div>"


def chat_body() -> str:
    """Return the page of a conversation."""
    return (
        "<details><summary>System prompt</summary><textarea id=system rows=2 "
        "aria-label='System prompt'></textarea></details><div id=talk role=log></div>"
        "<form id=say class=bar><textarea id=message rows=2 required aria-label=Message "
        "placeholder='Enter sends, Shift+Enter makes a new line'></textarea>"
        "<button>Send</button><button type=button id=forget>Start again</button></form>"
    )


def form_body(values: Mapping[str, str], name: str, left_out: Sequence[str] = ()) -> str:
    """Return the form of a new run: a field per config key, with its help."""
    fields = config_fields()
    main = "".join(_field(key, values.get(key, "")) for key in MAIN_KEYS)
    groups: dict[str, list[str]] = {}
    for key in fields:
        if key not in (*MAIN_KEYS, "output"):
            groups.setdefault(key.rpartition(".")[0] or "training", []).append(key)
    more = "".join(
        f"<details{' open' if any(values.get(key) for key in keys) else ''}>"
        f"<summary>{escape(group)} <small>{len(keys)}</small></summary><div class=fields>"
        f"{''.join(_field(key, values.get(key, '')) for key in keys)}</div></details>"
        for group, keys in groups.items()
    )
    note = "The run names code, which its folder may not bring here. Fill it in yourself: "
    missing = f"<p class=warning>{note}{text_of(list(left_out))}</p>" if left_out else ""
    return (
        f"{missing}<form id=new><div class=fields>{main}</div>{more}<div class='bar sticky'>"
        f'<label>Name <input name=":name" value="{escape(name)}" required></label>'
        "<button type=button id=check>Check</button><button>Train</button>"
        "<span id=verdict role=status></span></div></form><div id=others></div>"
    )


def _field(key: str, value: str) -> str:
    info = config_fields()[key]
    choices, is_number = _choices(info.annotation)
    default = "" if info.default in (None, (), {}, "") else _shown(info.default)
    place = f"f-{key.replace('.', '-')}"
    about = f"id={place} name={key} aria-describedby={place}-help"
    if choices:
        options = "".join(
            f"<option{' selected' if each == value else ''}>{escape(each)}</option>"
            for each in choices
        )
        drawn = f"<select {about}><option value=''>{escape(default)}</option>{options}</select>"
    else:
        kind = " inputmode=decimal" if is_number else ""
        hint = escape(default)
        drawn = (
            f'<input {about}{kind} value="{escape(value)}" placeholder="{hint}" autocomplete=off>'
        )
    text = escape(" ".join((info.description or "").split()))
    return (
        f"<div class=field><label for={place}>{key}</label>{drawn}<small id={place}-help>{text}"
        f"</small><div class=found data-key={key}></div></div>"
    )


def _shown(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _choices(annotation: Any) -> tuple[list[str], bool]:
    """Return the values that a key may have, and whether it is a number.

    >>> _choices(Literal["a", "b"]), _choices(bool), _choices(float | None)
    ((['a', 'b'], False), (['true', 'false'], False), ([], True))
    """
    if annotation is bool:
        return ["true", "false"], False
    if get_origin(annotation) is Literal:
        return [str(each) for each in get_args(annotation)], False
    parts = [each for each in get_args(annotation) if each is not type(None)]
    if len(parts) == 1 and get_origin(annotation) is not tuple:
        return _choices(parts[0])
    return [], annotation in (int, float)


def drawn_findings(found: Sequence[Mapping[str, Any]]) -> str:
    """Return findings as they stand beside a field."""
    return "".join(
        f"<p class={escape(each['severity'])}><b>{escape(each['severity'])} {escape(each['code'])}"
        f"</b> {text_of(each['message'])}<br><small>{text_of(each['fix'])}</small></p>"
        for each in found
    )


def drawn_plan(plan: Mapping[str, Any]) -> str:
    """Return what a check found out beside its findings."""
    ledger, memory = plan.get("ledger") or {}, plan.get("memory") or {}
    seconds = (plan.get("time") or {}).get("predicted_total_seconds")
    peak = memory.get("predicted_peak_bytes")
    facts = {
        "task": plan.get("task"),
        "columns": json.dumps(plan.get("columns"), ensure_ascii=False),
        "training rows": ledger.get("train_rows"),
        "validation rows": ledger.get("eval_rows"),
        "dropped rows": json.dumps(ledger.get("dropped_rows")),
        "micro-batches per epoch": (plan.get("batches") or {}).get("count"),
        "predicted peak memory": None if peak is None else f"{peak / 1e9:.2f} GB",
        "predicted time": None if seconds is None else show_seconds(seconds),
    }
    return table(("", ""), ((n, v) for n, v in facts.items() if v not in (None, "null", "{}")))
