"""Storage by path in files, memory, or object stores of Amazon (S3), Google and Azure.

obstore is imported when a bucket of a cloud is opened, and never before: `import ringtrain` does not load it. Each
bucket reads the variables that the store's users set for other programs, too.
"""

import asyncio
import atexit
import configparser
import os
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from types import FrameType
from typing import Any, Protocol, TypeVar

from ringtrain.errors import ConfigurationError

T = TypeVar("T")
Settings = dict[str, Any]

S3, GOOGLE, AZURE = ("s3", "s3a"), ("gs", "gcs"), ("az", "abfs", "abfss")
LOCAL = ("file", "memory")
_CONNECT_S = 10
# A larger object is written in parts: a store takes at most 5 GiB in one request.
_ONE_REQUEST_BYTES = 256 << 20
_MOST_PARTS = 1000
# A thread of obstore that hands over its answer needs some microseconds, and a slice of a busy machine's time.
_LONGEST_EXIT_S = 2.0


class StoreBucket(Protocol):
    """Interface of a bucket: objects by path. Raises FileNotFoundError, and errors of obstore and the system."""

    def write(self, path: str, data: bytes, timeout_s: float) -> None: ...

    def read(self, path: str, start: int | None, stop: int | None, timeout_s: float) -> bytes: ...

    def names(self, folder: str, timeout_s: float) -> list[str]:
        """Return the paths of all objects in `folder` and in folders below it."""

    def folders(self, folder: str, timeout_s: float) -> list[str]:
        """Return the paths of the entries directly in `folder`: of its objects and of its subfolders."""

    def remove(self, path: str, timeout_s: float) -> None: ...


def split_uri(uri: str) -> tuple[str, str]:
    """Return bucket and path of a URI; the bucket is empty for `file://` and `memory://`."""
    scheme, _, place = uri.partition("://")
    if scheme in LOCAL:
        return "", place.rstrip("/") if scheme == "file" else place.strip("/")
    bucket, _, path = place.partition("/")
    return bucket, path.strip("/")


def open_bucket(uri: str, timeout_s: float) -> StoreBucket:
    """Return the bucket of `uri`, whose requests last at most `timeout_s`. Raises ConfigurationError if a setting of
    the store is invalid."""
    scheme, (bucket, _) = uri.partition("://")[0], split_uri(uri)
    if scheme == "file":
        return FileBucket()
    if scheme == "memory":
        return _MEMORY
    from obstore import store

    settings: Any
    if scheme in S3:
        kind, settings = "S3Store", s3_settings(os.environ)
    elif scheme in GOOGLE:
        kind, settings = "GCSStore", google_settings(os.environ)
    else:
        kind, (bucket, settings) = "AzureStore", azure_settings(bucket, os.environ)
    opened = getattr(store, kind)(
        bucket,
        config=settings,
        client_options=_client_options(timeout_s, os.environ),
        # The caller tries again, with a deadline for all attempts together.
        retry_config={"max_retries": 0, "retry_timeout": timedelta(seconds=timeout_s)},
    )
    return CloudBucket(opened)


def _client_options(timeout_s: float, env: Mapping[str, str]) -> Settings:
    options: Settings = {
        "allow_http": True,  # an endpoint without TLS is the user's choice
        "connect_timeout": timedelta(seconds=min(_CONNECT_S, timeout_s)),
        "timeout": timedelta(seconds=timeout_s),
    }
    file = env.get("AWS_CA_BUNDLE") or env.get("REQUESTS_CA_BUNDLE")
    if not file:  # an image may have no certificates
        with suppress(ImportError):
            import certifi

            file = certifi.where()
    if file:
        try:
            options["root_certificate"] = Path(file).read_bytes()
        except OSError as error:
            raise ConfigurationError(f"storage: certificates {file!r} can't be read: {error.strerror}") from error
    return options


