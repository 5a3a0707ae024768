"""HTTP server for the page of a run, with checks of its token. A launcher serves it at `/` and `/page/...`."""

import json
import re
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Final, Protocol
from urllib.parse import parse_qs, urlsplit

from ringtrain_job.logs.layout import AttemptFiles
from ringtrain_job.logs.reading import read_log_from
from ringtrain_page.access import PageAccess
from ringtrain_page.document import live_page
from ringtrain_page.log_window import PageLogWindow, WantedPageLines, log_window_after, log_window_before

# Limit of open pages, searches and downloads together: each has a thread and needs up to some MiB.
_MOST_AT_ONCE: Final = 12
_EVERY_S: Final = 1.0
# Limit for each open page: large documents are sent less often.
_BYTES_PER_S: Final = 200_000
_NAMES: Final = re.compile(r"job\.log|(metrics|machine|events)\.jsonl|(run|timeline)\.json|rank-\d{4,9}\.log")
_HEADERS: Final = {
    "Cache-Control": "no-store",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Cross-Origin-Resource-Policy": "same-origin",
}
_REFUSED: Final = (
    b"this page needs the token in its link, which dtj ui JOB, ringtrain ui, or --ui of the command that started "
    b"the run prints\n"
)


class LauncherPageRoutes(Protocol):
    """Interface of the pages behind a page server. All paths of these pages need the token."""

    def serves(self, path: str) -> bool:
        """Return whether `route` answers requests for `path`."""

    def route(self, request: BaseHTTPRequestHandler, path: str, query: dict[str, list[str]]) -> None:
        """Answer one GET request for `path`, whose token has been checked."""

    def close(self, timeout_s: float) -> None:
        """Send the final state to browsers that show the page; wait at most `timeout_s` for that."""


class LauncherPageServer:
    """Read-only HTTP server for `routes`. It checks the token and limits the number of concurrent requests."""

    def __init__(self, access: PageAccess, routes: LauncherPageRoutes) -> None:
        self._access = access
        self._routes = routes
        self._room = threading.BoundedSemaphore(_MOST_AT_ONCE)
        self.serves = routes.serves
        self.close = routes.close

    def get(self, request: BaseHTTPRequestHandler, admitted: Callable[[], None]) -> None:
        """Answer one request. `admitted` is called once the token has been accepted."""
        url = urlsplit(request.path)
        query = parse_qs(url.query)
        token = query.get("token", [""])[0]
        if url.path.endswith("/") and token and self._access.has(token):
            # Redirect without the token, so that it is neither in the history nor in copied addresses.
            begin_response(
                request, 303, "text/plain", {"Location": url.path, "Set-Cookie": self._access.set_cookie(token)}
            )
            return
        headers = request.headers
        if not self._access.admits(headers.get("Authorization") or "", headers.get("Cookie") or ""):
            send_whole_response(request, 401, "text/plain", _REFUSED)
            return
        if not self._room.acquire(blocking=False):
            send_whole_response(request, 503, "text/plain", b"too many pages are open; close one\n")
            return
        try:
            admitted()
            self._routes.route(request, url.path, query)
        finally:
            self._room.release()


