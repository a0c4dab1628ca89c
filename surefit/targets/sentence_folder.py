"""The folder of a model of sentence-transformers: how it pools is read and written here.

Beside the files of transformers it has modules.json, which names what is done with the vectors of
tokens, and a folder with the settings of each module.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from surefit.core import files
from surefit.core.foreign import read_json
from surefit.errors import UsageError
from surefit.inputs.encoder import Encoder

POOLINGS = {"mean": "pooling_mode_mean_tokens", "cls": "pooling_mode_cls_token"}
POOLINGS |= {"last": "pooling_mode_lasttoken"}
"""How the vectors of tokens become one, and what sentence-transformers calls it."""


@dataclass(frozen=True)
class _Module:
    """An entry of modules.json."""

    type: str


def read_pooling(folder: Path) -> str | None:
    """Return how a model of sentence-transformers pools; None where its folder does not say."""
    if not (folder / "modules.json").is_file():
        return None
    modules = read_json(folder / "modules.json", list[_Module])
    kinds = [each.type for each in modules]
    other = [kind for kind in kinds if not kind.endswith(("Transformer", "Pooling", "Normalize"))]
    path = folder / "1_Pooling" / "config.json"
    known = read_json(path, dict[str, Any]) if path.is_file() else {}
    stated = str(known.get("pooling_mode", "")).replace("lasttoken", "last")
    found = [name for name, key in POOLINGS.items() if known.get(key) or stated == name]
    if other or len(found) != 1:
        what = f"the module {other[0]}" if other else "another pooling than mean, cls or last"
        raise UsageError(
            f"{folder} has {what}, which surefit does not compute.",
            "Pass a model of transformers, or train it with sentence-transformers.",
        )
    return found[0]


def save_modules(encoder: Encoder, config: Any, folder: Path) -> None:
    """Write what makes a model's folder one of sentence-transformers, which gives the vectors."""
    settings = encoder.settings.embedding
    if settings is None:
        return
    kinds = ("Transformer", "Pooling", "Normalize")
    modules = [
        {
            "idx": number,
            "name": str(number),
            "path": f"{number}_{kind}" if number else "",
            "type": f"sentence_transformers.models.{kind}",
        }
        for number, kind in enumerate(kinds)
    ]
    size = config.get_text_config().hidden_size
    pooling = {key: name == settings.pooling for name, key in POOLINGS.items()}
    files.write_json(folder / "modules.json", modules)
    limit = {"max_seq_length": encoder.max_length, "do_lower_case": False}
    files.write_json(folder / "sentence_bert_config.json", limit)
    about = {"similarity_fn_name": "cosine"}
    files.write_json(folder / "config_sentence_transformers.json", about)
    for number, kind in enumerate(kinds[1:], start=1):
        (folder / f"{number}_{kind}").mkdir()
    sizes = {"word_embedding_dimension": size, **pooling}
    files.write_json(folder / "1_Pooling" / "config.json", sizes)
