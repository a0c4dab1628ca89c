"""What tasks with classes per row share: classes from the rows, and the sign between several.

A row has one class, or several where the label column holds lists or texts such as `red|blue`.
`labels` are (B,) class numbers, or (B, C) with 1 for every class the row has.
"""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from surefit.batches.field import Field
from surefit.config import joint_parts
from surefit.data.profile import MAX_SHARE_OF_CLASSES
from surefit.data.written_values import read_number
from surefit.findings import rule
from surefit.inputs.encoded_row import DropReason, RowFaultError, drop_row
from surefit.inputs.encoder import Encoder
from surefit.inputs.encoder_state import ClassLabels, as_fitted
from surefit.inputs.row_input import is_blank
from surefit.targets.task_spec import Batch, full_precision

if TYPE_CHECKING:
    import torch

NONE = "none"
"""The setting with which every text is one class."""
SIGNS = {"|": 0.5, ";": 0.5, ",": 0.8}
"""Signs between classes, the least likely in a name first; each with the share of the classes that
must stand first in some row. A qualifier never does: `fruit`, `fruit, dried`."""


OTHER_SIGNS = ("/", "+", "&", "\\")
"""Signs that are common within names as well, such as `km/h`: they separate classes only if the
user says so, and are reported where the labels look like it."""
FIRST_SHARE, AGAIN_SHARE, FEWEST = 0.6, 0.8, 3


def split_classes(value: str, sign: str) -> list[str]:
    """Return the classes of a row.

    >>> split_classes("red | blue|", "|")
    ['red', 'blue']
    """
    return [part.strip() for part in value.split(sign) if part.strip()]


def find_separator(names: Collection[str]) -> str | None:
    """Return the sign that separates several classes in these labels; None where each is one class.

    Rows must differ in their number of classes, and the classes must recur in other combinations.

    >>> find_separator({"red", "blue|red", "blue"}), find_separator({"Austin, TX", "Reno, NV"})
    ('|', None)
    """
    for sign, share in SIGNS.items():
        if not any(sign in name for name in names):
            continue
        rows = [split_classes(name, sign) for name in names]
        classes = {part for row in rows for part in row}
        first = {row[0] for row in rows if row}
        few = len(classes) < len(names) or (share < 0.8 and len(classes) == len(names))
        once = all(len({*row}) == len(row) for row in rows)
        sizes = {len(row) for row in rows}
        if few and once and len(sizes) > 1 and len(first) >= share * len(classes):
            return sign
    return None


def likely_separator(names: Collection[str]) -> str | None:
    """Return one of the other signs, if the parts around it recur in several combinations; else
    None.

    >>> likely_separator({"red", "red / blue", "blue / gold", "gold / red", "gold"})
    '/'
    >>> likely_separator({"n/a", "Sci-fi / Fantasy", "Fantasy", "Drama", "km/h"}) is None
    True
    """
    for sign in OTHER_SIGNS:
        rows = [{*split_classes(name, sign)} for name in names]
        sets = [row for row in rows if len(row) > 1]
        if len(sets) < FEWEST or len({len(row) for row in rows}) < 2:
            continue
        parts = {part for row in sets for part in row}
        if all(part.isdecimal() for part in parts):
            continue  # fractions, dates
        again = [part for part in parts if sum(part in row for row in rows) > 1]
        first = {split_classes(name, sign)[0] for name in names if name.strip(f"{sign} ")}
        recur = len(again) >= AGAIN_SHARE * len(parts)
        if recur and len(parts) < len(rows) and len(first & parts) >= FIRST_SHARE * len(parts):
            return sign
    return None


UNSUITABLE_LABEL = rule(
    "SF205",
    "error",
    "labels do not suit classification",
    why="A classifier needs a small set of classes, each seen in training.",
    fix="Choose another label column with columns.label, or another task.",
)


