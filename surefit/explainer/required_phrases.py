"""Phrases that a regular expression requires, to skip it without running it.

A log has megabytes and there are hundreds of expressions. `phrase in text` is far faster than a
search, and its time grows with the length of the text whatever the text is.
"""

from __future__ import annotations

import re

TOKEN = re.compile(
    r"(?P<literal>\\\W|[^\\\[(){|.^$*+?])"
    r"|(?P<quantifier>[*+?]\??|\{\d*,?\d*\}\??)"
    r"|(?P<open>\((?:\?(?:[:=!]|<[=!]|P<\w+>|P=\w+|[aimsux]+))?)"
    r"|(?P<close>\))"
    r"|(?P<bar>\|)"
    r"|(?P<other>\\\w|\[\^?\]?(?:\\.|[^\]\\])*\]|[.^$]|\{)",
    re.DOTALL,
)


def required_phrases(pattern: str) -> tuple[str, ...]:
    """One phrase per alternative of a pattern: a text without any of them cannot match.

    Groups are skipped. An alternative without a phrase of its own gives no phrases at all.

    >>> required_phrases(r"expected (?:m1|mat1) and [mat]+2 to have the same dtype")
    ('2 to have the same dtype',)
    >>> required_phrases(r"ncclSystemError|ncclInternalErrors?")
    ('ncclSystemError', 'ncclInternalError')
    >>> required_phrases(r"\\w+|(?:a|b)")
    ()
    """
    alternatives = [max(pieces, key=len) for pieces in _pieces(pattern)]
    return tuple(alternatives) if all(alternatives) else ()


def _pieces(pattern: str) -> list[list[str]]:
    """The literal pieces outside groups, per alternative."""
    alternatives = [[""]]
    depth = 0
    for token in TOKEN.finditer(pattern):
        pieces, text = alternatives[-1], token[0]
        if token.lastgroup == "close":
            depth -= 1
        elif token.lastgroup == "open":
            depth += 1
            pieces.append("")
        elif depth:
            continue
        elif token.lastgroup == "literal":
            pieces[-1] += text[-1]
        elif token.lastgroup == "bar":
            alternatives.append([""])
        else:
            if text[0] in "*?" or text.startswith(("{0", "{,")):  # the character may be missing
                pieces[-1] = pieces[-1][:-1]
            pieces.append("")
    return alternatives
