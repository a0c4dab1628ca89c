"""Planning with rows that are read while training: anew in each epoch, or from a stream."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from surefit.batches.order import Batches
from surefit.config import RunConfig
from surefit.data.python.live_rows import kept_randomness
from surefit.data.python.streams import Stream
from surefit.data.table import Table
from surefit.encode.augment.augmented_copies import AugmentedCopies
from surefit.encode.store import Store
from surefit.errors import UsageError
from surefit.pipeline.accept import refuse_stream
from surefit.pipeline.live_batch import ReadAnew
from surefit.pipeline.pipeline import Pipeline
from surefit.pipeline.stream_windows import StreamWindows
from surefit.plan.split_data import SplitData

MOST_WINDOWS = 20
"""Windows of a stream that the plan looks at."""


def check_stream(table: Table, eval_table: Table | None, config: RunConfig) -> None:
    """Refuse what a stream cannot do."""
    if eval_table is not None:
        refuse_stream(eval_table)
    if not isinstance(table.live, Stream):
        return
    name = table.live.name
    if config.max_steps is None:
        raise UsageError(
            f"data is {name}, a stream that does not end within {table.num_rows:,} rows, so its "
            "epochs have no end.",
            "Give the number of steps: --max-steps 1000 (max_steps=1000).",
        )
    if config.workers:
        raise UsageError(
            f"workers is {config.workers}, and a stream is read by one process.",
            "Leave workers out.",
        )
    if config.split.folds is not None:
        raise UsageError(
            "split.folds divides all rows, and a stream has no number of rows.",
            "Leave split.folds out.",
        )


def read_live(
    pipeline: Pipeline,
    data: SplitData,
    train: Store,
    validation: Store,
    copies: AugmentedCopies | None,
) -> Pipeline:
    """The Pipeline that reads training rows while training, if no Store can have them."""
    live = data.table.live
    if live is None or not len(train):
        return pipeline
    copies = copies and replace(copies, held_out=data.held_out)
    if isinstance(live, Stream):
        own = data.validation_table.key == data.table.key
        held_out = frozenset(validation.source_row.tolist()) if own else frozenset()
        size = sum(train.values(name).nbytes for name in train.fields)
        lengths = np.asarray(train.lengths)
        windows = StreamWindows(live, len(train), lengths, held_out, data.table.files, size)
        return replace(pipeline, live=replace(windows, copies=copies))
    if ((np.diff(train.source_row) == 0) & (np.diff(train.copy) == 0)).any():
        raise UsageError(
            "Long rows are split into blocks, and the rows of this Dataset are drawn anew in each "
            "epoch, with other lengths.",
            "Truncate them instead: --set overlong=truncate.",
        )
    source = ReadAnew(replace(live, files=data.table.files), copies)
    pipeline = replace(pipeline, live=source)
    with kept_randomness():
        source.encoded(pipeline, train, [0], 0)
    return pipeline


def run_length(pipeline: Pipeline, batches: Batches, config: RunConfig) -> tuple[int, int]:
    """The number of steps, and of epochs that are looked at; a stream has as many as it takes."""
    if isinstance(pipeline.live, StreamWindows):
        assert config.max_steps is not None
        windows = -(-config.max_steps // max(batches.num_steps(0), 1))
        return config.max_steps, min(windows, MOST_WINDOWS)
    num_steps = sum(batches.num_steps(epoch) for epoch in range(config.epochs))
    return min(num_steps, config.max_steps or num_steps), config.epochs