def class_name(value: Any) -> Any:
    """A label as a class name: whole numbers and text stay, 2.0 and [2] are 2, else a fault."""
    if isinstance(value, np.ndarray | list) and np.size(value) == 1:
        value = np.asarray(value).reshape(-1)[0].item()
    if isinstance(value, np.ndarray | list):
        raise _no_class_list(value, "expected one class per row")
    if isinstance(value, bool) or (isinstance(value, float) and value.is_integer()):
        return int(value)
    if isinstance(value, int | str):
        return value.strip() if isinstance(value, str) else value
    raise RowFaultError(
        UNSUITABLE_LABEL,
        f"the label {repr(value)[:40]} is a {type(value).__name__}; expected a class name or "
        "number",
        "label",
        fix="For continuous targets use the task regression; else give class names.",
    )


ONE_CLASS = "Save one class per row; where the lists are one-hot, that is labels.argmax(-1)."
EACH_ONCE = "Write each class of a row once, or a list of 0 and 1 with a place for each class."


def _no_class_list(value: Any, expected: str, fix: str = ONE_CLASS) -> RowFaultError:
    shown = str(np.asarray(value).tolist())[:40]
    return RowFaultError(
        UNSUITABLE_LABEL, f"the label is the list {shown}; {expected}", "label", fix=fix
    )


def class_list(value: Any) -> list[Any] | None:
    """Several labels of a row: a list or array, or the text of a list; None for a single one.

    >>> class_list('["red", "blue"]'), class_list("red")
    (['red', 'blue'], None)
    """
    if isinstance(value, np.ndarray):
        return list(value.tolist())
    if isinstance(value, str) and value.strip().startswith("[") and value.strip().endswith("]"):
        try:
            value = ast.literal_eval(value.strip())
        except (ValueError, SyntaxError):
            return None
    return value if isinstance(value, list) else None


@dataclass
class _Labels:
    """The labels of the training rows, counted; lists of 0 and 1 have a place for each class."""

    asked: str | None = None
    """The sign between the classes of one text that the user names, or `none`."""
    several: bool | None = None
    """Whether the rows have lists of classes; None until the first label is seen."""
    counts: Counter[Any] = field(default_factory=Counter)
    places: Counter[int] = field(default_factory=Counter)
    size: int | None = None
    """The length of the lists, as long as all of them are of 0 and 1 and of one length."""
    one_column: bool = True
    """Whether all labels are arrays of one number, as those of an array [N, 1]."""
    one_each: bool = True
    repeated: bool = False

    def add(self, value: Any) -> None:
        """Count the label of a row."""
        if self.several is None:
            self.several = class_list(value) is not None
            self.size = _hot_size(value)
        is_one = isinstance(value, np.ndarray) and value.size == 1
        self.one_column = self.one_column and is_one
        if self.size is not None and _hot_size(value) == self.size:
            ones = hot_places(value)
            self.places.update(ones)
            self.one_each = self.one_each and len(ones) == 1
            self.repeated = self.repeated or self.size > 2 or len(ones) != 1
            if not self.repeated:  # [0, 1] may name two classes
                self.counts.update(class_name(label) for label in _values(value, True))
            return
        if self.size is not None and self.repeated:
            expected = f"the lists of 0 and 1 before it have {self.size} values"
            raise _no_class_list(value, expected, EACH_ONCE)
        self.size = None
        self.counts.update(class_name(label) for label in _values(value, bool(self.several)))

    def fitted(self) -> tuple[Counter[Any], ClassLabels]:
        """Return how often each class occurs, and how a label is read."""
        if self.size is None:
            several = self.several and not self.one_column
            texts = [name for name in self.counts if isinstance(name, str)]
            sign = None if self.asked == NONE else self.asked
            if self.asked is None and len(texts) == len(self.counts):
                sign = find_separator(texts)
            if sign is not None and not several:
                counts: Counter[Any] = Counter()
                for name, count in self.counts.items():
                    counts.update(dict.fromkeys(split_classes(str(name), sign), count))
                return counts, ClassLabels((), several=True, separator=sign)
            return self.counts, ClassLabels((), several=bool(several))
        return self.places, ClassLabels((), several=not self.one_each, hot_size=self.size)


