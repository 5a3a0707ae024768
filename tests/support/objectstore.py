"""A real S3 server in this process, and a proxy in front of it that refuses, cuts and slows connections.

    with s3_server() as server, Proxy(server.address) as proxy:
        proxy.cut_after = 1000  # bytes of each connection's answer or request

The server is moto's, which speaks S3's protocol over a socket and can check credentials.
"""

import contextlib
import json
import os
import socket
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Self

from support.deadlines import patient

BUCKET = "runs"
_BYTES = {"Content-Type": "application/octet-stream"}


@dataclass(frozen=True)
class Server:
    """Address of the server."""

    address: tuple[str, int]

    @property
    def url(self) -> str:
        return f"http://{self.address[0]}:{self.address[1]}"

    def make_bucket(self, name: str = BUCKET) -> None:
        """Make a bucket; it may be there."""
        self._send("PUT", f"/{name}")

    def check_credentials(self, checks: bool) -> None:
        """Have the server refuse keys that it does not know, or take any again."""
        self._send("POST", "/moto-api/reset-auth", b"0" if checks else b"inf")

    def reset(self) -> None:
        """Forget all objects, buckets and users."""
        self._send("POST", "/moto-api/reset")

    def _send(self, method: str, path: str, data: bytes | None = None) -> None:
        request = urllib.request.Request(self.url + path, data=data, method=method, headers=_BYTES)
        with contextlib.suppress(urllib.error.HTTPError), urllib.request.urlopen(request, timeout=patient(10)):
            return


@contextlib.contextmanager
def s3_server() -> Iterator[Server]:
    """A server with an empty bucket `runs`, for as long as the block lasts."""
    import logging

    from moto.server import ThreadedMotoServer

    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = ThreadedMotoServer("127.0.0.1", 0)
    server.start()
    try:
        host, port = server.get_host_and_port()
        made = Server((host, port))
        made.make_bucket()
        yield made
    finally:
        server.stop()


def environment(url: str, key: str = "testing") -> dict[str, str]:
    """Return the environment with which a client finds the server at `url`."""
    return {
        "AWS_ENDPOINT_URL": url,
        "AWS_ACCESS_KEY_ID": key,
        "AWS_SECRET_ACCESS_KEY": "testing",
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_EC2_METADATA_DISABLED": "true",
        "AWS_CONFIG_FILE": os.devnull,
        "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
    }


class Proxy:
    """A TCP proxy on a port of its own. Its faults are attributes, and hold for what comes after they are set.

    `refuses`: connections are closed at once. `cut_after`: bytes after which a connection is cut, while `cuts` is
    not 0, which each cut lowers. `pause_s`: before each piece of an answer. `requests`: connections so far.
    """

    def __init__(self, target: tuple[str, int]) -> None:
        self._target = target
        self.refuses = False
        self.cut_after = 0
        self.cuts = 0
        self.pause_s = 0.0
        self.connections = 0
        self.done = threading.Event()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._sockets: list[socket.socket] = []
        self._threads = [threading.Thread(target=self._accept, name="proxy")]
        self._threads[0].start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._listener.getsockname()[1]}"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.done.set()
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.drop()
        for thread in self._threads:
            thread.join(10)
        for end in self._sockets:
            end.close()

    def drop(self) -> None:
        """Cut all connections that are open now."""
        for end in list(self._sockets):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def _accept(self) -> None:
        while not self.done.is_set():
            try:
                near, _ = self._listener.accept()
            except OSError:
                return
            self.connections += 1
            self._sockets.append(near)
            if self.refuses:
                near.close()
                continue
            far = socket.create_connection(self._target, timeout=10)
            far.settimeout(None)
            self._sockets.append(far)
            for source, sink, slow in ((near, far, False), (far, near, True)):
                thread = threading.Thread(target=self._copy, args=(source, sink, slow), name="proxy-copy")
                self._threads.append(thread)
                thread.start()

    def _copy(self, source: socket.socket, sink: socket.socket, slow: bool) -> None:
        seen = 0
        with contextlib.suppress(OSError):
            while data := source.recv(1 << 16):
                if slow and self.pause_s and self.done.wait(self.pause_s):
                    break
                seen += len(data)
                if self.cuts and seen > self.cut_after:
                    self.cuts -= 1
                    sink.sendall(data[: len(data) // 2])
                    break
                sink.sendall(data)
        for end in (source, sink):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)


def manifest_of(data: bytes) -> dict[str, object]:
    """Return the content of a manifest object."""
    return json.loads(json.loads(data)["manifest"])
