"""punctuation: the final mark removed, added, or separated by a space."""

from __future__ import annotations

from collections.abc import Collection

import numpy as np

from surefit.encode.augment.words import free_words

_OTHER_ENDS = {"": (".",), ".": ("", " ."), "?": ("", " ?", "??"), "!": ("", ".", "!!")}


def change_punctuation(text: str, kept: Collection[str], rng: np.random.Generator) -> str:
    """Another final mark, if the text ends with a free word and at most one mark.

    >>> change_punctuation("Who was it?", (), np.random.default_rng(0))
    'Who was it??'
    """
    whole = text.rstrip()
    words = free_words(whole, kept)
    mark = whole[words[-1].end :] if words else None
    if mark is None or mark not in _OTHER_ENDS:
        return text
    others = _OTHER_ENDS[mark]
    return whole[: words[-1].end] + others[rng.integers(len(others))] + text[len(whole) :]
