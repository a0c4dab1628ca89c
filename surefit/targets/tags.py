"""One tag per word, or per token id: names of people and places, parts of speech."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from surefit.batches.field import IGNORE_INDEX, Field, describe_misalignment
from surefit.data.data_rules import MISALIGNED_COLUMNS, WRONG_TYPE
from surefit.data.marked_spans import words_of_text
from surefit.data.roles import get_role
from surefit.data.table import Table
from surefit.findings import Finding
from surefit.inputs.encoded_row import (
    DropReason,
    Encoding,
    RowFaultError,
    drop_row,
    encoded,
    refuse_overlong,
)
from surefit.inputs.encoder import Encoder
from surefit.inputs.encoder_state import ClassLabels, FittedTarget
from surefit.inputs.text.text_reading import TOKENS, encode_ids, labels_tokens
from surefit.targets.classes import UNSUITABLE_LABEL, by_name, class_name
from surefit.targets.metrics.token_metrics import (
    OUTSIDE,
    entity_f1_of,
    entity_tags,
    find_entities,
    match_entities,
)
from surefit.targets.task_spec import (
    Batch,
    Metric,
    full_precision,
)

if TYPE_CHECKING:
    import torch

NO_WORD = -1
FIELDS = {
    "input_ids": TOKENS,
    "words": Field(("time",), "int64", NO_WORD, "input_ids"),
    "num_words": Field((), "int64"),
    "labels": Field(("time",), "int64", IGNORE_INDEX, "input_ids"),
}


def fit(rows: Iterable[Mapping[str, Any]], encoder: Encoder) -> tuple[Encoder, list[Finding]]:
    """Return the tags of the training rows, sorted, the one for no entity first."""
    found = {tag for row in rows if row["tags"] is not None for tag in _tags(row["tags"])}
    found -= {IGNORE_INDEX} if "input_ids" in encoder.roles else set()
    if len(found) < 2:
        column = encoder.roles["tags"]
        raise UNSUITABLE_LABEL.error(
            f"column {column!r} has {len(found)} different tags in the training rows; at least 2 "
            "are needed.",
            fix="Choose another column with columns.tags.",
            column=column,
        )
    names = sorted(found, key=lambda tag: (tag not in OUTSIDE, isinstance(tag, str), tag))
    return replace(encoder, target=FittedTarget(ClassLabels(tuple(names)))), []


def _tags(values: Any) -> list[Any]:
    return [class_name(tag) for tag in getattr(values, "tolist", lambda: values)()]


def encode(row: Mapping[str, Any], encoder: Encoder) -> Encoding:
    """Pieces of the words; the first piece of a word carries its tag and the word's number."""
    if "input_ids" in encoder.roles:
        ids = [] if row["input_ids"] is None else row["input_ids"]
        tags = _tag_ids(row, encoder, "input_ids", len(ids))
        numbers = {"words": range(len(ids)), **({} if tags is None else {"labels": tags})}
        return encode_ids(row, encoder, {"num_words": len(ids)}, numbers)
    words = _words(row, encoder)
    if not words:
        raise drop_row(DropReason.EMPTY)
    tags = _tag_ids(row, encoder, "tokens", len(words))
    tokenize = partial(encoder.tokenizer, words, is_split_into_words=True, verbose=False)
    pieces = tokenize()
    length = len(pieces["input_ids"])
    if encoder.max_length is not None and length > encoder.max_length:
        refuse_overlong(length, encoder)
        pieces = tokenize(truncation=True, max_length=encoder.max_length)
    first = _first_pieces(pieces.word_ids())
    columns = {"input_ids": pieces["input_ids"], "words": first, "num_words": len(words)}
    if tags is not None:
        columns["labels"] = [IGNORE_INDEX if word == NO_WORD else tags[word] for word in first]
    return encoded(columns, truncated=length - len(pieces["input_ids"]))


def _tag_ids(row: Mapping[str, Any], encoder: Encoder, role: str, count: int) -> list[int] | None:
    """The numbers of a row's tags, of which the column in `role` has `count`; None without any."""
    if "tags" not in row:
        return None
    if row["tags"] is None:
        raise drop_row(DropReason.NO_LABEL)
    unlabelled = {IGNORE_INDEX: IGNORE_INDEX} if role == "input_ids" else {}
    known = {**encoder.class_ids, **unlabelled}
    tags = [known.get(tag) for tag in _tags(row["tags"])]
    if len(tags) != count:
        column, other = encoder.roles["tags"], encoder.roles[role]
        message = describe_misalignment(column, len(tags), other, count)
        raise RowFaultError(MISALIGNED_COLUMNS, message, "tags")
    made = [tag for tag in tags if tag is not None]
    if len(made) < len(tags):
        raise drop_row(DropReason.UNKNOWN_LABEL)
    return made