def s3_settings(env: Mapping[str, str]) -> Settings:
    """Return settings that obstore does not read itself, from the profile in AWS's configuration files.

    `env`: environment that selects the profile and the files.
    """
    settings: Settings = {"disable_bulk_delete": True}  # some stores lack it, and one object at a time is removed
    profile = _aws_profile(env)
    if not (env.get("AWS_REGION") or env.get("AWS_DEFAULT_REGION")) and "region" in profile:
        settings["region"] = profile["region"]
    if not (env.get("AWS_ENDPOINT_URL_S3") or env.get("AWS_ENDPOINT_URL")) and "endpoint_url" in profile:
        settings["endpoint"] = profile["endpoint_url"]
    if env.get("AWS_ACCESS_KEY_ID") or env.get("AWS_WEB_IDENTITY_TOKEN_FILE"):
        return settings
    if "aws_access_key_id" in profile and "aws_secret_access_key" in profile:
        settings["access_key_id"] = profile["aws_access_key_id"]
        settings["secret_access_key"] = profile["aws_secret_access_key"]
        if "aws_session_token" in profile:
            settings["session_token"] = profile["aws_session_token"]
    elif found := [key for key in ("role_arn", "credential_process", "sso_session", "sso_start_url") if key in profile]:
        raise ConfigurationError(
            f"storage: AWS profile {_profile_name(env)!r} has {found[0]} but no keys, which ringtrain does not "
            "support; set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or use the pods' service account"
        )
    return settings


def _profile_name(env: Mapping[str, str]) -> str:
    return env.get("AWS_PROFILE") or env.get("AWS_DEFAULT_PROFILE") or "default"


def _aws_profile(env: Mapping[str, str]) -> dict[str, str]:
    """Return the AWS profile that is selected by `env`, merged from AWS's config and credentials files; empty if
    neither has it."""
    name, found = _profile_name(env), dict[str, str]()
    section = name if name == "default" else f"profile {name}"
    home = os.path.expanduser("~/.aws")
    for variable, file, part in (
        ("AWS_CONFIG_FILE", "config", section),
        ("AWS_SHARED_CREDENTIALS_FILE", "credentials", name),
    ):
        parser = configparser.RawConfigParser()
        with suppress(OSError, configparser.Error):
            parser.read(os.path.expanduser(env.get(variable) or f"{home}/{file}"))
            found |= dict(parser.items(part)) if parser.has_section(part) else {}
    return found


def google_settings(env: Mapping[str, str]) -> Settings:
    """Return settings that obstore does not read itself: the address of a storage emulator."""
    url = env.get("STORAGE_EMULATOR_HOST")
    if not url:
        return {}
    # No key and no token: an emulator takes requests of anybody.
    return {"base_url": url if "://" in url else f"http://{url}", "bearer_token": "anonymous"}


def azure_settings(place: str, env: Mapping[str, str]) -> tuple[str, Settings]:
    """Return the container, and settings from the connection string or the account in the URI."""
    container, _, host = place.partition("@")
    told = env.get("AZURE_STORAGE_CONNECTION_STRING", "")
    parts = dict(part.split("=", 1) for part in told.split(";") if "=" in part)
    account = host.partition(".")[0] or parts.get("AccountName", "")
    settings: Settings = {}
    if account:
        settings["account_name"] = account
    if host and not host.endswith(".core.windows.net"):  # another cloud's
        settings["endpoint"] = f"https://{host.replace('.dfs.', '.blob.')}"
    elif "BlobEndpoint" in parts:
        settings["endpoint"] = parts["BlobEndpoint"].rstrip("/")
    elif account and "EndpointSuffix" in parts:
        settings["endpoint"] = f"https://{account}.blob.{parts['EndpointSuffix']}"
    if "AccountKey" in parts:
        settings["account_key"] = parts["AccountKey"]
    elif "SharedAccessSignature" in parts:
        settings["sas_key"] = parts["SharedAccessSignature"]
    if env.get("AZURE_STORAGE_ANON", "").lower() in ("1", "true"):
        settings["skip_signature"] = True
    return container, settings


