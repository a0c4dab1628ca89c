"""Files of any store that fsspec reads: s3, gs, az, hf, github, memory."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from glob import has_magic
from typing import Any, Literal

from surefit.data.remote.download import look_at_all
from surefit.data.remote.remote_file import (
    MOST_FILES,
    ChangedError,
    Listing,
    LocalFaultError,
    RemoteError,
    RemoteFile,
    UnreachableError,
    strong,
)
from surefit.data.remote.remote_url import PACKAGES, protocol_of
from surefit.errors import UsageError, describe_error

BLOCK_BYTES = 1 << 23
VERSION_KEYS = ("ETag", "etag", "e_tag", "generation", "blob_id", "sha", "md5Hash", "content_md5")
"""What stores call a value that changes with the content, the usual ones first."""
BY_URL = ("github", "az", "abfs", "abfss")
"""Protocols whose URLs name a repository or an account before the path."""


class FsspecFiles:
    """The files of one protocol of fsspec, with the credentials that its package finds."""

    def __init__(self, protocol: str) -> None:
        import fsspec

        self.protocol = protocol
        try:
            known = fsspec.get_filesystem_class(protocol)
            self.system = None if protocol in BY_URL else known(use_listings_cache=False)
        except ImportError:
            package = PACKAGES[protocol]
            raise UsageError(
                f"{protocol}:// needs the package {package}, which is not installed.",
                f"Install it: pip install {package}",
            ) from None

    def list_files(self, url: str) -> Listing | None:
        """One file, the files of a folder, or those that match a pattern."""
        with _explained(url):
            system = self._system_of(url)
            system.invalidate_cache()
            if has_magic(url):
                fixed = url[: next(place for place, char in enumerate(url) if char in "*?[")]
                root = fixed.rpartition("/")[0]
                found = system.glob(system._strip_protocol(url), detail=True)
                return self._listing(system, root, found, "pattern")
            path = system._strip_protocol(url)
            try:
                about = system.info(path)
            except FileNotFoundError:
                return None
            if about["type"] == "directory":
                found = system.find(path, detail=True)
                return self._listing(system, url.rstrip("/"), found, "folder")
            root, _, name = url.rpartition("/")
            return Listing(f"{root}/", (_file(url, name, about),), "file")

    def _listing(
        self, system: Any, root: str, found: Mapping[str, Any], kind: Literal["pattern", "folder"]
    ) -> Listing | None:
        """The files that were found below the URL of a folder."""
        head = str(system._strip_protocol(root)).rstrip("/")
        files = []
        for path, about in sorted(found.items()):
            inner = path.removeprefix(head).lstrip("/")
            if about["type"] == "file" and inner and not inner.endswith("/"):
                files.append(_file(f"{root}/{inner}", inner, about))
        if len(files) > MOST_FILES:
            raise RemoteError(f"{root} has more than {MOST_FILES:,} files.", "Pass a pattern.")
        found_files = self._with_versions(files)
        return Listing(f"{root}/", found_files, kind) if files or kind == "pattern" else None

    def _with_versions(self, files: Sequence[RemoteFile]) -> tuple[RemoteFile, ...]:
        """The files, each asked for its version if the listing has none but the files do."""
        first = next((file for file in files if file.version is None), None)
        known = self.look(first.url, first.path) if first is not None else None
        if known is None or known.version is None:
            return tuple(files)
        looked = dict(look_at_all([(file.url, file.path) for file in files], self))
        return tuple(each for file in files if (each := looked[file.path]) is not None)

    def _system_of(self, url: str) -> Any:
        """The file system; some depend on what a URL has before its path."""
        if self.protocol not in BY_URL:
            return self.system
        import fsspec

        return fsspec.core.url_to_fs(url)[0]

    def look(self, url: str, path: str) -> RemoteFile | None:
        """Size and version of one file."""
        with _explained(url):
            try:
                system = self._system_of(url)
                about = system.info(system._strip_protocol(url))
            except FileNotFoundError:
                return None
            if about["type"] != "file":
                return None
            return _file(url, path, about)

    @contextmanager
    def read(self, file: RemoteFile, start: int) -> Iterator[Iterator[bytes]]:
        """The content of a file from `start` on; its version is compared when all was read."""
        with _explained(file.url):
            system = self._system_of(file.url)
            path = system._strip_protocol(file.url)
            with system.open(path, "rb", block_size=BLOCK_BYTES) as stream:
                stream.seek(start)
                yield iter(lambda: bytes(stream.read(BLOCK_BYTES)), b"")
            system.invalidate_cache()
            now = self.look(file.url, file.path) if file.version is not None else file
            if now is None or now.version != file.version:
                raise ChangedError(f"{file.url} changed while it was read.", transient=True)


def make_files(url: str) -> FsspecFiles:
    """The reader of a URL's protocol."""
    return FsspecFiles(protocol_of(url))


def _file(url: str, path: str, about: Mapping[str, Any]) -> RemoteFile:
    size = about.get("size")
    versions = (strong(about.get(key)) for key in VERSION_KEYS)
    version = next((each for each in versions if each is not None), None)
    return RemoteFile(url, path, int(size) if size is not None else None, version)


@contextmanager
def _explained(url: str) -> Iterator[None]:
    """Errors of the store's package as what they mean."""
    try:
        yield
    except (RemoteError, FileNotFoundError, UsageError, LocalFaultError):
        raise
    except PermissionError as error:
        raise UnreachableError(
            f"{url} may not be read: {_short(error)}.",
            "Set the credentials where the package of the protocol looks for them.",
        ) from None
    except ImportError as error:
        raise UsageError(f"{url} cannot be read: {error}.", "Install the package.") from None
    except Exception as error:  # each package has errors of its own
        gone = isinstance(error, OSError)
        raise (UnreachableError if gone else RemoteError)(
            f"{url} cannot be read: {_short(error)}.", transient=gone
        ) from None


def _short(error: Exception) -> str:
    return (describe_error(error).splitlines() or [""])[0][:200].rstrip(".")
