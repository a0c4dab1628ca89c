"""Writes the tables of docs/reliability.md from results.json.

    python tests/reliability/page.py

The other scripts of this folder put their figures there, with `--results`.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).with_name("results.json")
PAGE = Path(__file__).parents[2] / "docs" / "reliability.md"
Results = dict[str, Any]


def main() -> None:
    """Write the tables between their marks."""
    PAGE.write_text(
        render(PAGE.read_text("utf-8"), json.loads(RESULTS.read_text("utf-8"))), "utf-8"
    )


def render(page: str, results: Results) -> str:
    """The page with the tables of these results."""
    for name, make in TABLES.items():
        begin, end = f"<!-- {name}: made by page.py -->\n", f"<!-- end of {name} -->"
        head, rest = page.split(begin)
        has = any(key.startswith(name) for key in results)
        lines = make(results) if has else ["Not measured yet."]
        page = head + begin + "\n".join(lines) + "\n" + end + rest.split(end)[1]
    return page


def kills(results: Results) -> list[str]:
    """Kills at random moments, by configuration and phase."""
    found = results["kills"]
    phases = ("planning", "starting", "training", "saving", "evaluation", "end")
    lines = [
        _machine(found) + f" Seed {found['seed']}.",
        "",
        f"| configuration | kills | {' | '.join(phases)} | runs | differ |",
        "| --- |" + " --- |" * (len(phases) + 3),
    ]
    total: Counter[str] = Counter()
    for tally in found["configurations"].values():
        hit = Counter(tally["phases"])
        counts = {"kills": tally["kills"], **{phase: hit[phase] for phase in phases}}
        counts |= {"runs": tally["runs"], "differ": len(tally["wrong"])}
        total.update(counts)
        lines.append(f"| {tally['about']} | {' | '.join(map(str, counts.values()))} |")
    return [*lines, f"| all | {' | '.join(str(total[name]) for name in counts)} |"]


def writes(results: Results) -> list[str]:
    """Strikes inside file operations, by what happened there and by scenario."""
    parts = {name: found for name, found in results.items() if name.startswith("writes")}
    lines = [
        _machine(next(iter(parts.values()))),
        "",
        "| at the operation | run | operations | struck | places | resumed | started again "
        "| finished all the same | wrong |",
        "| --- |" + " --- |" * 8,
    ]
    for name, found in parts.items():
        for tally in found["scenarios"].values():
            outcomes = Counter(tally["outcomes"])
            ends = ("resumed", "started again", "finished all the same")
            cells = [name.removeprefix("writes: "), tally["about"], tally["operations"]]
            cells += [tally["struck"], tally["places"], *(outcomes[end] for end in ends)]
            lines.append(f"| {' | '.join(map(str, cells))} | {len(tally['wrong'])} |")
    return lines


def faults(results: Results) -> list[str]:
    """Each fault and what came of it."""
    found = results["faults"]
    done = found["faults"]
    wrong = sum(bool(each) for each in done.values())
    lines = [
        f"{_machine(found)} {len(done)} faults, seed {found['seed']}; {wrong} wrong.",
        "",
        "| fault | result |",
        "| --- | --- |",
    ]
    return lines + [
        f"| {name} | {'**wrong**' if each else 'as it should'} |" for name, each in done.items()
    ]


def soak(results: Results) -> list[str]:
    """What long runs hold, and what it grew by."""
    found = results["soak"]
    lines = [
        _machine(found),
        "",
        "| run | figure | at 20 % | at the end | most | grew by | bound |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    for job in found["jobs"].values():
        run = f"{job['about']}, {job['steps']:,} steps"
        for name, figures in job["figures"].items():
            cells = [f"{figures[key]:.1f}" for key in ("first", "last", "most", "grew")]
            lines.append(f"| {run} | {name} | {' | '.join(cells)} | {found['bounds'][name]:g} |")
    return lines


def _machine(found: Results) -> str:
    about = found["machine"]
    return (
        f"{about['date']}, {about['cores']} cores, {about['system']}, Python {about['python']}, "
        f"torch {about['torch']}, surefit {about['surefit']}."
    )


TABLES: dict[str, Callable[[Results], list[str]]] = {
    "kills": kills,
    "writes": writes,
    "faults": faults,
    "soak": soak,
}


if __name__ == "__main__":
    main()
