"""`surefit predict`: predictions as JSON lines."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from surefit.cli.options import TrustCode


def command(
    run: Annotated[str, typer.Argument(help="The folder of a run or an exported model.")],
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
) -> int:
    """Print predictions as JSON lines, one per row and in their order."""
    from functools import partial

    from surefit.api import iter_predictions
    from surefit.cli.terminal import user_output_to_stderr
    from surefit.errors import UsageError
    from surefit.inputs.encoder import read_state
    from surefit.run.exported_model import open_trained

    opened = open_trained(run, trust_code or ())
    if (data is None) == (text is None):
        raise UsageError("Expected either --data or --text.", "Pass one of them.")
    rows: object = data
    if text is not None:
        if not opened.has_model:
            opened.load()  # says how to finish the run
        roles = read_state(opened.model_path)["roles"]
        reading = ("text", "prompt", "messages", "source", "tokens")
        role = next((role for role in reading if role in roles), None)
        if role is None:
            raise UsageError("This run does not read text.", "Pass rows with --data.")
        forms = {"tokens": text.split(), "messages": [{"role": "user", "content": text}]}
        rows = [{roles[role]: forms.get(role, text)}]
    results, as_plain = sys.stdout, partial(plain_value, masks)
    with user_output_to_stderr():
        for prediction in iter_predictions(opened, rows, probabilities=probabilities):
            shown = {name: as_plain(prediction, value) for name, value in prediction.items()}
            print(json.dumps(shown, ensure_ascii=False), file=results, flush=True)
    return 0


def plain_value(folder: str | None, prediction: Mapping[str, Any], value: Any) -> Any:
    """A value of a prediction as JSON has it: a mask is the path of its file, else its PNG."""
    import numpy as np

    from surefit.core import files
    from surefit.inputs.image.mask_files import mask_as_png, png_as_text

    if not isinstance(value, np.ndarray):
        return value
    content = mask_as_png(value)
    if folder is None:
        return {"png": png_as_text(content)}
    path = Path(folder) / f"row-{prediction['row']}.png"
    path.parent.mkdir(parents=True, exist_ok=True)
    files.write_bytes(path, content)
    return str(path)
