"""Labels of an array of features that are saved in a separate file next to it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

_FEATURES = ("x", "features", "feature", "inputs_embeds", "embeddings", "data", "inputs")
_LABELS = ("y", "Y", "labels", "label", "targets", "target")


def labels_beside(path: Path) -> Path | None:
    """The label file that matches the name of a `.npy` file of features, if it exists.

    `X.npy` has `y.npy` or `labels.npy`, `X_train.npy` has `y_train.npy`, `shard-3.features.npy`
    has `shard-3.labels.npy`.
    """
    beside = (path.with_name(name) for name in label_names(path.name))
    return next((file for file in beside if file.is_file()), None)


def label_names(name: str) -> list[str]:
    """The names that the label file of a `.npy` file of features may have."""
    if not name.endswith(".npy"):
        return []
    words = re.split(r"([-_.])", name.removesuffix(".npy"))
    return [
        "".join([*words[:at], label, *words[at + 1 :]]) + ".npy"
        for at, word in enumerate(words)
        if word.lower() in _FEATURES
        for label in _LABELS
    ]


def without_paired_labels(files: Sequence[Path]) -> list[Path]:
    """The files without the label files of others, if several files have label files.

    A single pair is kept: its arrays become two columns with their own names.
    """
    paired = {labels for file in files if (labels := labels_beside(file)) in files}
    return [file for file in files if file not in paired] if len(paired) > 1 else list(files)
