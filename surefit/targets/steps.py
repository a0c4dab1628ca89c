"""Classes of vectors or sequences of features, or of their time steps.

Of classes per time step, `labels` are (B, T) class numbers, -100 where a step has no class. Losses
and metrics see the labelled steps of a batch as targets of their own: scores (N, C), classes (N,).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from surefit.batches.field import IGNORE_INDEX, Field, describe_misalignment
from surefit.data.column_types import array_rank
from surefit.data.data_rules import MISALIGNED_COLUMNS
from surefit.data.roles import get_role
from surefit.findings import Finding, note
from surefit.inputs.encoded_row import (
    DropReason,
    EncodeRow,
    Encoding,
    RowFaultError,
    drop_row,
    encoded,
)
from surefit.inputs.encoder import Encoder
from surefit.inputs.encoder_state import ClassLabels, FittedTarget
from surefit.inputs.features.feature_sequences import (
    FEATURES,
    FIELDS,
    are_vectors,
    as_steps,
    read_steps,
)
from surefit.inputs.row_input import is_blank
from surefit.targets.class_loss import class_loss, class_probabilities
from surefit.targets.classes import (
    UNSUITABLE_LABEL,
    by_name,
    class_list,
    class_name,
    class_scores,
    decode_classes,
    fit_classes,
)
from surefit.targets.metrics.class_metrics import usual_metrics
from surefit.targets.row_target import CLASSES
from surefit.targets.task_spec import Batch, Body, Head

if TYPE_CHECKING:
    import torch

LOOKED_AT = 64
"""Training rows that decide what a list of labels is."""
NEARLY = 0.2
"""Lists of recurring classes that differ from the sequences by less are meant for their steps."""
LABELS = Field(("time",), "int64", IGNORE_INDEX, "inputs_embeds")
NUM_STEPS = Field((), "int64")
"""Time steps of a row before it was truncated, for predictions."""
Labels = npt.NDArray[Any]


def _accepts_labels(kind: Any, named: bool) -> bool:
    """Return whether a column may hold the labels of rows or of their steps, one-hot ones too."""
    return get_role("label").accepts(kind, named) or (named and array_rank(kind) == 2)


LABEL = replace(get_role("label"), accepts=_accepts_labels)


def is_per_step(encoder: Encoder) -> bool:
    """Return whether each time step has a class."""
    return encoder.target.classes is not None and encoder.target.classes.by_step


def choose_labels(
    first: Sequence[Mapping[str, Any]], encoder: Encoder
) -> tuple[bool, list[Finding]]:
    """Return whether the labels are of steps, as the first rows decide it, and a note about it."""
    asked = encoder.settings.labels.by
    decided, why = asked == "step", ""
    if asked is None and not are_vectors(encoder):
        decided, why = _decide([each for row in first for each in _sizes(row, encoder)])
    column = encoder.roles["label"]
    return decided, [note(f"column {column!r}: {why}.", column=column)] if why else []


def _sizes(row: Mapping[str, Any], encoder: Encoder) -> Iterator[tuple[tuple[int, int], list[Any]]]:
    """Steps and width of a row beside its labels, where these are a list."""
    labels, steps = row.get("label"), None
    found = class_list(labels)
    try:
        steps = as_steps(row["features"], encoder)
    except RowFaultError:  # reported when the row is encoded
        return
    if found is not None and steps is not None and steps.ndim == 2:
        yield steps.shape, found


def _decide(rows: Sequence[tuple[tuple[int, int], list[Any]]]) -> tuple[bool, str]:
    """Return whether lists are labels of steps, and the reason where it needs one.

    >>> _decide([((3, 8), ["rest", "rest", "walk"]), ((2, 8), ["walk", "walk"])])
    (True, 'one class per time step; the lists of labels are as long as the sequences')
    >>> _decide([((3, 8), [0, 1, 0]), ((3, 8), [0, 0, 1])])[1]
    'one class per row; the lists of labels are as long as the sequences, but one-hot'
    >>> _decide([((9, 8), ["red", "blue"]), ((9, 8), ["red"])])
    (False, '')
    """
    longer = [(shape, labels) for shape, labels in rows if max(shape[0], len(labels)) > 1]
    most = len(longer) / 2
    if longer and sum(shape[0] == len(labels) for shape, labels in longer) > most:
        sizes = {len(labels) for _, labels in longer}
        as_long = "the lists of labels are as long as the sequences"
        if len(sizes) == 1 and all(_is_one_hot(labels) for _, labels in longer):
            return False, f"one class per row; {as_long}, but one-hot"
        return True, f"one class per time step; {as_long}"
    near = [
        _repeats(labels) and abs(shape[0] - len(labels)) <= max(1, NEARLY * shape[0])
        for shape, labels in longer
    ]
    if longer and sum(near) > most:
        return True, "one class per time step; classes recur within the lists of labels"
    if longer and sum(shape[1] == len(labels) > 2 for shape, labels in longer) > most:
        return False, "classes of the row; the lists of labels are as long as the last axis"
    return False, ""


def _is_one_hot(labels: Sequence[Any]) -> bool:
    return set(map(str, labels)) <= {"0", "1", "0.0", "1.0", "True", "False"} and sum(labels) == 1


def _repeats(labels: Sequence[Any]) -> bool:
    """Whether a list has a class twice, and is no list of 0 and 1 with a place for each class."""
    if any(isinstance(label, list) for label in labels):
        return True  # (T, C)
    names = [str(label) for label in labels]
    return len({*names}) < len(names) and not {*names} <= {"0", "1", "0.0", "1.0"}


def fit_step_classes(rows: Iterable[Mapping[str, Any]], encoder: Encoder) -> ClassLabels:
    """Return the classes of the training rows' steps, sorted, with how many steps each has."""
    counts: Counter[Any] = Counter()
    for row in rows:
        if not is_blank(row.get("label")):
            values = _as_list(row["label"])
            counts.update(class_name(label) for label in values if not _is_ignored(label))
    column = encoder.roles["label"]
    if len(counts) < 2:
        raise UNSUITABLE_LABEL.error(
            f"column {column!r} has {len(counts)} class{'' if len(counts) == 1 else 'es'} in "
            f"{counts.total()} labelled time steps of the training rows; at least 2 are needed.",
            fix="Give rows with other classes, or choose another column. Steps with the label -100 "
            "count as not labelled.",
            column=column,
        )
    names = tuple(sorted(counts, key=lambda name: (isinstance(name, str), name)))
    return ClassLabels(names, tuple(counts[name] for name in names), by_step=True)


