"""Which URLs data may have, and what of them is secret.

The credentials of a URL are kept in this process only: everything that is printed or written has
the URL without them.
"""

from __future__ import annotations

import re
from pathlib import Path
from urllib.parse import unquote, urlsplit

from surefit.errors import UsageError
from surefit.printable import add_secret

PACKAGES: dict[str, str] = {
    "file": "",
    "http": "",
    "https": "",
    "hf": "",
    "memory": "",
    "github": "requests",
    "s3": "s3fs",
    "s3a": "s3fs",
    "gs": "gcsfs",
    "gcs": "gcsfs",
    "az": "adlfs",
    "abfs": "adlfs",
    "abfss": "adlfs",
}
"""The protocols that data may have, and the package each needs besides surefit's own.

Others are refused: those of fsspec that chain (`simplecache::`), unpack (`zip`), or follow what a
file says (`reference`) would read places that the user did not name."""

_URL = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):(//|:)")
_COLLAPSED = re.compile(rf"({'|'.join(PACKAGES)}):/(?!/)")
_SECRET = re.compile(
    r"sig(nature)?$|token|secret|passw|credential|api_?key|^key$|auth|^x-(amz|goog)-|accesskeyid"
    r"|^expires$|^policy$|key-pair-id|^s[evprkt]$|^sk[a-z]{1,3}$",
    re.IGNORECASE,
)
"""Names of parameters in signed URLs, which grant access or change with every signature."""

_user_of: dict[str, str] = {}
_query_of: dict[str, str] = {}


def is_url(name: str | Path) -> bool:
    """Whether a name is a URL rather than a path.

    >>> is_url("s3://bucket/rows.jsonl"), is_url("rows.jsonl"), is_url("zip::s3://b/x")
    (True, False, True)
    """
    text = str(name)
    return bool(_URL.match(text) or (_COLLAPSED.match(text) and not Path(text).exists()))


def protocol_of(url: str) -> str:
    """The protocol of a URL."""
    return url.partition(":")[0].lower()


def clean_url(name: str | Path) -> str:
    """The URL without credentials, which are kept for this process; one not allowed is refused.

    >>> clean_url("https://user:secret@host/rows.jsonl?id=1&token=abcd")
    'https://host/rows.jsonl?id=1'
    """
    url = _COLLAPSED.sub(r"\1://", str(name), count=1)  # what Path makes of two slashes
    protocol = protocol_of(url)
    if "::" in url.partition("//")[0] or protocol not in PACKAGES:
        raise UsageError(
            f"Data cannot be read through {url.partition('//')[0]}//; expected one of "
            f"{', '.join(f'{each}://' for each in PACKAGES)}.",
            "Pass the URL of the files themselves.",
        )
    if protocol in ("http", "https"):
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
    """An http URL without user, password and the parameters of a signature."""
    parts = urlsplit(url)
    user, at, host = parts.netloc.rpartition("@")
    if not host:
        raise UsageError(f"The URL {url.split('?')[0]} names no host.", "Correct the URL.")
    origin = f"{parts.scheme}://{host}"
    if at:
        _user_of[origin] = user
        for secret in (user, unquote(user), *unquote(user).split(":")[1:]):
            add_secret(secret)
    pairs = [pair.partition("=") for pair in parts.query.split("&") if pair]
    hidden = [pair for pair in pairs if _SECRET.search(pair[0])]
    for _, _, value in hidden:
        add_secret(value)
        add_secret(unquote(value))
    kept = "&".join("".join(pair) for pair in pairs if pair not in hidden)
    shown = origin + parts.path + (f"?{kept}" if kept else "")
    if hidden:
        _query_of[shown] = parts.query
    return shown


def with_access(url: str) -> str:
    """The URL with the user, password and signature that it was given with."""
    scheme, _, rest = url.partition("://")
    host = rest.partition("/")[0]
    user = _user_of.get(f"{scheme}://{host}")
    query = _query_of.get(url)
    full = url if query is None else f"{url.partition('?')[0]}?{query}"
    return full if user is None else full.replace("://", f"://{user}@", 1)
