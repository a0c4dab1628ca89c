"""The generation config in a saved model's folder: what surefit generates text with."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from surefit.encode.encoder import Encoder
from surefit.tasks.generation import SHAPING

FILE = "generation_config.json"


def save_generation(encoder: Encoder, folder: Path) -> None:
    """Let plain `generate(do_sample=False)` make the texts that were evaluated.

    Penalties, beams and forced tokens of the base model, which an evaluation leaves out unless
    `generate.from_model` names them, are not in the file. How the base model samples is.
    """
    settings = encoder.settings.get("generate")
    if not settings or not (folder / FILE).is_file():
        return
    from transformers import GenerationConfig

    before = json.loads((folder / FILE).read_text(encoding="utf-8"))
    kept = {name: value for name, value in before.items() if name not in SHAPING}
    chosen = {name: value for name, value in settings.items() if name != "do_sample"}
    try:
        config: Any = GenerationConfig(**{**kept, **chosen})
    except ValueError:  # what is kept does not go with what was chosen
        config = GenerationConfig(**settings)
    config.save_pretrained(folder)
