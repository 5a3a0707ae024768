"""`ringtrain ui [RUN]`: runs below a folder as pages in a browser."""

import json
import secrets
import signal
import threading
from collections.abc import Sequence
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Final
from urllib.parse import quote, unquote

import click

from ringtrain.shared.ports import PortTaken
from ringtrain_job.cli.runs import Run, find_run, find_runs, runs_option
from ringtrain_job.launcher.http import HttpServer
from ringtrain_job.launcher.summary import RUNNING
from ringtrain_page.access import PageAccess, kept_page, page_link
from ringtrain_page.comparison import MOST_COMPARED, compare_page_runs, differing_settings
from ringtrain_page.document import page, runs_page
from ringtrain_page.server import LauncherPageServer, answer_page_request, begin_page_response
from ringtrain_page.summary import summarize_page

_HTML: Final = "text/html; charset=utf-8"
_PREFIX: Final = "/runs/"


@click.command()
@click.argument("run", required=False, metavar="[RUN]")
@runs_option
@click.option("--port", type=click.IntRange(0, 65535), default=0, help="Port [default: a free one].")
@click.option("--open", "opens", is_flag=True, help="Open the link in a browser, too.")
def ui(run: str | None, runs: Path, port: int, opens: bool) -> None:
    """Print the link to a page of all runs, or to that of RUN, and serve it until Ctrl-C.

    RUN is a name that `ringtrain list` prints, or a folder. While a run of this machine goes on, its own launcher
    serves its page; the page of any other run is made from its files. The link works on this machine, for any
    program that has it.
    """
    shown = None if run is None else find_run(run, runs)
    secret = secrets.token_hex(32)
    pages = LauncherPageServer(PageAccess([secret], secret), RunsPages(runs, run))
    try:
        server = HttpServer(port, _refuse_ui, _refuse_change, [pages])
    except PortTaken as exc:
        raise click.ClickException(f"--port: {exc}; leave it out for a free one") from exc
    try:
        path = "/" if shown is None else _run_page_path(shown)
        link = page_link(server.port, secret, path)
        click.echo(link)
        if opens:
            click.launch(link)
        asked = threading.Event()
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, lambda *_: asked.set())
        asked.wait()
    finally:
        server.close()
    click.echo("the page is no longer served", err=True)


def _refuse_ui(*_: str) -> tuple[int, str, bytes]:
    return 404, "text/plain", b"/ lists the runs; /runs/NAME/ is one; /compare?run=A&run=B is two side by side\n"


def _refuse_change(*_: object) -> tuple[int, str, bytes]:
    return 405, "text/plain", b"nothing here can be changed\n"


def _run_page_path(run: Run) -> str:
    return f"{_PREFIX}{quote(run.name)}/"


class RunsPages:
    """Serve the list of the runs below `directory`, each one, and several side by side.

    Paths: `/`, `/runs.json`, `/runs/NAME/`, `/compare?run=NAME&run=NAME`. `shown`: name or folder of a run that may
    be elsewhere; it wins over another of its name.
    """

    def __init__(self, directory: Path, shown: str | None = None) -> None:
        self._directory = directory
        self._shown = shown

    def serves(self, path: str) -> bool:
        """Return whether `path` is one of these."""
        return path in ("/", "/runs.json", "/compare") or path.startswith(_PREFIX)

    def close(self, timeout_s: float) -> None:
        """Do nothing: no page holds a connection open."""

    def route(self, request: BaseHTTPRequestHandler, path: str, query: dict[str, list[str]]) -> None:
        """Answer one request."""
        if path == "/":
            _answer_page(request, runs_page(str(self._directory.absolute())))
        elif path == "/runs.json":
            answer_page_request(request, 200, "application/json", self._runs_json())
        elif path == "/compare":
            self._answer_comparison(request, query.get("run", []))
        else:
            self._answer_run(request, unquote(path.removeprefix(_PREFIX).removesuffix("/")))

    def _runs_json(self) -> bytes:
        runs = find_runs(self._directory)
        settings = differing_settings(runs, config_only=True)
        rows = [
            {
                **run.document(),
                "config": {name: values[at] for name, values in settings.items()},
                "link": _run_page_path(run),
            }
            for at, run in enumerate(runs)
        ]
        return json.dumps(rows).encode()

    def _answer_comparison(self, request: BaseHTTPRequestHandler, names: Sequence[str]) -> None:
        known = {run.name: run for run in find_runs(self._directory)}
        unknown = [name for name in names if name not in known]
        if unknown or not 2 <= len(names) <= MOST_COMPARED:
            text = f"no run {unknown[0]}" if unknown else f"{len(names)} runs; expected 2 to {MOST_COMPARED}"
            answer_page_request(request, 404, "text/plain", f"{text}; / lists the runs\n".encode(errors="replace"))
            return
        found = compare_page_runs([known[name] for name in names])
        links = [_run_page_path(known[name]) for name in names]
        _answer_page(request, page({"compare": {**found, "links": links}, "up": "/"}))

    def _answer_run(self, request: BaseHTTPRequestHandler, name: str) -> None:
        shown = () if self._shown is None else (find_run(self._shown, self._directory),)
        found = next((run for run in (*shown, *find_runs(self._directory)) if run.name == name), None)
        if found is None:
            answer_page_request(request, 404, "text/plain", b"there is no run of this name; / lists the runs\n")
        elif found.summary.state == RUNNING and (link := kept_page(found.files).get("link")):
            begin_page_response(request, 303, "text/plain", {"Location": link})
        else:  # a run that goes on on another host: its files as they are now
            _answer_page(request, page({**summarize_page(found.files), "up": "/"}))


def _answer_page(request: BaseHTTPRequestHandler, text: str) -> None:
    answer_page_request(request, 200, _HTML, text.encode(errors="replace"))
