"""The command `ringtrain ui [RUN]`, which serves pages of the runs in a folder to a browser."""

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

from ringtrain.errors import counted
from ringtrain.shared.ports import PortTaken
from ringtrain_job.cli.runs import Run, find_run, find_runs, no_runs_text, runs_option
from ringtrain_job.launcher.http import HttpServer
from ringtrain_job.launcher.summary import RUNNING
from ringtrain_page.access import PageAccess, page_link, read_page_link
from ringtrain_page.comparison import MOST_COMPARED, comparison_document, differing_settings
from ringtrain_page.document import page, runs_page
from ringtrain_page.server import LauncherPageServer, begin_response, send_whole_response
from ringtrain_page.summary import summarize_page

_HTML: Final = "text/html; charset=utf-8"
_PREFIX: Final = "/runs/"


@click.command()
@click.argument("run", required=False, metavar="[RUN]")
@runs_option
@click.option("--port", type=click.IntRange(0, 65535), default=0, help="Port of the page [default: a free port].")
@click.option("--open", "opens", is_flag=True, help="Also open the link in a browser.")
def ui(run: str | None, runs: Path, port: int, opens: bool) -> None:
    """Print a link to the page of all runs, or of RUN, and serve it until Ctrl-C.

    RUN is a name that `ringtrain list` prints, or a folder. The page of a run that is running on this machine is
    served by its launcher; the page of any other run is made from its files. The link works on this machine, for any
    program that has it.
    """
    shown = None if run is None else find_run(run, runs)
    secret = secrets.token_hex(32)
    pages = LauncherPageServer(PageAccess([secret], secret), RunsPages(runs, run))
    try:
        server = HttpServer(port, _not_found, _not_allowed, [pages])
    except PortTaken as exc:
        raise click.ClickException(f"--port: {exc}; omit --port to use a free port") from exc
    try:
        path = "/" if shown is None else _run_path(shown)
        link = page_link(server.port, secret, path)
        asked = threading.Event()
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, lambda *_: asked.set())
        click.echo(link)
        if shown is None and not find_runs(runs):
            click.echo(no_runs_text(runs), err=True)
        if opens:
            click.launch(link)
        asked.wait()
    finally:
        server.close()
    click.echo("stopped serving the page", err=True)


def _not_found(*_: str) -> tuple[int, str, bytes]:
    return 404, "text/plain", b"/ lists the runs; /runs/NAME/ is one; /compare?run=A&run=B is two side by side\n"


def _not_allowed(*_: object) -> tuple[int, str, bytes]:
    return 405, "text/plain", b"this server is read-only\n"


def _run_path(run: Run) -> str:
    return f"{_PREFIX}{quote(run.name)}/"


class RunsPages:
    """Pages of a folder of runs: the list of all runs, a page for each run, and comparisons.

    Paths: `/`, `/runs.json`, `/runs/NAME/`, `/compare?run=NAME&run=NAME`. `shown`: name or folder of a run that may be
    elsewhere; it has priority over another run of the same name.
    """

    def __init__(self, directory: Path, shown: str | None = None) -> None:
        self._directory = directory
        self._shown = shown

    def serves(self, path: str) -> bool:
        """Return whether `path` belongs to these pages."""
        return path in ("/", "/runs.json", "/compare") or path.startswith(_PREFIX)

    def close(self, timeout_s: float) -> None:
        """Do nothing, because these pages hold no connection open."""

    def route(self, request: BaseHTTPRequestHandler, path: str, query: dict[str, list[str]]) -> None:
        """Answer one GET request for `path`, whose token has been checked."""
        if path == "/":
            _answer_page(request, runs_page(str(self._directory.absolute())))
        elif path == "/runs.json":
            send_whole_response(request, 200, "application/json", self._runs_json())
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
                "link": _run_path(run),
            }
            for at, run in enumerate(runs)
        ]
        return json.dumps(rows).encode()

    def _answer_comparison(self, request: BaseHTTPRequestHandler, names: Sequence[str]) -> None:
        known = {run.name: run for run in find_runs(self._directory)}
        unknown = [name for name in names if name not in known]
        if unknown or not 2 <= len(names) <= MOST_COMPARED:
            text = f"no run {unknown[0]}" if unknown else f"{counted(len(names), 'run')}; expected 2 to {MOST_COMPARED}"
            send_whole_response(request, 404, "text/plain", f"{text}; / lists the runs\n".encode(errors="replace"))
            return
        found = comparison_document([known[name] for name in names])
        links = [_run_path(known[name]) for name in names]
        _answer_page(request, page({"compare": {**found, "links": links}, "up": "/"}))

    def _answer_run(self, request: BaseHTTPRequestHandler, name: str) -> None:
        shown = () if self._shown is None else (find_run(self._shown, self._directory),)
        found = next((run for run in (*shown, *find_runs(self._directory)) if run.name == name), None)
        if found is None:
            send_whole_response(request, 404, "text/plain", b"no run has this name; / lists the runs\n")
        elif found.summary.state == RUNNING and (link := read_page_link(found.files)):
            begin_response(request, 303, "text/plain", {"Location": link})
        else:  # for example a run on another host: use its files
            _answer_page(request, page({**summarize_page(found.files), "up": "/"}))


def _answer_page(request: BaseHTTPRequestHandler, text: str) -> None:
    send_whole_response(request, 200, _HTML, text.encode(errors="replace"))
