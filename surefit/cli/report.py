"""`surefit report`: the HTML report of a run."""

from __future__ import annotations

from typing import Annotated

import typer


def command(run: Annotated[str, typer.Argument(help="The run's folder.")]) -> int:
    """Write the report.html of a run, and print its path."""
    from surefit.report.page import write_report
    from surefit.run.run_folder import open_run

    print(write_report(open_run(run)))
    return 0
