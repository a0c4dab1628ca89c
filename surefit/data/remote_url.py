"""Which URLs data may have, and what of them is secret.

The credentials of a URL are kept in this process only: everything that is printed or written has
the URL without them.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from urllib.parse import unquote, urlsplit

from surefit.errors import UsageError
from surefit.printable import add_secret

PROTOCOLS = (
    *("file", "http", "https", "hf", "memory", "github"),
    *("s3", "s3a", "gs", "gcs", "az", "abfs", "abfss"),
)
"""The protocols that data may have.

Others are refused: those of fsspec that chain (`simplecache::`), unpack (`zip`), or follow what a
file says (`reference`) would read places that the user did not name."""

_SECRET = re.compile(
    r"sig(nature)?$|token|secret|passw|credential|api_?key|^key$|auth|^x-(amz|goog)-|accesskeyid"
    r"|^expires$|^policy$|key-pair-id|^s[evprkt]$|^sk[a-z]{1,3}$",
    re.IGNORECASE,
)
"""Names of parameters in signed URLs, which grant access or change with every signature."""

_user_of: dict[str, str] = {}
_query_of: dict[str, str] = {}


def is_url(name: str | Path) -> bool:
    """Return whether a name is a URL rather than a path; a file that is there may be called `a::b`.

    >>> is_url("s3://bucket/rows.jsonl"), is_url("rows.jsonl"), is_url("zip::s3://b/x")
    (True, False, True)
    """
    found = re.match(r"[A-Za-z][A-Za-z0-9+.-]*:(//|:)", str(name))
    return found is not None and (found[1] == "//" or not os.path.lexists(name))


def protocol_of(url: str) -> str:
    """Return the protocol of a URL; `http` stands for https as well."""
    protocol = url.partition(":")[0].lower()
    return "http" if protocol == "https" else protocol


def clean_url(name: str | Path) -> str:
    """Return the URL without credentials, which this process keeps; refuse other protocols.

    >>> clean_url("https://user:secret@host/rows.jsonl?id=1&token=abcd")
    'https://host/rows.jsonl?id=1'
    """
    url, protocol = str(name), protocol_of(str(name))
    if "::" in url.partition("//")[0] or protocol not in PROTOCOLS:
        raise UsageError(
            f"Data cannot be read through {url.partition('//')[0]}//; expected one of "
            f"{', '.join(f'{each}://' for each in PROTOCOLS)}.",
            "Pass the URL of the files themselves.",
        )
    if protocol == "http":
        return _without_access(url)
    user, at, _ = url.partition("//")[2].partition("/")[0].rpartition("@")
    if at and ":" in user and protocol != "github":
        raise UsageError(
            f"A {protocol}:// URL has no user and password in it.",
            "Set the credentials where the package of the protocol looks for them: its "
            "environment variables or config file.",
        )
    return url


def _without_access(url: str) -> str:
    """Return an http URL without user, password and the parameters of a signature."""
    try:
        parts = urlsplit(url)
    except ValueError as error:
        raise UsageError(f"{url.split('?')[0]} is no URL: {error}.", "Correct the URL.") from None
    user, _, host = parts.netloc.rpartition("@")
    if not host:
        raise UsageError(f"The URL {url.split('?')[0]} names no host.", "Correct the URL.")
    pairs = [pair.partition("=") for pair in parts.query.split("&") if pair]
    hidden = [pair for pair in pairs if _SECRET.search(pair[0])]
    for secret in (user, *unquote(user).split(":")[1:], *(value for _, _, value in hidden)):
        add_secret(secret)
        add_secret(unquote(secret))
    origin = f"{parts.scheme}://{host}"
    kept = "&".join("".join(pair) for pair in pairs if pair not in hidden)
    shown = origin + parts.path + (f"?{kept}" if kept else "")
    if user:
        _user_of[origin] = user
    if hidden:
        _query_of[shown] = parts.query
    return shown


def with_access(url: str) -> str:
    """Return the URL with the user, password and signature that it was given with."""
    user = _user_of.get("/".join(url.split("/", 3)[:3]))
    full = f"{url.partition('?')[0]}?{_query_of[url]}" if url in _query_of else url
    return full if user is None else full.replace("://", f"://{user}@", 1)
