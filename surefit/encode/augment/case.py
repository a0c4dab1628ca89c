"""case: the first letter of sentences in lower or upper case."""

from __future__ import annotations

from collections.abc import Collection

import numpy as np

from surefit.encode.augment.words import free_words, put


def change_case(text: str, kept: Collection[str], rng: np.random.Generator) -> str:
    """The first letter of sentences in the other case; names keep their capitals.

    Words in capitals are avoided: they take several times as many tokens.

    >>> change_case("Tell me who Ada was. Be brief!", (), np.random.default_rng(0))
    'tell me who Ada was. be brief!'
    """
    starts = [word for word in free_words(text, kept) if word.starts_sentence]
    ways = (
        put(text, [(word, word.text[0].lower() + word.text[1:]) for word in starts]),
        put(text, [(word, word.text[0].upper() + word.text[1:]) for word in starts]),
    )
    others = [way for way in ways if way != text]
    return others[rng.integers(len(others))] if others else text