def _is_ignored(label: Any) -> bool:
    return is_blank(label) or (not isinstance(label, str) and label == IGNORE_INDEX)


def _as_list(value: Any) -> list[Any]:
    """Return the labels of a row's steps; of one-hot steps (T, C), their places."""
    labels = class_list(value)
    if labels is None:
        raise RowFaultError(
            UNSUITABLE_LABEL,
            f"the label is {str(value)[:40]!r}; expected a list with a class for each time step, "
            "as in other rows",
            "label",
            fix="Give a list of labels in every row, or one label per row in all of them.",
        )
    if not any(isinstance(label, list) for label in labels):
        return labels
    steps = [label if isinstance(label, list) else [label] for label in labels]
    if all(len(step) == 1 for step in steps):
        return [step[0] for step in steps]
    if not all(_is_one_hot(step) for step in steps):
        raise RowFaultError(
            UNSUITABLE_LABEL,
            f"time step {next(n for n, step in enumerate(steps) if not _is_one_hot(step))} has "
            "several labels that are not one-hot; expected one class per time step",
            "label",
            fix="Save one class per time step; of scores, that is labels.argmax(-1).",
        )
    return [step.index(1) for step in steps]


def step_places(row: Mapping[str, Any], num_steps: int, encoder: Encoder) -> Labels:
    """Return the output number of each step's class, -100 where it has none."""
    if is_blank(row["label"]):
        raise drop_row(DropReason.NO_LABEL)
    labels = _as_list(row["label"])
    if len(labels) != num_steps:
        roles = encoder.roles
        raise RowFaultError(
            MISALIGNED_COLUMNS,
            describe_misalignment(roles["label"], len(labels), roles["features"], num_steps),
            "label",
            fix="Give each time step one label, -100 where it has none.",
        )
    known = encoder.class_ids
    places = [
        IGNORE_INDEX if _is_ignored(label) else known.get(class_name(label)) for label in labels
    ]
    if None in places:
        raise drop_row(DropReason.UNKNOWN_LABEL)
    return np.array(places, np.int64)


