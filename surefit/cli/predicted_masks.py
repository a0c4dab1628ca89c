"""Masks that a model predicts: as PNG files in a folder, or inside the JSON lines."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from surefit import atomic
from surefit.encode.images.mask_files import mask_as_png, png_as_text


def plain_value(folder: str | None, prediction: Mapping[str, Any], value: Any) -> Any:
    """A value of a prediction as JSON has it: a mask is the path of its file, else its PNG."""
    if not isinstance(value, np.ndarray):
        return value
    content = mask_as_png(value)
    if folder is None:
        return {"png": png_as_text(content)}
    path = Path(folder) / f"row-{prediction['row']}.png"
    path.parent.mkdir(parents=True, exist_ok=True)
    atomic.write_bytes(path, content)
    return str(path)
