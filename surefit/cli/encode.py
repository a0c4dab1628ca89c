"""`surefit encode`: read, check and encode the data into the cache beforehand."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from surefit.cli.options import takes_run_options


@takes_run_options
def command(
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
