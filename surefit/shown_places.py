"""What messages call a copy of a remote file: its URL. And what they never show: credentials."""

from __future__ import annotations

import os

_shown: dict[str, str] = {}
_secrets: set[str] = set()
HIDDEN = "***"
SHORTEST_SECRET = 4
"""A shorter text may be part of any word; it is hidden where it is taken out of the URL."""


def show_as(place: str | os.PathLike[str], url: str) -> None:
    """From now on, messages name `url` where they would name this folder of the cache."""
    for each in {os.fspath(place), os.path.realpath(place)}:
        _shown[each] = url.rstrip("/")


def never_show(secret: str) -> None:
    """Hide a text in all messages from now on."""
    if len(secret) >= SHORTEST_SECRET:
        _secrets.add(secret)


def as_shown(text: str) -> str:
    """A text with URLs for the places of their copies, and without secrets."""
    for place in sorted(_shown, key=len, reverse=True):
        text = text.replace(place, _shown[place]) if place in text else text
    for secret in _secrets:
        text = text.replace(secret, HIDDEN)
    return text
