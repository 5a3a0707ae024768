"""The launcher's HTTP server: `/status`, `/metrics`, `/healthz`, PUT requests of the operator, and pages."""

import contextlib
import io
import json
import math
import re
import socket
import threading
from collections.abc import Callable, Collection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, BinaryIO, ClassVar, Final

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest

from ringtrain.errors import ConfigurationError
from ringtrain.shared.address import listening_socket, loopback_address
from ringtrain.shared.authentication import bearer, is_one_of
from ringtrain.shared.formats import clean_json
from ringtrain.shared.ports import PortTaken
from ringtrain.shared.unauthenticated import UnauthenticatedPeer, UnauthenticatedPeers
from ringtrain_job.launcher.metrics import StatusCollector
from ringtrain_job.launcher.observers import HttpRoutes

# Requests may come from anyone. A request has some hundred bytes, and clients read an answer within moments.
_MOST_REQUEST_BYTES: Final = 64 << 10  # the operator lists up to 4096 workers whose pods have ended
# Characters of an event's kind, and of its text or an image's description.
_MOST_WORD: Final = 40
_MOST_TEXT: Final = 1000
_MOST_CONNECTIONS: Final = 64
_CONNECTION_S: Final = 10.0
_LAST_STATE_S: Final = 2.0
# A client that neither sends nor reads must not occupy its thread forever.
_SILENCE_S: Final = 10.0
# Bytes that were sent but not read. The kernel reports more space once a third has been read. With the default of
# several MiB, a slow client reads less than that in `_SILENCE_S`.
_SEND_BUFFER: Final = 64 << 10

# Callback: the number of requested workers and, by index, incarnations of pods that have ended.
OnWorkers = Callable[[int, dict[int, int]], None]
# Status, content type and body.
Answer = tuple[int, str, bytes]
# Callback: events of the job's pods ({"time", "kind", "text"}), and descriptions of their image by name.
OnPods = Callable[[list[dict[str, Any]], dict[str, str]], None]
# Callback: the site of each worker, by index, and of each node that may run a worker; "" if a node has no site label.
OnSites = Callable[[dict[int, str], dict[str, str]], None]


class HttpServer:
    """HTTP server with a thread for each connection and a limit on unauthenticated ones.

    `answer`: returns the response to a GET that no `routes` serve, from the path with query and the Authorization
    header; `put`: the same for PUT, with the body. `everywhere`: whether to listen on all addresses of this host, not
    on loopback alone. On loopback, the `Host` header must name this host, which protects against pages of other sites
    in a browser. `is_held`: whether another process has bound `port` and shares it. Raises PortTaken.
    """

    called: ClassVar = "port"

    def __init__(
        self,
        port: int,
        answer: Callable[[str, str], Answer],
        put: Callable[[str, str, bytes], Answer],
        routes: Collection[HttpRoutes] = (),
        *,
        everywhere: bool = False,
        is_held: bool = False,
    ) -> None:
        try:
            listening = listening_socket("" if everywhere else loopback_address(), port, is_held)
        except OSError as exc:
            raise PortTaken(f"{self.called} {port} is not available: {exc}") from exc
        self._server = _LimitedHttpServer(
            listening, _launcher_http_handler(answer, put, routes, is_local=not everywhere)
        )
        self._routes = tuple(routes)
        self.port: int = listening.getsockname()[1]
        self._thread = threading.Thread(
            target=self._server.serve_forever, kwargs={"poll_interval": 0.2}, name="ringtrain-http", daemon=True
        )
        self._thread.start()

    def close(self) -> None:
        """Stop the server. Browsers with an open page receive the final state first, if they read it in time."""
        for routes in self._routes:
            routes.close(_LAST_STATE_S)
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
        self._server.unauthenticated.close()


