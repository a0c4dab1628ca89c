"""The recorded results of the runs on real data, and the tables of docs/real-runs.md made of them.

Results are kept in bench/real_run_results.json, one per run and kind, each with its own machine and
date. A run that is measured again replaces its own result only. The prose of the page is written by
hand: only the text between `<!-- NAME -->` and `<!-- end NAME -->` is replaced.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from real_run_commands import shown_command
from real_run_list import RUNS, RealRun

RESULTS = Path(__file__).with_name("real_run_results.json")
KINDS = {"first": (0, False), "again": (1234, True)}
"""Per kind of run its seed, and whether columns and modules get other names."""
HEAD = (
    "run",
    "goals",
    "reached",
    "figures without a goal",
    "minutes",
    "measured",
    "command",
)

Result = dict[str, Any]
Results = dict[str, dict[str, Result]]


def runs_of(kind: str) -> list[RealRun]:
    """The runs of the list that are run in this kind."""
    return [spec for spec in RUNS if kind == "first" or spec.repeated]


def read_results(path: Path = RESULTS) -> Results:
    """The results by kind and by the run's name."""
    found: Results = json.loads(path.read_text("utf-8")) if path.is_file() else {}
    return {kind: found.get(kind, {}) for kind in KINDS}


def write_results(results: Results, path: Path = RESULTS) -> None:
    """Write the results in the order of the list, without those of runs that left it."""
    ordered = {
        kind: {s.name: results[kind][s.name] for s in runs_of(kind) if s.name in results[kind]}
        for kind in KINDS
    }
    path.write_text(json.dumps(ordered, indent=1, ensure_ascii=False) + "\n", "utf-8")


def is_current(result: Result, spec: RealRun, kind: str) -> bool:
    """Whether a result is of the command and of the figures that the run has today."""
    command = shown_command(spec, *KINDS[kind])
    return result["command"] == command and [*result["figures"]] == [f.text for f in spec.figures]


def reaches_goals(result: Result, spec: RealRun) -> bool:
    """Whether a current result reaches the goals that the run has today."""
    return all(figure.reached(result["figures"][figure.text]) for figure in spec.figures)


def tables(results: Results) -> dict[str, str]:
    """The parts of the page that are made from results, by name."""
    every = [result["machine"] for kind in KINDS for result in results[kind].values()]
    machines = list(dict.fromkeys(every))
    listed = [f"- Machine {number}: {name}." for number, name in enumerate(machines, start=1)]
    made = {"machines": "\n".join(listed)}
    for kind in KINDS:
        rows = [_row(spec, kind, results[kind].get(spec.name), machines) for spec in runs_of(kind)]
        made[kind] = "\n".join([_line(HEAD), _line(["---"] * len(HEAD)), *rows])
    return made


def _line(cells: tuple[str, ...] | list[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _row(spec: RealRun, kind: str, result: Result | None, machines: list[str]) -> str:
    command = f"`{shown_command(spec, *KINDS[kind])}`"
    goals = [figure for figure in spec.figures if figure.least is not None]
    others = [figure.text for figure in spec.figures if figure.least is None]
    must = "; ".join(f"{goal.text} ≥ {goal.least:g}" for goal in goals) or "none"
    if result is None or not is_current(result, spec, kind):
        return _line([spec.name, must, "**not measured**", "", "", "", command])
    found = result["figures"]
    reached = "; ".join(f"{found[goal.text]:.3g}" for goal in goals)
    return _line(
        [
            spec.name,
            must,
            reached if reaches_goals(result, spec) else f"**missed**: {reached}",
            "; ".join(f"{text} {found[text]:.3g}" for text in others),
            f"{result['minutes']:.1f}",
            f"{result['date']}, machine {machines.index(result['machine']) + 1}",
            command,
        ]
    )


def renew(page: str, parts: Mapping[str, str]) -> str:
    r"""The page with the named parts replaced.

    >>> renew("a <!-- x --> old <!-- end x --> b", {"x": "new"})
    'a <!-- x -->\n\nnew\n\n<!-- end x --> b'
    """
    for name, text in parts.items():
        begin, end = f"<!-- {name} -->", f"<!-- end {name} -->"
        above, found, rest = page.partition(begin)
        _, closed, below = rest.partition(end)
        if not found or not closed:
            raise ValueError(f"the page has no {begin} with {end} after it")
        page = f"{above}{begin}\n\n{text}\n\n{end}{below}"
    return page
