"""Object storage below a URI, with a deadline and retries for each call, and errors that say what to do."""

import importlib.util
import os
import re
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

from ringtrain.errors import ConfigurationError, ObjectMissing, StorageError
from ringtrain.shared.buckets import AZURE, GOOGLE, LOCAL, S3, StoreBucket, open_bucket, split_uri

T = TypeVar("T")

# The extra of ringtrain that installs what a kind of store needs.
_EXTRAS = {**dict.fromkeys(S3, "s3"), **dict.fromkeys(GOOGLE, "gcs"), **dict.fromkeys(AZURE, "azure")}
# Texts of stores for a bucket that does not exist.
_NO_BUCKET = re.compile(r"NoSuchBucket|ContainerNotFound|specified bucket does not exist")
_REFUSED = re.compile(r"status code: 40[13]\b|token request|169\.254\.169\.254|169\.254\.170\.2")
_OTHER_REGION = re.compile(r"incorrectly configured region|AuthorizationHeaderMalformed|PermanentRedirect")
DEADLINE_S = 120.0
_FIRST_PAUSE_S = 0.2
_LONGEST_PAUSE_S = 5.0
# An attempt that has not ended after 30 s, and a second for each MB, is given up; each one has twice the time of the
# one before, so that a slow line is enough.
_ATTEMPT_S = 30.0
_SLOWEST_BYTES_PER_S = 1e6
# Of an object of unknown size.
_WHOLE_OBJECT_BYTES = 64 << 20


def is_uri(where: object) -> bool:
    """Return whether `where` is the URI of an object store, rather than the path of a directory."""
    return isinstance(where, str) and "://" in where


def check_uri(uri: str) -> None:
    """Raise ConfigurationError unless `uri` is valid and the package that it needs is installed."""
    scheme, separator, path = uri.partition("://")
    if not separator or scheme not in (*_EXTRAS, *LOCAL):
        known = ", ".join(sorted((*_EXTRAS, *LOCAL)))
        raise ConfigurationError(
            f"storage: {uri!r} is not the URI of a known store; expected one of {known}, such as s3://bucket/path"
        )
    if scheme != "memory" and not path.strip("/"):
        raise ConfigurationError(f"storage: {uri!r} has no path; expected {scheme}://bucket/path")
    if scheme in _EXTRAS and importlib.util.find_spec("obstore") is None:
        raise ConfigurationError(
            f"storage: {uri} needs the package obstore, which is not installed: pip install "
            f"'ringtrain[{_EXTRAS[scheme]}]'"
        )