def _words(row: Mapping[str, Any], encoder: Encoder) -> list[str]:
    words = row["tokens"]
    if words is None:
        return []
    if isinstance(words, str) and "tags" not in row:  # a text to predict for
        return words_of_text(words)
    if isinstance(words, str) or not all(isinstance(word, str) for word in words):
        raise RowFaultError(
            WRONG_TYPE, f"{str(words)[:40]!r} is not a list of words", encoder.roles["tokens"]
        )
    return list(words)


def _first_pieces(word_ids: Sequence[int | None]) -> list[int]:
    """Return the word's number at its first piece, NO_WORD elsewhere.

    >>> _first_pieces([None, 0, 1, 1, None])
    [-1, 0, 1, -1, -1]
    """
    before = [None, *word_ids[:-1]]
    return [
        NO_WORD if word is None or word == last else word
        for word, last in zip(word_ids, before, strict=True)
    ]


def tag_scores(outputs: Any, batch: Batch) -> tuple[torch.Tensor, torch.Tensor]:
    """Logits and tags of the first pieces: (N, C) and (N,)."""
    learned = batch["labels"] != IGNORE_INDEX
    return full_precision(outputs.logits[learned]), batch["labels"][learned]


def accuracy(outputs: Any, batch: Batch) -> tuple[Any, int]:
    """Return rows with every tag right, and all rows."""
    labels = batch["labels"]
    right = ((outputs.logits.argmax(-1) == labels) | (labels == IGNORE_INDEX)).all(-1)
    return right.sum(), len(right)


def _entity_sums(outputs: Any, batch: Batch, encoder: Encoder) -> dict[str, int]:
    names = entity_tags(encoder.classes)
    sums = {"found": 0, "false": 0, "missed": 0}
    made, labels = outputs.logits.argmax(-1).tolist(), batch["labels"].tolist()
    for row_made, row_labels in zip(made, labels, strict=True):
        kept = [(m, t) for m, t in zip(row_made, row_labels, strict=True) if t != IGNORE_INDEX]
        counts = match_entities([names[t] for _, t in kept], [names[m] for m, _ in kept])
        sums = {name: sums[name] + counts[name] for name in sums}
    return sums


ENTITY_F1 = Metric(_entity_sums, entity_f1_of, uses_encoder=True)


def decode(outputs: Any, batch: Batch, encoder: Encoder) -> list[dict[str, Any]]:
    """Return a tag per word (None for a word beyond the limit), and the entities as spans of words.

    With the setting `all_probabilities`, those of all tags for each word.
    """
    best = outputs.logits.argmax(-1).tolist()
    chances = None
    if encoder.settings.all_probabilities:
        chances = full_precision(outputs.logits).softmax(-1)
    classes, entity_tag = encoder.classes, entity_tags(encoder.classes)
    answers = []
    rows = zip(best, batch["words"].tolist(), batch["num_words"].tolist(), strict=True)
    for place, (tags, words, num_words) in enumerate(rows):
        found: list[int | None] = [None] * num_words
        for tag, word in zip(tags, words, strict=True):
            if word != NO_WORD:
                found[word] = tag
        marked = [None if tag is None else entity_tag[tag] for tag in found]
        spans = [
            {"type": kind, "start": start, "end": end} for kind, start, end in find_entities(marked)
        ]
        names = [None if tag is None else classes[tag] for tag in found]
        answers.append({"prediction": names, "entities": spans})
        if chances is not None:
            every: list[dict[str, float] | None] = [None] * num_words
            for position, word in enumerate(words):
                if word != NO_WORD:
                    every[word] = by_name(
                        chances[place, position, : len(classes)].tolist(), classes
                    )
            answers[-1]["probabilities"] = every
    return answers


def takes(table: Table, roles: Mapping[str, str]) -> bool:
    """Return whether tags of token ids are named so, and are as many."""
    if "input_ids" not in roles:
        return True
    is_named = roles["tags"].lower() in get_role("tags").names
    return is_named and labels_tokens(table, roles["input_ids"], roles["tags"])
