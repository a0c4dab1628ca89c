"""`surefit evaluate`: the task's metrics on a data set."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import typer

from surefit.cli.options import TrustCode


def command(
    run: Annotated[str, typer.Argument(help="The folder of a run or an exported model.")],
    data: Annotated[
        list[str] | None,
        typer.Option(help="Rows to evaluate. Default: the validation set of the run."),
    ] = None,
    trust_code: TrustCode = None,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> int:
    """Compute the task's metrics on a data set."""
    from surefit.api import evaluate_run
    from surefit.cli.display import Display, print_json
    from surefit.cli.terminal import user_output_to_stderr
    from surefit.inputs.encoder import Encoder, read_state
    from surefit.run.events import without_nan
    from surefit.run.exported_model import open_trained

    with Display() as display, user_output_to_stderr():
        opened = open_trained(run, trust_code or ())
        result, store = evaluate_run(opened, data or None, progress=display.progress)
        state = read_state(opened.model_path)
        fitted = state["fitted"]
        baselines, task = opened.plan.get("baselines", {}), opened.task
        if data and task.baselines is not None:  # what can be judged without the training rows
            encoder = Encoder(task.name, {}, fitted=fitted, settings=state["settings"])
            baselines = without_nan(task.baselines(None, store, encoder))
    # In the order of the confusion matrix: a row per true class, a column per predicted one.
    classes = fitted.get("classes") if "confusion" in result.metrics else None
    found = {
        "ok": True,
        "metrics": without_nan(result.metrics),
        "baselines": baselines,
        **({"classes": classes} if classes is not None else {}),
        "rows": len(store),
        "dropped_rows": store.notes["dropped"],
        "precision": result.precision,
        "samples": result.samples,
    }
    print_json(found) if json else _show({**found, "metrics": result.metrics})
    return 0


def _show(found: Mapping[str, Any]) -> None:
    """The result as lines of a name and a value."""
    from surefit.cli.summary_lines import beside_figure, result_line
    from surefit.inputs.encoded_row import describe_counts

    for name, value in found["metrics"].items():
        shown = f"{value:.6g}" if isinstance(value, int | float) else f"{value}"
        print(result_line(name, f"{shown}{beside_figure(name, found['baselines'])}"))
    for name in ("classes", "rows", "precision"):
        if name in found:
            print(result_line(name, found[name]))
    if found["dropped_rows"]:
        print(result_line("dropped", describe_counts(found["dropped_rows"])))
