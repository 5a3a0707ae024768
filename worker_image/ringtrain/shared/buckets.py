"""Buckets of each kind of store, by paths: files, memory, and S3, Google's and Azure's stores through obstore.

obstore is imported when a bucket of a cloud is opened, and never before: `import ringtrain` does not load it. Each
bucket reads the variables that the store's users set for other programs, too.
"""

import asyncio
import configparser
import os
import threading
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
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


class StoreBucket(Protocol):
    """Objects by their paths. Errors: FileNotFoundError, and what `obstore` and the operating system raise."""

    def write(self, path: str, data: bytes, timeout_s: float) -> None: ...

    def read(self, path: str, start: int | None, stop: int | None, timeout_s: float) -> bytes: ...

    def names(self, folder: str, timeout_s: float) -> list[str]:
        """Paths of all objects in `folder` and below it."""

    def folders(self, folder: str, timeout_s: float) -> list[str]:
        """Paths of what is directly in `folder`."""

    def remove(self, path: str, timeout_s: float) -> None: ...


def split_uri(uri: str) -> tuple[str, str]:
    """Return the bucket and the path of a URI; files and objects in memory have one bucket, which is empty."""
    scheme, _, place = uri.partition("://")
    if scheme in LOCAL:
        return "", place.rstrip("/") if scheme == "file" else place.strip("/")
    bucket, _, path = place.partition("/")
    return bucket, path.strip("/")


def open_bucket(uri: str, timeout_s: float) -> StoreBucket:
    """Open the bucket of `uri`; no request of it lasts longer than `timeout_s`. Raises ConfigurationError."""
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
    """Return what obstore does not read itself: the profile in AWS's shared files."""
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
            f"storage: AWS profile {_profile_name(env)!r} has {found[0]} and no keys, which is not supported here; "
            "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or use the pods' service account"
        )
    return settings


def _profile_name(env: Mapping[str, str]) -> str:
    return env.get("AWS_PROFILE") or env.get("AWS_DEFAULT_PROFILE") or "default"


def _aws_profile(env: Mapping[str, str]) -> dict[str, str]:
    """The profile that the variables name, merged from both files; empty if neither file has it."""
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
    """Return what obstore does not read itself: the address of an emulator."""
    url = env.get("STORAGE_EMULATOR_HOST")
    if not url:
        return {}
    # No key and no token: an emulator takes requests of anybody.
    return {"base_url": url if "://" in url else f"http://{url}", "bearer_token": "anonymous"}


def azure_settings(place: str, env: Mapping[str, str]) -> tuple[str, Settings]:
    """Return the container, and what obstore does not read itself: the connection string, and an account that the
    URI names."""
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
    """A bucket that obstore has opened. Each call ends within its timeout, also in the middle of an answer."""

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
    """Files of this machine. A written file is complete, also after a power cut."""

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
    """Objects of this process."""

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
    """The event loop of this process's requests. The first request starts it on a separate thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._pid = 0

    def running(self) -> asyncio.AbstractEventLoop:
        """Return the loop. Raises ConfigurationError in a process whose parent has used obstore before the fork."""
        with self._lock:
            if self._loop is None:
                self._loop, self._pid = asyncio.new_event_loop(), os.getpid()
                threading.Thread(target=self._loop.run_forever, name="ringtrain-storage", daemon=True).start()
            elif self._pid != os.getpid():
                raise ConfigurationError(
                    "storage: this process was forked from one that has used an object store, whose threads it lacks; "
                    "start it with the method 'spawn', or open the store in it alone"
                )
            return self._loop


_REQUESTS = _RequestLoop()


def _wait_for(send: Callable[[], Awaitable[T]], timeout_s: float) -> T:
    """Return what a request of obstore ends with; `send` runs on the loop. Raises TimeoutError after `timeout_s`."""

    async def bounded() -> T:
        async with asyncio.timeout(timeout_s):
            return await send()

    loop = _REQUESTS.running()
    return asyncio.run_coroutine_threadsafe(bounded(), loop).result()