class StatusServer(HttpServer):
    """The launcher's HTTP server, with `/status`, `/metrics` and `/healthz`.

    `status` returns the document of `/status`, `brief_status` the document of `/status?brief`, and `healthy` decides
    the answer of `/healthz`. If there are `tokens`, `/status` requires one of them as a bearer token. `/metrics` and
    `/healthz` contain only figures and require none. `change_tokens`: tokens that PUT requests require. If `/status`
    requires no token, an answer to a client without one of the `change_tokens` omits lines that ranks wrote, because
    any user of this machine may connect. `on_workers` receives `PUT /workers` of an elastic job, `on_pods` receives
    `PUT /pods`, and `on_sites` receives `PUT /sites`.
    """

    called = "the status port"

    def __init__(
        self,
        port: int,
        status: Callable[[], dict[str, Any]],
        brief_status: Callable[[], dict[str, Any]],
        healthy: Callable[[], bool],
        *,
        everywhere: bool,
        tokens: tuple[str, ...] = (),
        change_tokens: tuple[str, ...] = (),
        on_workers: OnWorkers | None = None,
        on_pods: OnPods | None = None,
        on_sites: OnSites | None = None,
        is_held: bool = False,
        routes: Collection[HttpRoutes] = (),
    ) -> None:
        registry = CollectorRegistry()
        registry.register(StatusCollector(status))

        def answer(asked: str, authorization: str) -> Answer:
            path, _, query = asked.partition("?")
            if path == "/status" and tokens and not is_one_of(bearer(authorization), tokens):
                return 401, "text/plain", b"/status requires the job's token: Authorization: Bearer ...\n"
            if path == "/status":
                told = brief_status() if "brief" in query.split("&") else status()
                if change_tokens and not is_one_of(bearer(authorization), tokens or change_tokens):
                    told = _without_output(told)
                return 200, "application/json", json.dumps(clean_json(told)).encode()
            if path == "/metrics":
                return 200, CONTENT_TYPE_LATEST, generate_latest(registry)
            if path == "/healthz":
                return (200, "text/plain", b"ok\n") if healthy() else (503, "text/plain", b"stalled\n")
            return 404, "text/plain", b"/status, /metrics and /healthz are here\n"

        def put(path: str, authorization: str, body: bytes) -> Answer:
            if path not in ("/workers", "/pods", "/sites"):
                return 404, "text/plain", b"what can be put is /workers, /pods and /sites\n"
            if (change_tokens or tokens) and not is_one_of(bearer(authorization), change_tokens or tokens):
                text = f"{path} requires the job's token: Authorization: Bearer ...\n"
                return 401, "text/plain", text.encode()
            try:
                if path == "/pods":
                    (on_pods or _ignore_put)(*_pods_in(body))
                elif path == "/sites":
                    (on_sites or _ignore_put)(*_sites_in(body))
                elif on_workers is not None:
                    on_workers(*_workers_in(body))
                else:
                    return 409, "text/plain", b"this job is not elastic: its number of workers does not change\n"
            except ConfigurationError as exc:
                return 422, "text/plain", f"{exc}\n".encode()
            return 204, "text/plain", b""

        super().__init__(port, answer, put, routes, everywhere=everywhere, is_held=is_held)


def _ignore_put(*_: object) -> None:
    """Do nothing with a PUT that nobody handles."""


def _workers_in(body: bytes) -> tuple[int, dict[int, int]]:
    expected = 'expected {"workers": number} and, if pods have ended, {"gone": {"index": incarnation}}'
    try:
        said = json.loads(body)
        workers, gone = said["workers"], said.get("gone", {})
    except (ValueError, TypeError, KeyError, AttributeError):
        raise ConfigurationError(f"PUT /workers: the body is {body[:200]!r}; {expected}") from None
    if not _is_status_count(workers):
        raise ConfigurationError(f'PUT /workers: "workers" is {workers!r}; {expected}')
    if not isinstance(gone, dict) or not all(i.isdecimal() and _is_status_count(gone[i]) for i in gone):
        raise ConfigurationError(f'PUT /workers: "gone" is {str(gone)[:200]}; {expected}')
    return workers, {int(index): incarnation for index, incarnation in gone.items()}


def _pods_in(body: bytes) -> tuple[list[dict[str, Any]], dict[str, str]]:
    expected = 'expected {"events": [{"time": seconds, "kind": word, "text": text}], "image": text, "imageID": text}'
    try:
        said = json.loads(body)
        events = [
            {"time": event["time"], "kind": event["kind"][:_MOST_WORD], "text": event["text"][:_MOST_TEXT]}
            for event in said["events"]
        ]
        about = {name: said[name][:_MOST_TEXT] for name in ("image", "imageID") if name in said}
    except (ValueError, TypeError, KeyError, AttributeError):
        raise ConfigurationError(f"PUT /pods: the body {body[:200]!r} is malformed; {expected}") from None
    texts = [event["kind"] for event in events] + [event["text"] for event in events] + list(about.values())
    if not all(map(_is_status_time, (event["time"] for event in events))) or not all(isinstance(t, str) for t in texts):
        raise ConfigurationError(f"PUT /pods: the body {body[:200]!r} has a field of the wrong type; {expected}")
    return events, about


def _sites_in(body: bytes) -> tuple[dict[int, str], dict[str, str]]:
    try:
        document = json.loads(body)
        sites = {index: site for site, workers in document["sites"].items() for index in workers}
        nodes = dict(document.get("nodes", {}))
    except (ValueError, TypeError, KeyError, AttributeError):
        sites, nodes = {}, {}
    if not sites or not all(map(_is_status_count, sites)) or not all(isinstance(site, str) for site in nodes.values()):
        expected = '{"sites": {"name": [index]}, "nodes": {"node": "name"}}'
        raise ConfigurationError(f"PUT /sites: the body {body[:200]!r} is malformed; expected {expected}")
    return sites, nodes


