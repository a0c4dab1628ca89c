"""A scorer for `--set generate.scorer=contains_answer:contains_answer`."""

from __future__ import annotations


def contains_answer(expected: str, got: str) -> float:
    """1 if the generated text contains the expected one, whatever the case, else 0.

    >>> contains_answer("person", 'The answer is "Person".')
    1.0
    """
    return float(expected.lower() in got.lower())
