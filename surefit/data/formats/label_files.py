"""Labels that are saved in a file of their own, beside the features or images that they belong to.

`X.npy` has `y.npy` or `labels.npy`, `X_train.npy` has `y_train.npy`, `shard-3.features.npy` has
`shard-3.labels.npy`; an IDX file `train-images-idx3-ubyte` has `train-labels-idx1-ubyte`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

_FEATURES = ("x", "features", "feature", "inputs_embeds", "embeddings", "data", "inputs")
_LABELS = ("y", "Y", "labels", "label", "targets", "target")
IDX = re.compile(r"(.*[-._])?idx\d?(-ubyte)?")
"""The name of an IDX file, in lower case and without `.gz`."""


def labels_beside(path: Path) -> Path | None:
    """The label file that matches the name of a file, if it exists."""
    beside = (path.with_name(name) for name in label_names(path.name))
    return next((file for file in beside if file.is_file()), None)


def label_names(name: str) -> list[str]:
    """The names that the label file of a file of features or images may have."""
    if IDX.fullmatch(name.lower().removesuffix(".gz")):
        labels = name.replace("images", "labels").replace("idx3", "idx1").removesuffix(".gz")
        return [labels, f"{labels}.gz"] if "images" in name else []
    if not name.endswith(".npy"):
        return []
    words = re.split(r"([-_.])", name.removesuffix(".npy"))
    return [
        "".join([*words[:at], label, *words[at + 1 :]]) + ".npy"
        for at, word in enumerate(words)
        if word.lower() in _FEATURES
        for label in _LABELS
    ]


def without_labels(files: Sequence[Path]) -> list[Path]:
    """The files without the label files of others.

    A single pair of `.npy` files is kept: its arrays become two columns with their own names.
    """
    paired = [labels for file in files if (labels := labels_beside(file)) and labels in files]
    if len({*paired}) == 1 and paired[0].suffix == ".npy":
        return list(files)
    return [file for file in files if file not in paired]