def _is_status_time(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _is_status_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _without_output(value: Any) -> Any:
    """Return the JSON `value` with the last lines of ranks (`logTail`) removed."""
    if isinstance(value, dict):
        return {key: [] if key == "logTail" else _without_output(inner) for key, inner in value.items()}
    return [_without_output(inner) for inner in value] if isinstance(value, list) else value


def _is_this_host(name: str) -> bool:
    """Return whether the header `Host` names this machine's loopback address, or is empty."""
    host = name.rpartition(":")[0] if re.search(r":[0-9]*$", name) else name
    return not name or host.lower() in ("localhost", "127.0.0.1", "[::1]")


class _LimitedHttpServer(ThreadingHTTPServer):
    """HTTP server that limits the number and duration of connections without a valid token. A new connection beyond the
    limit replaces the oldest one."""

    daemon_threads = True

    def __init__(self, listening: socket.socket, handler: type[BaseHTTPRequestHandler]) -> None:
        self.unauthenticated = UnauthenticatedPeers(_MOST_CONNECTIONS, _CONNECTION_S)
        self._entered: dict[Any, UnauthenticatedPeer] = {}
        super().__init__(listening.getsockname(), handler, bind_and_activate=False)
        self.socket.close()
        self.socket = listening

    def process_request(self, request: Any, client_address: Any) -> None:
        self._entered[request] = self.unauthenticated.enter(lambda: _shut_http_socket(request))
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        self.unauthenticated.leave(self._entered.pop(request))
        super().shutdown_request(request)

    def admit(self, request: Any) -> None:
        """Exempt this connection from the limits, because the client has sent a valid token."""
        self.unauthenticated.leave(self._entered[request])

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore the errors of clients that disconnect."""


def _shut_http_socket(sock: socket.socket) -> None:
    with contextlib.suppress(OSError):
        sock.shutdown(socket.SHUT_RDWR)


class _HttpReply(io.BufferedIOBase):
    """Output stream of a response. Its timeout restarts whenever the client reads data."""

    def __init__(self, sock: socket.socket) -> None:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SEND_BUFFER)
        self._sock = sock

    def write(self, data: Any, /) -> int:
        left = whole = memoryview(data)
        while left:
            left = left[self._sock.send(left) :]
        return len(whole)


class _HttpRequestBeginning:
    """Reader of a request's lines that stops after a limit of bytes."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._left = _MOST_REQUEST_BYTES

    def readline(self, limit: int = -1) -> bytes:
        line = self._file.readline(self._left if limit < 0 else min(limit, self._left))
        self._left -= len(line)
        return line

    def read(self, size: int) -> bytes:
        found = self._file.read(min(size, self._left))
        self._left -= len(found)
        return found

    def close(self) -> None:
        self._file.close()


def _launcher_http_handler(
    answer: Callable[[str, str], Answer],
    put: Callable[[str, str, bytes], Answer],
    routes: Collection[HttpRoutes],
    *,
    is_local: bool,
) -> type[BaseHTTPRequestHandler]:
    class HttpHandler(BaseHTTPRequestHandler):
        timeout = _SILENCE_S

        def setup(self) -> None:
            super().setup()
            self.rfile: Any = _HttpRequestBeginning(self.rfile)
            self.wfile: Any = _HttpReply(self.connection)

        def _is_for_another(self) -> bool:
            """Answer with an error if the request is for another host name; return whether it was."""
            if not is_local or _is_this_host(self.headers.get("Host") or ""):
                return False
            self._send(421, "text/plain", b"Host: expected localhost or 127.0.0.1\n")
            return True

        def do_GET(self) -> None:
            if self._is_for_another():
                return
            server, path = self.server, self.path.partition("?")[0]
            chosen = next((one for one in routes if one.serves(path)), None)
            if chosen is not None and isinstance(server, _LimitedHttpServer):
                chosen.get(self, lambda: server.admit(self.request))
                return
            self._send(*answer(self.path, self.headers.get("Authorization") or ""))

        def do_PUT(self) -> None:
            if self._is_for_another():
                return
            length = self.headers.get("Content-Length") or ""
            body = self.rfile.read(int(length)) if length.isdecimal() else b""
            self._send(*put(self.path.partition("?")[0], self.headers.get("Authorization") or "", body))

        def _send(self, code: int, content_type: str, body: bytes) -> None:
            self.send_response(code)
            self.send_header("Content-Type", content_type)
            if code == 401:
                self.send_header("WWW-Authenticate", "Bearer")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Do not log requests, because probes are frequent."""

    return HttpHandler
