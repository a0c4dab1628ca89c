"""spacing: extra spaces between words."""

from __future__ import annotations

from collections.abc import Collection
from itertools import pairwise

import numpy as np

from surefit.encode.augment.words import free_words

SHARE = 0.2
"""The share of gaps between free words that are doubled; at least one."""


def change_spacing(text: str, kept: Collection[str], rng: np.random.Generator) -> str:
    """Some single spaces between free words doubled; line breaks and indents are kept.

    >>> change_spacing("name the sea", (), np.random.default_rng(0))
    'name the  sea'
    """
    words = free_words(text, kept)
    gaps = [b.start for a, b in pairwise(words) if text[a.end : b.start] == " "]
    if not gaps:
        return text
    chosen = rng.choice(gaps, size=max(1, round(SHARE * len(gaps))), replace=False)
    for place in sorted(chosen.tolist(), reverse=True):
        text = f"{text[:place]} {text[place:]}"
    return text