def _hot_size(value: Any) -> int | None:
    """Return the length of a list of 0 and 1, with a place for each of several classes."""
    labels = class_list(value)
    if labels is None or len(labels) < 2:
        return None
    numbers = all(isinstance(label, bool | int | float) and label in (0, 1) for label in labels)
    return len(labels) if numbers else None


def hot_places(value: Any) -> list[int]:
    """Return the places of a list of 0 and 1 that have 1.

    >>> hot_places([0, 1, 1])
    [1, 2]
    """
    return [place for place, label in enumerate(class_list(value) or ()) if label == 1]


def fit_classes(rows: Iterable[Mapping[str, Any]], encoder: Encoder) -> ClassLabels:
    """Return the class names of the training rows, sorted, with how often each occurs.

    A first label that is a list means several labels for every row. Where all lists are of 0 and 1
    and of one length, the classes are the places of the lists. Texts such as `red|blue` are
    several labels, too (see `find_separator`).
    """
    parts = joint_parts(encoder.roles["label"])
    labels = _Labels(encoder.settings.labels.separator)
    for row in rows:
        if not is_blank(row.get("label")):
            labels.add(row["label"])
    counts, read = labels.fitted()
    total, column = counts.total(), encoder.roles["label"]
    if parts:
        counts, read = _by_column(counts, read, parts)
    if len(counts) < (1 if read.several else 2):
        raise UNSUITABLE_LABEL.error(
            f"column {column!r} has {len(counts)} class{'' if len(counts) == 1 else 'es'} in "
            f"{total} training rows; at least 2 are needed.",
            fix="Give more rows, hold out fewer (eval_share), or choose another column.",
            column=column,
        )
    if len(counts) > MAX_SHARE_OF_CLASSES * total and total > 10:
        texts = [name for name in counts if isinstance(name, str)]
        sign = likely_separator(texts) if labels.asked is None else None
        named = f"If {sign!r} separates several classes: --set label_separator={sign}"
        raise UNSUITABLE_LABEL.error(
            f"column {column!r} has {len(counts)} different values in {total} training rows, too "
            f"many to be classes{_but_for(counts)}.",
            fix=named if sign else UNSUITABLE_LABEL.fix,
            column=column,
        )
    names = tuple(sorted(counts, key=lambda name: (isinstance(name, str), name)))
    return replace(read, names=names, counts=tuple(counts[name] for name in names))


def _by_column(
    counts: Counter[Any], read: ClassLabels, parts: list[str]
) -> tuple[Counter[Any], ClassLabels]:
    """Return the classes of several columns of 0 and 1: the names of the columns."""
    if read.hot_size != len(parts):
        raise UNSUITABLE_LABEL.error(
            f"the columns {', '.join(parts)} have other values than 0 and 1.",
            fix="Name columns of 0 and 1, or a single column of classes.",
            column=parts[0],
        )
    named = Counter({parts[place]: count for place, count in counts.items()})
    return named, replace(read, hot_names=tuple(parts))


def _but_for(names: Iterable[Any]) -> str:
    """Return the few names that are not numbers where all others are: they made the column text."""
    texts = [name for name in names if isinstance(name, str)]
    odd = [name for name in texts if read_number(name) is None]
    if not 0 < len(odd) <= 0.1 * len(texts):
        return ""
    return f"; all but {', '.join(map(repr, odd[:3]))} are numbers"


def _values(value: Any, several: bool) -> list[Any]:
    if not several:
        return [value]
    labels = class_list(value)
    if labels is None:
        raise RowFaultError(
            UNSUITABLE_LABEL,
            f"the label {str(value)[:40]!r} is not a list, as in other rows",
            "label",
        )
    if len({str(name) for name in labels}) < len(labels):
        raise _no_class_list(labels, "expected each of the row's classes once", EACH_ONCE)
    return labels


