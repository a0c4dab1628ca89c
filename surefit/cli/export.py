"""`surefit export`: the trained model in a separate folder."""

from __future__ import annotations

import sys
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from surefit.cli.options import TrustCode


class Form(StrEnum):
    """What a trained model can be written as, besides a folder for transformers."""

    onnx = "onnx"


def command(
    run: Annotated[str, typer.Argument(help="The folder of a run or an exported model.")],
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
