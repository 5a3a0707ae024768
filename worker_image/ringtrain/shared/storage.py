"""Objects below a URI, through fsspec: each call has a deadline, tries again, and its errors say what to do.

fsspec and its drivers are imported when a store is opened, and never before: `import ringtrain` is without them.
"""

import importlib.util
import os
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

from ringtrain.errors import ConfigurationError, ObjectMissing, StorageError

T = TypeVar("T")

# Schemes that need a driver beside fsspec: its module, and the extra of ringtrain that installs it.
_DRIVERS = {
    "s3": ("s3fs", "s3"),
    "s3a": ("s3fs", "s3"),
    "gs": ("gcsfs", "gcs"),
    "gcs": ("gcsfs", "gcs"),
    "az": ("adlfs", "azure"),
    "abfs": ("adlfs", "azure"),
    "abfss": ("adlfs", "azure"),
}
_PLAIN = ("file", "memory")
# The server's words; the URI itself may have "bucket" in it.
_NO_BUCKET = "specified bucket does not exist"
DEADLINE_S = 120.0
_FIRST_PAUSE_S = 0.2
_LONGEST_PAUSE_S = 5.0
# A connection that is not made, or on which nothing comes, for so long is given up and made again.
_CONNECT_S = 10.0
_SILENT_S = 30.0


def is_uri(where: object) -> bool:
    """Whether `where` names an object store, and not a directory."""
    return isinstance(where, str) and "://" in where


def check_uri(uri: str) -> None:
    """Raise ConfigurationError unless `uri` can be opened here; it names the missing package's pip command."""
    scheme, separator, path = uri.partition("://")
    if not separator or scheme not in (*_DRIVERS, *_PLAIN):
        known = ", ".join(sorted((*_DRIVERS, *_PLAIN)))
        raise ConfigurationError(
            f"storage: {uri!r} is no URI of a known store; expected one of {known}, as s3://bucket/path"
        )
    if scheme != "memory" and not path.strip("/"):
        raise ConfigurationError(f"storage: {uri!r} names no place; expected {scheme}://bucket/path")
    module, extra = _DRIVERS.get(scheme, ("fsspec", "storage"))
    for needed in ("fsspec", module):
        if importlib.util.find_spec(needed) is None:
            raise ConfigurationError(
                f"storage: {uri} needs the package {needed}, which is not installed here; "
                f"pip install 'ringtrain[{extra}]'"
            )