class ObjectStore:
    """Objects below `uri`, by names relative to it. Several threads may use one store.

    Every call ends within `deadline_s`. Until then it is retried after errors that may pass, such as a broken
    connection or a busy server. It raises ObjectMissing if an object does not exist, and StorageError, which names the
    URI, the cause and what to do, for other errors.
    """

    def __init__(self, uri: str, deadline_s: float = DEADLINE_S, connection: "StoreConnection | None" = None) -> None:
        """Create the store. `connection`: shared connection to the same bucket, which its opener closes."""
        check_uri(uri)
        self.uri = uri.rstrip("/")
        self.deadline_s = deadline_s
        self._root = split_uri(self.uri)[1]
        self._connection = connection or StoreConnection(self.uri, deadline_s)

    def below(self, folder: str) -> "ObjectStore":
        """Return the store of the objects in `folder`. It shares the connection of this store."""
        return self.at(f"{self.uri}/{folder}")

    def at(self, uri: str) -> "ObjectStore":
        """Return the store at another `uri` of the same bucket. It shares the connection of this store."""
        return ObjectStore(uri, self.deadline_s, self._connection)

    def write(self, name: str, data: bytes) -> None:
        """Store `data` as the object `name`. Readers get the old or the new content, never a part."""
        self._try("written", name, lambda bucket, path, left: bucket.write(path, data, left), len(data))

    def read(self, name: str, start: int | None = None, stop: int | None = None) -> bytes:
        """Return the bytes `start:stop` of the object `name`."""
        size = _WHOLE_OBJECT_BYTES if stop is None else stop - (start or 0)
        return self._try("read", name, lambda bucket, path, left: bucket.read(path, start, stop, left), size)

    def names(self, folder: str = "") -> list[str]:
        """Return the names of all objects in `folder` and below it, sorted; empty if there is no such folder."""
        found = self._listed(folder, lambda bucket, path, left: bucket.names(path, left))
        return sorted(self._relative(name) for name in found)

    def folders(self, folder: str = "") -> list[str]:
        """Return the names of the entries directly in `folder`, objects and subfolders, sorted; empty if it does not
        exist."""
        found = self._listed(folder, lambda bucket, path, left: bucket.folders(path, left))
        return sorted({name.rstrip("/").rpartition("/")[2] for name in found} - {""})

    def remove(self, name: str) -> None:
        """Remove the object `name`, if it exists."""
        with suppress(ObjectMissing):
            self._try("removed", name, lambda bucket, path, left: bucket.remove(path, left))

    def remove_folder(self, folder: str) -> None:
        """Remove `folder` from a disk if it is empty. Does nothing for object stores, which have no folders."""
        if self.uri.startswith("file://"):
            with suppress(OSError):
                Path(self._root, folder).rmdir()

    def close(self) -> None:
        """Release the connection. A later call opens it again."""
        self._connection.close()

    def _listed(self, folder: str, work: Callable[[StoreBucket, str, float], list[str]]) -> list[str]:
        try:
            found = self._try("listed", folder, work)
        except ObjectMissing:
            found = []
        if not found and self.uri.startswith("file://"):
            for path in (Path(self._root), *Path(self._root).parents):
                if path.is_file():
                    raise StorageError(f"{self.uri} can't be a folder, because {path} is a file; choose another URI")
        return found

    def _try(self, done: str, name: str, work: Callable[[StoreBucket, str, float], T], size: int = 0) -> T:
        path = f"{self._root}/{name}".rstrip("/") if self._root else name
        deadline, pause = time.monotonic() + self.deadline_s, _FIRST_PAUSE_S
        attempt_s = _ATTEMPT_S + size / _SLOWEST_BYTES_PER_S
        while True:
            left = deadline - time.monotonic()
            try:
                return work(self._connection.bucket(), path, max(0.1, min(left, attempt_s)))
            except ConfigurationError:
                raise
            except Exception as error:
                self._raise_final(done, name, error, deadline - time.monotonic() - pause)
                time.sleep(pause)
                pause, attempt_s = min(2 * pause, _LONGEST_PAUSE_S), 2 * attempt_s

    def _raise_final(self, done: str, name: str, error: Exception, left: float) -> None:
        """Raise a public error for `error`, unless a retry may succeed and there is time for it."""
        failed = f"{self.uri}/{name} cannot be {done}: {_storage_cause(error)}"
        missing = isinstance(error, FileNotFoundError)
        if _NO_BUCKET.search(str(error)) or (missing and done == "written"):  # must not read as "nothing yet"
            raise StorageError(f"{failed}; create the bucket, or correct the URI") from error
        if missing:
            raise ObjectMissing(f"{self.uri}/{name} does not exist") from error
        if left <= 0 or not _may_storage_error_pass(error):
            raise StorageError(f"{failed}; {_storage_way_out(error, self.deadline_s)}") from error

    def _relative(self, path: str) -> str:
        root = f"{self._root}/" if self._root else ""
        if not path.startswith(root):  # must not read as "nothing there"
            raise StorageError(f"{self.uri} can't be listed: the store returned {path!r}, which is not below {root!r}")
        return path[len(root) :]


class StoreConnection:
    """Connection to a bucket, opened on first use in each process."""

    def __init__(self, uri: str, deadline_s: float) -> None:
        self._uri = uri
        self._deadline_s = deadline_s
        self._lock = threading.Lock()
        self._opened: tuple[int, StoreBucket] | None = None

    def bucket(self) -> StoreBucket:
        with self._lock:
            if self._opened is None or self._opened[0] != os.getpid():
                self._opened = os.getpid(), open_bucket(self._uri, self._deadline_s)
            return self._opened[1]

    def close(self) -> None:
        with self._lock:
            self._opened = None


def _storage_cause(error: BaseException) -> str:
    """Return one line from an error of the store: the status, code and message of the server, if the error has them."""
    text = str(error).partition("\n\nDebug source")[0]
    status = re.search(r"status code: (\d+[^:<{]*)", text)
    if status is None:
        return " ".join(text.split()) or type(error).__name__
    words = [found[1].strip() for tag in ("Code", "Message") if (found := re.search(rf"<{tag}>([^<\n]*)", text))]
    return ": ".join([status[1].strip(), *words])


def _is_storage_denied(error: BaseException) -> bool:
    names = {type(error).__name__}
    return bool(
        isinstance(error, PermissionError)
        or names & {"PermissionDeniedError", "UnauthenticatedError"}
        or _REFUSED.search(str(error))
    )


def _may_storage_error_pass(error: BaseException) -> bool:
    """Return whether a retry may succeed; False if access was refused, or if the call or URI is invalid."""
    if _is_storage_denied(error) or _OTHER_REGION.search(str(error)):
        return False
    return not isinstance(
        error,
        TypeError | ValueError | NotImplementedError | FileExistsError | IsADirectoryError | NotADirectoryError,
    )


def _storage_way_out(error: BaseException, deadline_s: float) -> str:
    if _OTHER_REGION.search(str(error)):
        return "the bucket is in another region: set AWS_REGION to it"
    if _is_storage_denied(error):
        return (
            "the store does not accept these credentials: check the Secret in secretRef, or the rights of "
            "the pod's service account"
        )
    return f"retried for {deadline_s:g} s: check the store's address, the bucket and the network"
