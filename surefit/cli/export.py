"""`surefit export`: the trained model in a separate folder."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from surefit.cli.options import TrustCode


def command(
    run: Annotated[str, typer.Argument(help="The run's folder.")],
    out: Annotated[Path, typer.Argument(help="The folder to write; it must not exist.")],
    merge: Annotated[
        bool, typer.Option("--merge", help="Merge LoRA adapters into the weights.")
    ] = False,
    trust_code: TrustCode = None,
) -> int:
    """Write the trained model as a plain transformers or peft folder.

    Your own nn.Module is written as safetensors and JSON.
    """
    import shutil

    from surefit import atomic, digests
    from surefit.errors import UsageError
    from surefit.models.lora_files import has_adapters, point_to_base
    from surefit.models.save_model import save_merged
    from surefit.run.run_folder import check_writable, open_run

    opened = open_run(run, trust_code or ())
    if not opened.has_model:
        opened.load()  # says how to finish the run
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise UsageError(f"{out} already exists.", "Choose another folder.")
    check_writable(out)
    if merge and has_adapters(opened.model_path):
        save_merged(opened.model_path, opened.task, out, opened.code)
    else:
        without_digests = shutil.ignore_patterns(digests.FILE)  # of the run, not of the export
        with atomic.new_folder(out) as temporary:
            shutil.copytree(
                opened.model_path, temporary, ignore=without_digests, dirs_exist_ok=True
            )
            point_to_base(temporary, out)
    print(out)
    return 0
