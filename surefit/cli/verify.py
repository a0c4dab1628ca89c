"""`surefit verify`: check the files of a run, and compute one of its steps again."""

from __future__ import annotations

from typing import Annotated

import typer

from surefit.cli.options import TrustCode


def command(
    run: Annotated[str, typer.Argument(help="The folder of a run or an exported model.")],
    step: Annotated[
        int | None,
        typer.Option(min=1, help="Also compute this step again, and compare its event to the bit."),
    ] = None,
    trust_code: TrustCode = None,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> int:
    """Check the config, plan, events, checkpoints and model of a run."""
    from surefit.cli.display import Display, print_json, show_findings
    from surefit.cli.terminal import to_stderr, user_output_to_stderr
    from surefit.findings import has_errors, part_notes
    from surefit.run.exported_model import open_trained
    from surefit.run.verify_run import verify_files

    opened = open_trained(run, trust_code or ())
    findings = verify_files(opened)
    if step is not None and not has_errors(findings):
        from surefit.training.replay import verify_step

        with Display() as display, user_output_to_stderr():
            findings += verify_step(opened, step, progress=display.progress)
    ok = not has_errors(findings)
    if json:
        coded, notes = part_notes(findings)
        found = {"findings": [each.as_dict() for each in coded], "notes": list(notes)}
        print_json({"ok": ok, "run": run, **found})
        return 0 if ok else 1
    show_findings(findings, to_stderr())
    exact = step is None or opened.plan["num_processes"] == 1
    how = "the same to the bit" if exact else "the same as far as it was compared"
    checked = "" if step is None else f"; step {step} computed again is {how}"
    print(f"{run}: all files are as they were written{checked}" if ok else f"{run}: damaged")
    return 0 if ok else 1