class ObjectStore:
    """The objects below `uri`, by names relative to it. Safe to call from many threads, and after a fork.

    Every call ends within `deadline_s`, in which it tries again what may pass: a refused or cut connection, a
    server that says it is busy. It raises ObjectMissing for what is not there, and StorageError, which names the
    URI, the cause and the way out, for everything else.
    """

    def __init__(self, uri: str, deadline_s: float = DEADLINE_S, connection: "StoreConnection | None" = None) -> None:
        """`connection`: of another store of the same bucket, whose opener closes it."""
        check_uri(uri)
        self.uri = uri.rstrip("/")
        self.deadline_s = deadline_s
        self._connection = connection or StoreConnection(self.uri)

    def below(self, folder: str) -> "ObjectStore":
        """The store of what is in `folder`, over the same connections: whoever opened this one closes them."""
        return self.at(f"{self.uri}/{folder}")

    def at(self, uri: str) -> "ObjectStore":
        """The store at another `uri` of the same bucket, over the same connections."""
        return ObjectStore(uri, self.deadline_s, self._connection)

    def write(self, name: str, data: bytes) -> None:
        """Make `data` the object `name`: whoever reads finds all of it, or what was there before."""
        if self.uri.startswith("file://"):
            self._try("written", name, lambda fs, path, left: _write_file(fs, path, data))
        else:
            self._try("written", name, lambda fs, path, left: _call_filesystem(fs, "pipe_file", left, path, data))

    def read(self, name: str, start: int | None = None, stop: int | None = None) -> bytes:
        """The bytes `start:stop` of the object `name`."""
        read = self._try(
            "read",
            name,
            lambda fs, path, left: _call_filesystem(fs, "cat_file", left, path, start=start, end=stop),
        )
        return bytes(read)

    def names(self, folder: str = "") -> list[str]:
        """Names of all objects in `folder` and below it, sorted; none where there is no such folder."""
        try:
            found = self._try("listed", folder, lambda fs, path, left: _call_filesystem(fs, "find", left, path))
        except ObjectMissing:
            found = []
        if not found:
            self._require_bucket(folder)
        return sorted(self._relative(str(name)) for name in found)

    def folders(self, folder: str = "") -> list[str]:
        """Names of what is directly in `folder`, sorted; none where there is no such folder."""
        try:
            found = self._try(
                "listed", folder, lambda fs, path, left: _call_filesystem(fs, "ls", left, path, detail=False)
            )
        except ObjectMissing:
            found = []
        if not found:
            self._require_bucket(folder)
        return sorted({str(name).rstrip("/").rpartition("/")[2] for name in found} - {""})

    def remove(self, name: str) -> None:
        """Remove the object `name`; it need not be there."""
        try:
            self._try("removed", name, lambda fs, path, left: _call_filesystem(fs, "rm_file", left, path))
        except ObjectMissing:
            return

    def remove_folder(self, folder: str) -> None:
        """Remove `folder` from a disk if nothing is in it; other stores have no folders, only names."""
        if self.uri.startswith("file://"):
            with suppress(OSError):
                Path(self._root(), folder).rmdir()

    def close(self) -> None:
        """Give connections back. The store may be used again."""
        self._connection.close()

    def _try(self, done: str, name: str, work: Callable[[Any, str, float], T]) -> T:
        deadline, pause = time.monotonic() + self.deadline_s, _FIRST_PAUSE_S
        while True:
            left = deadline - time.monotonic()
            try:
                fs = self._connection.filesystem()
                path = f"{self._root()}/{name}".rstrip("/")
                return work(fs, path, max(0.1, left))
            except FileNotFoundError as error:
                if done == "written" or _NO_BUCKET in str(error):  # must not read as "nothing yet"
                    raise StorageError(
                        f"{self.uri}/{name} cannot be {done}: {error}; make the bucket, or correct the URI"
                    ) from error
                raise ObjectMissing(f"{self.uri}/{name} is not there") from error
            except Exception as error:
                left = deadline - time.monotonic()
                if not _may_storage_error_pass(error) or left <= pause:
                    raise StorageError(self._describe(done, name, error)) from error
                time.sleep(pause)
                pause = min(2 * pause, _LONGEST_PAUSE_S)

    def _require_bucket(self, folder: str) -> None:
        """Raise StorageError where there is no bucket: two drivers list nothing then, as in an empty one. Or
        where a file is in the place of a folder."""
        scheme, bucket = self.uri.partition("://")[0], self._root().partition("/")[0]
        if scheme == "file":
            for path in (Path(self._root()), *Path(self._root()).parents):
                if path.is_file():
                    raise StorageError(f"{self.uri} is no folder: {path} is a file; name another place")
        if scheme in ("gs", "gcs", "az", "abfs", "abfss"):
            self._try("listed", folder, lambda fs, path, left: _find_bucket(fs, scheme, bucket, left))

    def _describe(self, done: str, name: str, error: Exception) -> str:
        cause = str(error) or type(error).__name__
        return f"{self.uri}/{name} cannot be {done}: {cause}; {_storage_way_out(error, self.deadline_s)}"

    def _root(self) -> str:
        """The path of this store as the driver has it: without the account, of an Azure URI that names one."""
        from fsspec.core import strip_protocol

        return str(strip_protocol(self.uri)).rstrip("/")

    def _relative(self, path: str) -> str:
        root = self._root()
        if not path.startswith(f"{root}/"):  # must not read as "nothing there"
            raise StorageError(f"{self.uri} cannot be listed: the store names {path!r}, which is not below {root!r}")
        return path[len(root) + 1 :]