def encode_with_classes(row: Mapping[str, Any], encoder: Encoder) -> Encoding:
    """Return the steps, their mask and their classes; what is truncated or masked has no class."""
    steps, mask, truncated = read_steps(row, encoder)
    num_steps = len(steps) + truncated
    columns = {"inputs_embeds": steps, "attention_mask": mask, "num_steps": num_steps}
    if "label" in row:
        labels = step_places(row, num_steps, encoder)[: len(steps)]
        if len(mask) == len(labels):  # else encoding reports it
            labels = np.where(np.asarray(mask) != 0, labels, IGNORE_INDEX)
        if not (labels != IGNORE_INDEX).any():
            raise drop_row(DropReason.NO_LABEL)
        columns["labels"] = labels
    return encoded(columns, truncated=truncated)


def step_scores(outputs: Any, batch: Batch) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the logits and the class of each row, or of each labelled step."""
    logits, labels = class_scores(outputs, batch)
    if labels.ndim != 2 or labels.is_floating_point():
        return logits, labels
    labelled = labels != IGNORE_INDEX
    return logits[labelled], labels[labelled]


def decode_steps(outputs: Any, batch: Batch, encoder: Encoder) -> list[dict[str, Any]]:
    """Return the most likely class of each step and its probability; None where a step is not read.

    With the setting `all_probabilities`, those of all classes for each step.
    """
    classes = encoder.classes
    chances = outputs.logits[..., : len(classes)].float().softmax(-1)
    every = encoder.settings.all_probabilities
    answers = []
    rows = zip(chances, batch["attention_mask"].tolist(), batch["num_steps"].tolist(), strict=True)
    for scores, mask, num_steps in rows:
        best = scores.max(-1)
        read = [step for step, seen in enumerate(mask) if seen]
        made: dict[str, list[Any]] = {
            "prediction": [classes[place] for place in best.indices[read].tolist()],
            "probability": best.values[read].tolist(),
        }
        if every:
            made["probabilities"] = [by_name(step, classes) for step in scores[read].tolist()]
        known = {name: dict(zip(read, values, strict=True)) for name, values in made.items()}
        steps = range(num_steps)
        answers.append({name: [each.get(n) for n in steps] for name, each in known.items()})
    return answers


def fit(rows: Iterable[Mapping[str, Any]], encoder: Encoder) -> tuple[FittedTarget, list[Finding]]:
    """Yield the classes, of rows or of time steps."""
    source = iter(rows)
    first = list(islice(source, LOOKED_AT))
    by_step, found = choose_labels(first, encoder)
    place: int | None = None  # of a row that was read ahead

    def counted() -> Iterator[Mapping[str, Any]]:
        nonlocal place
        for place in range(len(first)):
            yield first[place]
        place = None
        yield from source

    try:
        classes = (fit_step_classes if by_step else fit_classes)(counted(), encoder)
    except RowFaultError as fault:
        fault.place = place if fault.place is None else fault.place
        raise
    return FittedTarget(classes=classes), found


def encode_or(by_row: EncodeRow) -> EncodeRow:
    """Return how a row is encoded with the classes of its steps, else as `by_row` does it."""
    return lambda row, encoder: (encode_with_classes if is_per_step(encoder) else by_row)(
        row, encoder
    )


def decode(outputs: Any, batch: Batch, encoder: Encoder) -> list[dict[str, Any]]:
    """Return the most likely class, or classes, of each row or of each of its steps."""
    made = decode_steps if is_per_step(encoder) else decode_classes
    return made(outputs, batch, encoder)


def fields_of(encoder: Encoder) -> Mapping[str, Field]:
    """Return the features, and the class or classes of the row or of its steps."""
    if is_per_step(encoder):
        return {**FIELDS, "num_steps": NUM_STEPS, "labels": LABELS}
    return {**FEATURES.fields(encoder), "labels": CLASSES.field(encoder)}


def head_of(encoder: Encoder) -> Head:
    """Return one output per class, for each row or for each step."""
    by_row: Body | None = None if are_vectors(encoder) else "rows"
    return Head(size=CLASSES.size, body="step_classes" if is_per_step(encoder) else by_row)


CLASSES_OR_STEPS = replace(
    CLASSES,
    fit=fit,
    decode=decode,
    loss=class_loss(step_scores),
    figures=replace(
        CLASSES.figures,
        class_scores=step_scores,
        predicted_values=class_probabilities(step_scores),
    ),
    metrics=usual_metrics(step_scores),
)
"""The class of a row or its classes, or those of its time steps: the labels decide."""
