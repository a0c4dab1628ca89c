"""synonyms: words replaced from a table that the user provides."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from surefit.encode.augment.words import free_words, put
from surefit.errors import UsageError

SHARE = 0.5
"""The share of words with synonyms that are replaced; at least one."""

Table = Mapping[str, tuple[str, ...]]


def replace_words(text: str, kept: Collection[str], rng: np.random.Generator, table: Table) -> str:
    """Some free words replaced by one of their synonyms; a capital letter is kept.

    >>> replace_words("Big cat", (), np.random.default_rng(0), {"big": ("large",)})
    'Large cat'
    """
    words = [word for word in free_words(text, kept) if word.text.lower() in table]
    if not words:
        return text
    chosen = rng.random(len(words)) < SHARE
    chosen[rng.integers(len(words))] = True
    changed = []
    for word in [word for word, is_chosen in zip(words, chosen, strict=True) if is_chosen]:
        others = table[word.text.lower()]
        new = others[rng.integers(len(others))]
        changed.append((word, new[:1].upper() + new[1:] if word.text[0].isupper() else new))
    return put(text, changed)


def read_synonyms(given: str | Mapping[str, Any]) -> dict[str, tuple[str, ...]]:
    """Words and their synonyms, from a mapping, or a JSON, CSV or TSV file with the word first."""
    rows: Sequence[Any]
    where = "augment.synonyms"
    if isinstance(given, str):
        where = given
        rows = _read_file(Path(given))
    else:
        rows = _pairs(given)
    table: dict[str, tuple[str, ...]] = {}
    for row in rows:
        cells = [cell.strip() if isinstance(cell, str) else cell for cell in row]
        if len(cells) < 2 or not all(isinstance(cell, str) and cell for cell in cells):
            raise UsageError(
                f"{where}: expected a word and its synonyms, found {str(row)[:80]!r}.",
                'Write one line per word: big,large,huge (or JSON: {"big": ["large"]}).',
            )
        word = cells[0].lower()
        if len(word.split()) > 1:
            raise UsageError(
                f"{where}: expected single words to replace, found {cells[0][:80]!r}.",
                "Write one word per line; its synonyms may have several words.",
            )
        table[word] = (*table.get(word, ()), *cells[1:])
    if not table:
        raise UsageError(
            f"{where} contains no synonyms.", "Write one line per word: big,large,huge"
        )
    return table


def _pairs(table: Mapping[str, Any]) -> list[list[Any]]:
    return [[word, *([new] if isinstance(new, str) else new)] for word, new in table.items()]


def _read_file(path: Path) -> list[Any]:
    if not path.is_file():
        raise UsageError(f"There is no file {path} (augment.synonyms).", "Check the path.")
    try:
        text = path.read_text(encoding="utf-8-sig")
        if path.suffix != ".json":
            delimiter = "\t" if path.suffix == ".tsv" else ","
            lines = csv.reader(io.StringIO(text), delimiter=delimiter)
            return [[cell for cell in line if cell.strip()] for line in lines if any(line)]
        loaded = json.loads(text)
    except (UnicodeDecodeError, json.JSONDecodeError, csv.Error) as error:
        raise UsageError(
            f"{path} cannot be read: {error}.", "Save it as UTF-8 JSON, CSV or TSV."
        ) from None
    well_formed = isinstance(loaded, dict) and all(
        isinstance(v, str | list) for v in loaded.values()
    )
    if not well_formed:
        raise UsageError(
            f"{path}: expected an object of words and their synonyms.",
            'Write {"big": ["large", "huge"]}.',
        )
    return _pairs(loaded)
