"""`surefit check` and `surefit encode`: plan only, and encode the rows beforehand."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from surefit.cli.options import Quiet, TrustCode, Verbose, takes_run_options

if TYPE_CHECKING:
    from surefit.plan.plan import Plan


@takes_run_options
def check(  # noqa: PLR0913 - the options of the command
    settings: dict[str, Any],
    config: Path | None,
    resume: str | None,
    context: typer.Context,
    trust_code: TrustCode = None,
    quiet: Quiet = False,
    verbose: Verbose = False,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
    timings: Annotated[
        bool, typer.Option("--timings", help="Print the time of each stage of planning.")
    ] = False,
    processes: Annotated[
        int | None, typer.Option(help="Plan for so many processes.", min=1, show_default=False)
    ] = None,
    report: Annotated[
        Path | None, typer.Option(help="Write the plan as a page to this file.")
    ] = None,
    sarif: Annotated[
        Path | None, typer.Option(help="Write the findings as SARIF 2.1.0 to this file.")
    ] = None,
    device: Annotated[
        str | None, typer.Option(help="Plan for a device that is not here, such as a100-80gb.")
    ] = None,
) -> int:
    """Plan only: report errors, memory and time before training."""
    from surefit.api import check_request
    from surefit.cli.display import Display, print_json, show_plan
    from surefit.cli.summary_lines import result_line
    from surefit.cli.terminal import to_stdout, user_output_to_stderr
    from surefit.errors import UsageError
    from surefit.request import make_request, plan_for

    if resume is not None:
        raise UsageError("check does not take --resume.", "Use surefit train --resume RUN.")
    request = make_request(
        settings, config.parent if config is not None else None, trust_code or ()
    )
    request = replace(plan_for(request, processes, device), shows_only=True)
    with Display(quiet) as display, user_output_to_stderr():
        plan = check_request(request, display.progress)
    if report is not None:
        _write_report(plan, report, ("surefit", *context.obj))
    if sarif is not None:
        from surefit.report.page import write_page
        from surefit.report.sarif import BEGINNING, as_sarif

        first = next(iter(plan.config.data), "")
        asked = str(config) if config is not None else str(getattr(first, "path", first))
        write_page(sarif, as_sarif(plan.findings, asked), BEGINNING)
    taken = {name: round(seconds, 3) for name, seconds in plan.timings.items()}
    if json:
        names = ("not_checked", "remembered")
        times = {"timings": taken, **{name: getattr(plan, name) for name in names}}
        print_json({**plan.as_dict(), **(times if timings else {})})
    else:
        show_plan(plan, to_stdout(), quiet, verbose)
        for name, seconds in taken.items() if timings else ():
            known = ", remembered" if name in plan.remembered else ""
            print(result_line(f"{seconds:.2f} s", name + known))
        for name in plan.not_checked if timings else ():
            print(result_line("not checked", name))
    return 0 if plan.ok else 1


def _write_report(plan: Plan, path: Path, command: Sequence[str]) -> None:
    """Write what was planned as a page, with the first batches as the model sees them."""
    from surefit.cli.terminal import user_output_to_stderr
    from surefit.data.cache import use_cache
    from surefit.report.examples import begin_examples, make_examples
    from surefit.report.page import Subject, render_subject, write_page

    examples: dict[str, Any] = {}
    stored = plan.as_dict()
    if plan.job is not None:
        with use_cache(plan.config.cache), user_output_to_stderr():
            examples = begin_examples(plan.job)
            stored["examples"] = make_examples(plan.job)
    asked = plan.config.model_dump(mode="json")
    write_page(path, render_subject(Subject(stored, asked, command, examples=examples)))


@takes_run_options
def encode(
    settings: dict[str, Any],
    config: Path | None,
    resume: str | None,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
    processes: Annotated[
        int | None,
        typer.Option(help="Encode in so many processes.", min=1, show_default="one per core"),
    ] = None,
) -> int:
    """Read, check and encode the data; train and check then find the rows in the cache."""
    from surefit.cli.display import Display, print_json, show_plan
    from surefit.cli.terminal import to_stdout, user_output_to_stderr
    from surefit.data.cache import open_cache, use_cache
    from surefit.errors import UsageError
    from surefit.forked_map import use_children
    from surefit.plan.make_plan import make_plan
    from surefit.request import make_request

    if resume is not None:
        raise UsageError("encode does not take --resume.", "Run the same command again.")
    request = make_request(settings, config.parent if config is not None else None)
    with Display() as display, user_output_to_stderr(), use_children(processes):
        plan = make_plan(replace(request, encodes_only=True), display.progress)
    if json:
        print_json(plan.as_dict())
        return 0 if plan.is_encoded else 1
    console = to_stdout()
    show_plan(plan, console)
    with use_cache(plan.config.cache):
        console.print(f"{'cache':<10}{open_cache()}", markup=False, highlight=False)
    return 0 if plan.is_encoded else 1
