"""`surefit explain`: the cause of a failure, from an exception, a traceback or a log.

This package imports nothing else of surefit. The first call of `explain` loads the causes.
"""

from __future__ import annotations

from surefit.explainer.cause import Explanation

__all__ = ["Explanation", "explain"]


def explain(failure: BaseException | str) -> Explanation:
    """Name the cause of an exception or a text, with the evidence, the fix and what does not help.

    No text and no exception makes this function fail: an unknown cause is an explanation, too.

    >>> found = explain("ValueError: expected sequence of length 434 at dim 1 (got 512)")
    >>> found.known, found.evidence.values
    (True, {'expected': 434, 'found': 512})
    """
    from surefit.explainer.log_reading import format_error, tensor_shapes
    from surefit.explainer.match import explain_text

    if isinstance(failure, BaseException):
        return explain_text(format_error(failure), tensor_shapes(failure))
    return explain_text(str(failure))