def is_multi_label(encoder: Encoder) -> bool:
    """Return whether a row may have several classes."""
    return encoder.target.classes is not None and encoder.target.classes.several


def label_field(encoder: Encoder) -> Field:
    """Return how the classes of a row become a tensor."""
    return Field(("class",), "float32") if is_multi_label(encoder) else Field((), "int64")


def class_id(row: Mapping[str, Any], encoder: Encoder) -> Any:
    """Return the output number of the row's label; a row without one the model can learn is
    skipped.

    Where a row may have several labels, a vector with 1 for each of them.
    """
    value, labels = row["label"], as_fitted(encoder.target.classes)
    if is_blank(value):
        if labels.separator is None or not encoder.settings.labels.blank_is_none:
            raise drop_row(DropReason.NO_LABEL)
        value = ""
    if labels.separator is not None:
        value = split_classes(str(value), labels.separator)
    size, names = labels.hot_size, labels.hot_names
    if size is not None:
        if _hot_size(value) != size:
            raise _no_class_list(value, f"expected {size} values of 0 and 1", EACH_ONCE)
        value = [names[place] if names else place for place in hot_places(value)]
    if labels.several:
        places = [encoder.class_ids.get(class_name(name)) for name in _values(value, True)]
        if None in places:
            raise drop_row(DropReason.UNKNOWN_LABEL)
        return np.asarray([float(place in places) for place in encoder.class_ids.values()])
    place = encoder.class_ids.get(class_name(value))
    if place is None:
        raise drop_row(DropReason.UNKNOWN_LABEL)
    return place


def class_names(encoder: Encoder) -> dict[str, Any]:
    """Return the names of the classes as a transformers config has them."""
    return output_names([str(name) for name in encoder.classes])


def output_names(names: Sequence[str]) -> dict[str, Any]:
    """Return the names of a model's outputs as a transformers config has them."""
    named = dict(enumerate(names))
    return {"id2label": named, "label2id": {name: place for place, name in named.items()}}


def class_settings(encoder: Encoder) -> dict[str, Any]:
    """Return the classes of rows as a transformers config has them."""
    kind = "multi" if is_multi_label(encoder) else "single"
    return {**class_names(encoder), "problem_type": f"{kind}_label_classification"}


def class_scores(outputs: Any, batch: Batch) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the logits and the class of each row."""
    return full_precision(outputs.logits), batch["labels"]


def decode_classes(outputs: Any, batch: Batch, encoder: Encoder) -> list[dict[str, Any]]:
    """Return the most likely class of each row and its probability; of several, those above 0.5.

    With the setting `all_probabilities`, those of all classes by name.
    """
    return decode_scores(outputs.logits.float(), encoder)


def decode_scores(scores: torch.Tensor, encoder: Encoder) -> list[dict[str, Any]]:
    """Return what the scores of the classes, (N, C), predict for each row."""
    several, classes = is_multi_label(encoder), encoder.classes
    logits = scores[:, : len(classes)]
    chances = logits.sigmoid() if several else logits.softmax(-1)
    if several:
        likely = [
            [(name, chance) for name, chance in zip(classes, row, strict=True) if chance > 0.5]
            for row in chances.tolist()
        ]
        found = [
            {"prediction": [n for n, _ in row], "probabilities": [c for _, c in row]}
            for row in likely
        ]
    else:
        best = chances.max(-1)
        found = [
            {"prediction": classes[place], "probability": chance}
            for place, chance in zip(best.indices.tolist(), best.values.tolist(), strict=True)
        ]
    if not encoder.settings.all_probabilities:
        return found
    every = (by_name(row, classes) for row in chances.tolist())
    return [{**one, "probabilities": named} for one, named in zip(found, every, strict=True)]


def by_name(chances: list[float], classes: list[Any]) -> dict[str, float]:
    """Probabilities by class name."""
    return {str(name): chance for name, chance in zip(classes, chances, strict=True)}
