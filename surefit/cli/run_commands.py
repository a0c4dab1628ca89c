"""Commands on the folder of a run: evaluate, predict, export, report, verify."""

from __future__ import annotations

import json as json_text
import sys
from base64 import b64encode
from collections.abc import Mapping
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from surefit.cli.options import SetGenerate, TrustCode, generation_settings

RunFolder = Annotated[str, typer.Argument(help="The folder of a run or an exported model.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]


def evaluate(  # noqa: PLR0913 - the options of the command
    run: RunFolder,
    data: Annotated[
        list[str] | None,
        typer.Option(help="Rows to evaluate. Default: the validation set of the run."),
    ] = None,
    trust_code: TrustCode = None,
    json: AsJson = False,
    set_: SetGenerate = None,
    suite: Annotated[
        str | None,
        typer.Option(help="Prompts, each with exact, regex, f1 or function, to answer and score."),
    ] = None,
    general_text: Annotated[
        str | None, typer.Option(help="A text file to measure loss and perplexity on, too.")
    ] = None,
    base: Annotated[
        bool, typer.Option("--base", help="Also judge the model before training.")
    ] = False,
) -> int:
    """Compute the task's metrics on a data set, or the scores of a suite of prompts."""
    from surefit.api import Asked, evaluate_run, generating
    from surefit.cli.display import Display, print_json
    from surefit.cli.terminal import user_output_to_stderr
    from surefit.inputs.encoder import read_encoder
    from surefit.run.events import without_nan
    from surefit.run.exported_model import open_trained

    with Display() as display, user_output_to_stderr():
        opened = generating(open_trained(run, trust_code or ()), generation_settings(set_))
        asked = Asked(data or None, suite, general_text, base)
        judged = evaluate_run(opened, asked, progress=display.progress)
        result, store = judged.evaluation, judged.store
        encoder = read_encoder(opened.model_path)
        baselines, task = opened.plan.get("baselines", {}), opened.task
        if (
            data and store is not None and task.figures.baselines is not None
        ):  # what can be judged without the training rows
            baselines = without_nan(task.figures.baselines(None, store, encoder))
    # In the order of the confusion matrix: a row per true class, a column per predicted one.
    classes = encoder.classes if "confusion" in result.metrics else None
    found = {
        "ok": True,
        "metrics": without_nan(result.metrics),
        "baselines": baselines,
        **({"classes": classes} if classes is not None else {}),
        **({} if store is None else {"rows": len(store), "dropped_rows": store.notes["dropped"]}),
        "precision": result.precision,
        "samples": result.samples,
        **({"scores": judged.scores, "items": judged.items} if suite else {}),
    }
    if judged.before is not None:
        before = {**judged.before.evaluation.metrics, **judged.before.scores}
        items = {"items": judged.before.items} if suite else {}
        found["before"] = {"metrics": without_nan(before), **items}
    shown = {**found, "metrics": {**result.metrics, **judged.scores}}
    print_json(found) if json else _show_metrics(shown)
    return 0


def _show_metrics(found: Mapping[str, Any]) -> None:
    """Print the result as lines of a name and a value."""
    from surefit.cli.summary_lines import beside_figure, result_line
    from surefit.inputs.encoded_row import describe_counts

    for name, value in found["metrics"].items():
        known = found.get("before", {"metrics": {}})["metrics"].get(name)
        figures = [value] if known is None else [known, value]
        shown = " → ".join(f"{n:.6g}" if isinstance(n, int | float) else f"{n}" for n in figures)
        print(result_line(name, f"{shown}{beside_figure(name, found['baselines'])}"))
    for name in ("classes", "rows", "precision"):
        if name in found:
            print(result_line(name, found[name]))
    if found.get("dropped_rows"):
        print(result_line("dropped", describe_counts(found["dropped_rows"])))


def predict(
    run: RunFolder,
    data: Annotated[list[str] | None, typer.Option(help="Rows to predict for.")] = None,
    text: Annotated[str | None, typer.Option(help="One text to predict for.")] = None,
    probabilities: Annotated[
        str | None, typer.Option(help="all: the probabilities of all classes.")
    ] = None,
    masks: Annotated[
        str | None,
        typer.Option(help="A folder for predicted masks, as PNG files; else they are in the JSON."),
    ] = None,
    trust_code: TrustCode = None,
    set_: SetGenerate = None,
) -> int:
    """Print predictions as JSON lines, one per row and in their order."""
    from surefit.api import generating, iter_predictions
    from surefit.cli.terminal import user_output_to_stderr
    from surefit.errors import UsageError
    from surefit.inputs.encoder import read_encoder
    from surefit.run.exported_model import open_trained

    opened = generating(open_trained(run, trust_code or ()), generation_settings(set_))
    if (data is None) == (text is None):
        raise UsageError("Expected either --data or --text.", "Pass one of them.")
    rows: object = data
    if text is not None:
        if not opened.has_model:
            opened.load()  # says how to finish the run
        roles = read_encoder(opened.model_path).roles
        reading = ("text", "prompt", "messages", "source", "tokens", "chosen", "anchor")
        role = next((role for role in reading if role in roles), None)
        if role is None:
            raise UsageError("This run does not read text.", "Pass rows with --data.")
        forms = {"messages": [{"role": "user", "content": text}]}
        rows = [{roles[role]: forms.get(role, text)}]
    results, as_plain = sys.stdout, partial(plain_value, masks)
    with user_output_to_stderr():
        for prediction in iter_predictions(opened, rows, probabilities=probabilities):
            shown = {name: as_plain(prediction, value) for name, value in prediction.items()}
            print(json_text.dumps(shown, ensure_ascii=False), file=results, flush=True)
    return 0


def plain_value(folder: str | None, prediction: Mapping[str, Any], value: Any) -> Any:
    """Return a value of a prediction for JSON: a mask is the path of its file, else its PNG."""
    import numpy as np

    from surefit.core import files
    from surefit.targets.masks import mask_as_png

    if not isinstance(value, np.ndarray):
        return value
    content = mask_as_png(value)
    if folder is None:
        return {"png": b64encode(content).decode()}
    path = Path(folder) / f"row-{prediction['row']}.png"
    path.parent.mkdir(parents=True, exist_ok=True)
    files.write_bytes(path, content)
    return str(path)


class Form(StrEnum):
    """What a trained model can be written as, besides a folder for transformers."""

    onnx = "onnx"


def export(
    run: RunFolder,
    out: Annotated[Path, typer.Argument(help="The folder to write; it must not exist.")],
    merge: Annotated[
        bool, typer.Option("--merge", help="Merge LoRA adapters into the weights.")
    ] = False,
    to: Annotated[Form | None, typer.Option(help="Write another form: onnx.")] = None,
    data: Annotated[
        list[str] | None,
        typer.Option(help="Rows to compare the ONNX file with the module on. Default: the run's."),
    ] = None,
    trust_code: TrustCode = None,
) -> int:
    """Write the trained model as a plain transformers or peft folder.

    Your own nn.Module is written as safetensors and JSON, or with --to onnx as a file that
    onnxruntime runs for any batch size and sequence length.
    """
    from surefit.cli.terminal import user_output_to_stderr
    from surefit.run.exported_model import export_model, export_onnx, open_trained

    opened = open_trained(run, trust_code or ())
    if to is Form.onnx:
        with user_output_to_stderr():
            difference = export_onnx(opened, out, data or ())
        message = "The ONNX file computes what the module does; largest relative difference"
        print(f"{message} {difference:.1g}.", file=sys.stderr)
    else:
        export_model(opened, out, merge)
    print(out)
    return 0


def report(
    runs: Annotated[
        list[str], typer.Argument(help="A run's folder; several are compared.", metavar="RUN...")
    ],
    output: Annotated[
        Path | None,
        typer.Option(help="The file to write.", show_default="RUN/report.html, or comparison.html"),
    ] = None,
) -> int:
    """Write the report.html of a run, or a page that compares several; print its path."""
    from surefit.report.compare import compare
    from surefit.report.page import render, write_page, write_report
    from surefit.run.run_folder import open_run

    opened = [open_run(run) for run in runs]
    if len(opened) == 1 and output is None:
        print(write_report(opened[0]))
        return 0
    path = output or Path("comparison.html")
    write_page(path, compare(opened) if len(opened) > 1 else render(opened[0]))
    print(path)
    return 0


def verify(
    run: RunFolder,
    step: Annotated[
        int | None,
        typer.Option(min=1, help="Also compute this step again, and compare its event to the bit."),
    ] = None,
    trust_code: TrustCode = None,
    json: AsJson = False,
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