class CloudBucket:
    """Bucket in a cloud's object store, accessed through obstore. Each call ends within its timeout."""

    def __init__(self, opened: Any) -> None:
        self._opened = opened

    def write(self, path: str, data: bytes, timeout_s: float) -> None:
        several = len(data) > _ONE_REQUEST_BYTES
        part = max(32 << 20, len(data) // _MOST_PARTS + 1)
        _wait_for(lambda: self._opened.put_async(path, data, use_multipart=several, chunk_size=part), timeout_s)

    def read(self, path: str, start: int | None, stop: int | None, timeout_s: float) -> bytes:
        if start is not None and stop is not None:
            if start >= stop:
                return b""
            return bytes(_wait_for(lambda: self._opened.get_range_async(path, start=start, end=stop), timeout_s))
        return bytes(_wait_for(lambda: self._read_whole(path), timeout_s))[start:stop]

    async def _read_whole(self, path: str) -> Any:
        return await (await self._opened.get_async(path)).bytes_async()

    def names(self, folder: str, timeout_s: float) -> list[str]:
        return _wait_for(lambda: self._names(folder), timeout_s)

    async def _names(self, folder: str) -> list[str]:
        stream = self._opened.list_async(folder or None, chunk_size=1000)
        return [found["path"] async for page in stream for found in page]

    def folders(self, folder: str, timeout_s: float) -> list[str]:
        found = _wait_for(lambda: self._opened.list_with_delimiter_async(folder or None), timeout_s)
        return [*found["common_prefixes"], *(one["path"] for one in found["objects"])]

    def remove(self, path: str, timeout_s: float) -> None:
        _wait_for(lambda: self._opened.delete_async(path), timeout_s)


class FileBucket:
    """Files of this machine as a bucket. A write is atomic, also if the machine loses power."""

    def write(self, path: str, data: bytes, timeout_s: float) -> None:
        temporary = f"{path}.{os.getpid()}-{threading.get_ident()}.tmp"
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(temporary, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)

    def read(self, path: str, start: int | None, stop: int | None, timeout_s: float) -> bytes:
        with open(path, "rb") as file:
            file.seek(start or 0)
            return file.read(-1 if stop is None else max(0, stop - (start or 0)))

    def names(self, folder: str, timeout_s: float) -> list[str]:
        return [str(path) for path in Path(folder).rglob("*") if path.is_file()]

    def folders(self, folder: str, timeout_s: float) -> list[str]:
        return [str(path) for path in Path(folder).iterdir()]

    def remove(self, path: str, timeout_s: float) -> None:
        os.unlink(path)


class MemoryBucket:
    """Objects in the memory of this process (`memory://`)."""

    def __init__(self) -> None:
        self._objects: dict[str, bytes] = {}

    def write(self, path: str, data: bytes, timeout_s: float) -> None:
        self._objects[path] = bytes(data)

    def read(self, path: str, start: int | None, stop: int | None, timeout_s: float) -> bytes:
        if path not in self._objects:
            raise FileNotFoundError(path)
        return self._objects[path][start:stop]

    def names(self, folder: str, timeout_s: float) -> list[str]:
        return [name for name in list(self._objects) if name.startswith(f"{folder}/" if folder else "")]

    def folders(self, folder: str, timeout_s: float) -> list[str]:
        above = f"{folder}/" if folder else ""
        return [above + name[len(above) :].partition("/")[0] for name in self.names(folder, timeout_s)]

    def remove(self, path: str, timeout_s: float) -> None:
        self._objects.pop(path, None)


_MEMORY = MemoryBucket()


class _RequestLoop:
    """Event loop that runs this process's storage requests, on a thread that the first request starts."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._pid = 0

    def running(self) -> asyncio.AbstractEventLoop:
        """Return the event loop. Raises ConfigurationError if this process was forked after the loop had started."""
        with self._lock:
            if self._loop is None:
                self._loop, self._pid = asyncio.new_event_loop(), os.getpid()
                threading.Thread(target=self._loop.run_forever, name="ringtrain-storage", daemon=True).start()
                atexit.register(_wait_for_threads_of_requests)
            elif self._pid != os.getpid():
                raise ConfigurationError(
                    "storage: this process was forked after its parent had used an object store, whose threads this "
                    "process lacks; start the process by the method 'spawn', or use the store only in this process"
                )
            return self._loop


def _wait_for_threads_of_requests() -> None:
    """Return when no thread of obstore is inside Python.

    The answer to the last request can arrive before the thread of that request has left `call_soon_threadsafe`. If the
    interpreter exits at that moment, it ends the thread inside obstore's Rust code, and the whole process aborts (exit
    code 134).
    """
    deadline = time.monotonic() + _LONGEST_EXIT_S
    while any(map(_hands_over_answer, sys._current_frames().values())) and time.monotonic() < deadline:
        time.sleep(0.001)


def _hands_over_answer(frame: FrameType | None) -> bool:
    """Return whether a thread whose innermost frame is `frame` is in a call to an event loop."""
    while frame is not None and frame.f_code is not asyncio.BaseEventLoop.call_soon_threadsafe.__code__:
        frame = frame.f_back
    return frame is not None


_REQUESTS = _RequestLoop()


def _wait_for(send: Callable[[], Awaitable[T]], timeout_s: float) -> T:
    """Run the request `send` on the event loop and return its result. Raises TimeoutError after `timeout_s`."""

    async def bounded() -> T:
        async with asyncio.timeout(timeout_s):
            return await send()

    loop = _REQUESTS.running()
    return asyncio.run_coroutine_threadsafe(bounded(), loop).result()
