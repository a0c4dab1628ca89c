"""Augmented copies of a training row: the prompt in other words, the answer unchanged.

One file per change; `CHANGES` is the registry. A change gets the text, the words it must keep and
a random generator. It returns the changed text, or the same text if nothing can be changed.
"""

from __future__ import annotations

from collections.abc import Callable

from surefit.encode.augment.case import change_case
from surefit.encode.augment.punctuation import change_punctuation
from surefit.encode.augment.spacing import change_spacing
from surefit.encode.augment.synonyms import read_synonyms, replace_words
from surefit.encode.augment.typos import add_typos
from surefit.encode.augment.wording import change_wording

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
