"""`surefit evaluate`: the task's metrics on a data set."""

from __future__ import annotations

from typing import Annotated

import typer

from surefit.cli.options import TrustCode


def command(
    run: Annotated[str, typer.Argument(help="The run's folder.")],
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
    from surefit.cli.summary_lines import beside_figure
    from surefit.cli.terminal import user_output_to_stderr
    from surefit.encode.drop_reasons import describe_counts
    from surefit.encode.encoder import Encoder, read_state
    from surefit.run.events import without_nan
    from surefit.run.run_folder import open_run

    with Display() as display, user_output_to_stderr():
        opened = open_run(run, trust_code or ())
        result, store = evaluate_run(opened, data or None, progress=display.progress)
        fitted = read_state(opened.model_path)["fitted"]
        baselines, task = opened.plan.get("baselines", {}), opened.task
        if data and task.baselines is not None:  # what can be judged without the training rows
            encoder = Encoder(task.name, {}, fitted=fitted)
            baselines = without_nan(task.baselines(None, store, encoder))
    dropped = store.notes["dropped"]
    # In the order of the confusion matrix: a row per true class, a column per predicted one.
    classes = fitted.get("classes")
    classes = classes if "confusion" in result.metrics else None
    if json:
        print_json(
            {
                "ok": True,
                "metrics": without_nan(result.metrics),
                "baselines": baselines,
                **({"classes": classes} if classes is not None else {}),
                "rows": len(store),
                "dropped_rows": dropped,
                "precision": result.precision,
                "samples": result.samples,
            }
        )
        return 0
    for name, value in result.metrics.items():
        shown = f"{value:.6g}" if isinstance(value, int | float) else f"{value}"
        print(f"{name:<16}{shown}{beside_figure(name, baselines)}")
    if classes is not None:
        print(f"{'classes':<16}{classes}")
    print(f"{'rows':<16}{len(store)}")
    print(f"{'precision':<16}{result.precision}")
    if dropped:
        print(f"{'dropped':<16}{describe_counts(dropped)}")
    return 0
