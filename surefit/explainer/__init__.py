"""The true cause of a failure, from its exception, its traceback or its log."""

from __future__ import annotations

import traceback

from surefit.explainer.explanation import Explanation
from surefit.explainer.match import explain_text
from surefit.explainer.traceback_frames import shapes_of

__all__ = ["Explanation", "explain"]


def explain(failure: BaseException | str) -> Explanation:
    """Name the cause of an exception or of a text, the evidence, the fix and what does not help.

    >>> found = explain("ValueError: expected sequence of length 434 at dim 1 (got 512)")
    >>> found.known, found.evidence.values
    (True, {'expected': 434, 'found': 512})
    """
    if isinstance(failure, str):
        return explain_text(failure)
    text = "".join(traceback.format_exception(failure))
    return explain_text(text, shapes_of(failure))
