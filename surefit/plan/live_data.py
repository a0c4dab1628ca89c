"""Planning with rows that are read anew in each epoch."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from surefit.data.python.live_rows import kept_randomness
from surefit.data.table import Table
from surefit.encode.augment.augmented_copies import AugmentedCopies
from surefit.encode.store import Store
from surefit.errors import UsageError
from surefit.pipeline.live_batch import read_anew
from surefit.pipeline.pipeline import Pipeline


def read_live(
    pipeline: Pipeline, table: Table, train: Store, copies: AugmentedCopies | None
) -> Pipeline:
    """The Pipeline that reads training rows anew, if their Dataset draws them so."""
    if table.live is None or not len(train):
        return pipeline
    if copies is not None:
        raise UsageError(
            "augmentation_factor makes copies of the rows once, and the rows of this Dataset are "
            "drawn anew in each epoch.",
            "Leave augmentation_factor out, or change the texts in the Dataset.",
        )
    if (np.diff(train.source_row) == 0).any():
        raise UsageError(
            "Long rows are split into blocks, and the rows of this Dataset are drawn anew in each "
            "epoch, with other lengths.",
            "Truncate them instead: --set overlong=truncate.",
        )
    pipeline = replace(pipeline, live=replace(table.live, files=table.files))
    with kept_randomness():
        read_anew(pipeline, int(train.source_row[0]), 0)
    return pipeline