class StoreConnection:
    """A filesystem of fsspec, opened when it is first used in a process."""

    def __init__(self, uri: str) -> None:
        self._uri = uri
        self._lock = threading.Lock()
        self._opened: tuple[int, Any] | None = None

    def filesystem(self) -> Any:
        with self._lock:
            if self._opened is None or self._opened[0] != os.getpid():
                self._opened = os.getpid(), _open_filesystem(self._uri)
            return self._opened[1]

    def close(self) -> None:
        with self._lock:
            opened, self._opened = self._opened, None
        if opened is None or opened[0] != os.getpid():
            return
        session = getattr(opened[1], "_s3", None)
        if session is not None:
            opened[1].close_session(opened[1].loop, session)


def _open_filesystem(uri: str) -> Any:
    import fsspec

    scheme = uri.partition("://")[0]
    options: dict[str, Any] = {"use_listings_cache": False, "skip_instance_cache": scheme != "memory"}
    if scheme in ("s3", "s3a"):
        timeouts = {"connect_timeout": _CONNECT_S, "read_timeout": _SILENT_S}
        options["config_kwargs"] = {**timeouts, "retries": {"max_attempts": 1}}
    if scheme == "file":
        options["auto_mkdir"] = True
    return fsspec.core.url_to_fs(uri, **options)[0]


def _call_filesystem(fs: Any, method: str, timeout_s: float, *args: Any, **named: Any) -> Any:
    """Call a method of a filesystem, within `timeout_s` where it is one of those that wait for a network."""
    if not getattr(fs, "async_impl", False):
        if method in ("find", "ls"):
            fs.invalidate_cache()
        return getattr(fs, method)(*args, **named)
    from fsspec.asyn import sync

    return sync(fs.loop, getattr(fs, f"_{method}"), *args, timeout=timeout_s, **named)


def _find_bucket(fs: Any, scheme: str, bucket: str, left: float) -> None:
    """Raise FileNotFoundError, worded as S3's is, unless the bucket is there; with no right but that to list."""
    try:
        if scheme in ("gs", "gcs"):
            _call_filesystem(fs, "call", left, "GET", f"b/{bucket}/o", maxResults=1, json_out=True)
        elif not _call_filesystem(fs, "exists", left, bucket):
            raise FileNotFoundError(bucket)
    except FileNotFoundError as error:
        raise FileNotFoundError(f"the {_NO_BUCKET}: {bucket}") from error


def _write_file(fs: Any, path: str, data: bytes) -> None:
    temporary = f"{path}.{os.getpid()}-{threading.get_ident()}.tmp"
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(temporary, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, path)


def _is_storage_denied(error: BaseException) -> bool:
    names = {type(cause).__name__ for cause in _storage_error_causes(error)}
    told = isinstance(error, PermissionError) or names & {"NoCredentialsError", "PartialCredentialsError"}
    return bool(told or names & {"ClientAuthenticationError", "DefaultCredentialsError", "CredentialRetrievalError"})


def _may_storage_error_pass(error: BaseException) -> bool:
    """Whether trying again may mend it: not a refusal of rights, nor a mistake of the caller or in the URI."""
    if _is_storage_denied(error) or isinstance(
        error, TypeError | ValueError | NotImplementedError | ConfigurationError
    ):
        return False
    return not isinstance(error, FileExistsError | IsADirectoryError | NotADirectoryError)


def _storage_way_out(error: BaseException, deadline_s: float) -> str:
    if _is_storage_denied(error):
        return (
            "the store does not take these credentials: check the Secret that secretRef names, or the rights of "
            "the pod's service account"
        )
    return f"it was tried for {deadline_s:g} s: check the store's address, its bucket and the way to it"


def _storage_error_causes(error: BaseException | None) -> list[BaseException]:
    found: list[BaseException] = []
    while error is not None and error not in found:
        found.append(error)
        error = error.__cause__ or error.__context__
    return found
