"""Augmented copies of a training row: the prompt in other words, the answer unchanged.

One file per change; `CHANGES` is the registry. A change gets the text, the words it must keep and
a random generator. It returns the changed text, or the same text if nothing can be changed.
"""

from __future__ import annotations

from collections.abc import Callable

from surefit.encode.augment.text_changes import (
    add_typos,
    change_case,
    change_punctuation,
    change_spacing,
    change_wording,
    read_synonyms,
    replace_words,
)

CHANGES: dict[str, Callable[..., str]] = {
    "wording": change_wording,
    "synonyms": replace_words,
    "case": change_case,
    "spacing": change_spacing,
    "punctuation": change_punctuation,
    "typos": add_typos,
}
"""In the order of application; typos last, so that no other change gets a misspelt word."""

__all__ = ["CHANGES", "read_synonyms"]