class LauncherRunPage:
    """Live page of a run, and downloads of its log files."""

    def __init__(self, document: Callable[[], bytes], files: AttemptFiles, timeline: Path | None = None) -> None:
        """Create the live page of one run.

        `document`: returns the page's data without the log, as one line of JSON. `timeline`: file to which ranks on
        this machine write, until it is copied to `files`.
        """
        self._document = document
        self._files = files
        self._timeline = timeline
        self._closing = threading.Event()
        self._open = 0
        self._changed = threading.Condition()

    def serves(self, path: str) -> bool:
        """Return whether `path` belongs to this page."""
        return path == "/" or path.startswith("/page/")

    def close(self, timeout_s: float) -> None:
        """Send the final state to browsers that show the page; wait at most `timeout_s` for that."""
        self._closing.set()
        with self._changed:
            self._changed.wait_for(lambda: self._open == 0, timeout_s)

    def route(self, request: BaseHTTPRequestHandler, path: str, query: dict[str, list[str]]) -> None:
        """Answer one GET request for `path`: the page, its event stream, log lines, or a file."""
        if path == "/":
            send_whole_response(request, 200, "text/html; charset=utf-8", live_page().encode())
        elif path == "/page/events":
            self._stream(request, _requested_lines(query))
        elif path == "/page/log":
            before = query.get("before", [""])[0]
            end = int(before) if before.isdecimal() else None
            found = log_window_before(self._files.job_log, _requested_lines(query), end)
            send_whole_response(request, 200, "application/json", json.dumps(found.json()).encode())
        else:
            self._download(request, path.removeprefix("/page/files/"))

    def _stream(self, request: BaseHTTPRequestHandler, wanted: WantedPageLines) -> None:
        with self._changed:
            self._open += 1
        try:
            begin_response(request, 200, "text/event-stream; charset=utf-8")
            for name, data in self._events(wanted):
                request.wfile.write(b"event: %s\ndata: %s\n\n" % (name, data))
        finally:
            with self._changed:
                self._open -= 1
                self._changed.notify_all()

    def _events(self, wanted: WantedPageLines) -> Iterator[tuple[bytes, bytes]]:
        """Yield events (name, data) of an open page: the state and newest log lines, then changes, finally the end."""
        window = log_window_before(self._files.job_log, wanted)
        yield b"log", _window_json(window, reset=True)
        next_document = 0.0
        over = False
        while True:
            if over or time.monotonic() >= next_document:
                document = self._document()
                yield b"state", document
                next_document = time.monotonic() + max(_EVERY_S, len(document) / _BYTES_PER_S) - 0.05
            window = log_window_after(self._files.job_log, wanted, window.end)
            if window.lines or window.skipped:
                yield b"log", _window_json(window)
            else:
                yield b"alive", b"{}"  # only a write detects a closed connection
            if over:
                yield b"over", b"{}"
                return
            over = self._closing.wait(_EVERY_S)

    def _download(self, request: BaseHTTPRequestHandler, name: str) -> None:
        path = self._files.directory / name
        if path == self._files.timeline and self._timeline is not None and not path.exists():
            path = self._timeline
        if not _NAMES.fullmatch(name) or not path.is_file():
            send_whole_response(
                request,
                404,
                "text/plain",
                b"the files are job.log, rank-0000.log, {metrics,machine,events}.jsonl, {run,timeline}.json\n",
            )
            return
        left = path.stat().st_size
        disposition = f'attachment; filename="{self._files.directory.parent.name}-{name}"'
        more = {"Content-Disposition": disposition, "Content-Length": str(left)}
        begin_response(request, 200, "text/plain; charset=utf-8", more)
        for chunk in read_log_from(path, 0):
            request.wfile.write(chunk[:left])
            left -= min(left, len(chunk))
            if not left:
                return


def _requested_lines(query: dict[str, list[str]]) -> WantedPageLines:
    """Return the filter of log lines that the URL's query asks for."""
    rank = query.get("rank", [""])[0]
    return WantedPageLines(int(rank) if rank.isdecimal() else None, query.get("text", [""])[0])


def _window_json(window: PageLogWindow, *, reset: bool = False) -> bytes:
    return json.dumps({**window.json(), "reset": reset}).encode()


def begin_response(request: BaseHTTPRequestHandler, code: int, kind: str, more: dict[str, str] | None = None) -> None:
    """Send status, content type `kind`, and headers, `more` included, which forbid caching, framing and referrers."""
    request.send_response(code)
    for name, value in {"Content-Type": kind, **_HEADERS, **(more or {})}.items():
        request.send_header(name, value)
    request.end_headers()


def send_whole_response(request: BaseHTTPRequestHandler, code: int, kind: str, body: bytes) -> None:
    """Send status, headers and `body`, whose content type is `kind`."""
    begin_response(request, code, kind, {"Content-Length": str(len(body))})
    request.wfile.write(body)
