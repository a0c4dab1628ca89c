"""`surefit selftest`: real runs on this machine, as a table and JSON."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer


def command(
    device: Annotated[
        str | None,
        typer.Option(help="cpu, cuda or mps; the accelerator if there is one.", show_default=False),
    ] = None,
    only: Annotated[
        list[str] | None,
        typer.Option(help="Only this check; may be given several times.", show_default=False),
    ] = None,
    output: Annotated[Path, typer.Option(help="Where to write the outcomes as JSON.")] = Path(
        "surefit-selftest.json"
    ),
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> int:
    """Train small models on this machine, and check that what comes out is right."""
    from surefit import atomic
    from surefit.cli.display import Display, print_json
    from surefit.run.run_folder import check_writable
    from surefit.selftest.registry import CHECKS, summary_of
    from surefit.selftest.run_checks import choose_device, describe_machine, run_checks

    names = _choose(only or [], list(CHECKS))
    chosen = choose_device(device)
    check_writable(output.parent)
    outcomes = []
    with Display() as display:
        display.progress("checks", 0, len(names))
        for outcome in run_checks(names, chosen):
            outcomes.append(outcome)
            display.progress("checks", len(outcomes), len(names))
            told = f": {outcome.message}" if outcome.message else ""
            line = f"{outcome.status:<8}{outcome.name:<16}{outcome.seconds:6.1f} s{told}"
            display.console.print(line, markup=False, highlight=False)
    ok = not any(outcome.status == "failed" for outcome in outcomes)
    found: dict[str, Any] = {
        "ok": ok,
        "machine": describe_machine(chosen),
        "checks": [
            {**outcome.as_dict(), "shows": summary_of(CHECKS[outcome.name])} for outcome in outcomes
        ],
    }
    atomic.write_json(output, found)
    if json:
        print_json(found)
    else:
        _show(found, output)
    return 0 if ok else 1


def _choose(only: list[str], known: list[str]) -> list[str]:
    """The checks to run; a name that is none of them is refused."""
    from surefit.errors import UsageError

    unknown = [name for name in only if name not in known]
    if unknown:
        raise UsageError(f"There is no check {unknown[0]!r}.", f"Checks are {', '.join(known)}.")
    return [name for name in known if not only or name in only]


def _show(found: dict[str, Any], output: Path) -> None:
    from rich.table import Table

    from surefit.cli.guarded_console import as_line, to_stdout

    console = to_stdout()
    table = Table("check", "outcome", "seconds", "figures", title="Selftest")
    for check in found["checks"]:
        figures = ", ".join(f"{name} {_short(value)}" for name, value in check["figures"].items())
        cells = (check["name"], check["status"], f"{check['seconds']:.1f}")
        table.add_row(*map(as_line, cells), as_line(check["message"] or figures))
    console.print(table)
    counted = [check["status"] for check in found["checks"]]
    parts = (f"{counted.count(status)} {status}" for status in ("passed", "failed", "skipped"))
    console.print(as_line(", ".join(parts)))
    console.print(as_line(f"written to {output}"))


def _short(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
