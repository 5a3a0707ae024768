"""`ringtrain ui [RUN]`: runs below a folder as pages in a browser."""

import json
import secrets
import signal
import threading
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Final
from urllib.parse import quote, unquote

import click

from ringtrain.shared.ports import PortTaken
from ringtrain_job.launcher.http import HttpServer
from ringtrain_page.access import PageAccess, kept_page, page_token
from ringtrain_page.document import page, runs_page
from ringtrain_page.runs import RUNNING, PageRun, find_run, find_runs
from ringtrain_page.server import LauncherPageServer, answer_page_request, begin_page_response
from ringtrain_page.summary import summarize_page

_HTML: Final = "text/html; charset=utf-8"
_PREFIX: Final = "/runs/"


@click.command()
@click.argument("run", required=False)
@click.option(
    "--dir",
    "directory",
    default=Path("runs"),
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    show_default=True,
    help="Where runs are.",
)
@click.option("--port", type=click.IntRange(0, 65535), default=0, help="Port [default: a free one].")
@click.option("--open", "opens", is_flag=True, help="Open the link in a browser, too.")
def ui(run: str | None, directory: Path, port: int, opens: bool) -> None:
    """Print the link to a page of all runs below --dir, or to that of RUN, and serve it until Ctrl-C.

    RUN is a name that `ringtrain list` prints, or a folder. While a run of this machine goes on, its own launcher
    shows it, live; of any other run the page shows what its files hold. The link works on this machine, for who
    has it.
    """
    shown = None if run is None else find_run(run, directory)
    secret = secrets.token_hex(32)
    pages = LauncherPageServer(PageAccess([secret], secret), RunsPages(directory, run))
    try:
        server = HttpServer(port, _refuse_ui, _refuse_change, [pages])
    except PortTaken as exc:
        raise click.ClickException(f"--port: {exc}; leave it out for a free one") from exc
    try:
        path = "/" if shown is None else _run_page_path(shown)
        link = f"http://127.0.0.1:{server.port}{path}?token={page_token(secret)}"
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
    return 404, "text/plain", b"/ lists the runs; /runs/NAME/ is one\n"


def _refuse_change(*_: object) -> tuple[int, str, bytes]:
    return 405, "text/plain", b"nothing here can be changed\n"


def _run_page_path(run: PageRun) -> str:
    return f"{_PREFIX}{quote(run.name)}/"


class RunsPages:
    """The list of the runs below `directory`, and each one: `/`, `/runs.json`, `/runs/NAME/`.

    `shown`: name or folder of a run that may be elsewhere; it wins over another of its name.
    """

    def __init__(self, directory: Path, shown: str | None = None) -> None:
        self._directory = directory
        self._shown = shown

    def serves(self, path: str) -> bool:
        """Whether `path` is one of these."""
        return path in ("/", "/runs.json") or path.startswith(_PREFIX)

    def close(self, timeout_s: float) -> None:
        """No page holds a connection open."""

    def route(self, request: BaseHTTPRequestHandler, path: str, query: dict[str, list[str]]) -> None:
        """Answer one request."""
        if path == "/":
            answer_page_request(
                request, 200, _HTML, runs_page(str(self._directory.absolute())).encode(errors="replace")
            )
            return
        runs = find_runs(self._directory)
        if path == "/runs.json":
            told = json.dumps([{**run.document(), "link": _run_page_path(run)} for run in runs])
            answer_page_request(request, 200, "application/json", told.encode())
            return
        name = unquote(path.removeprefix(_PREFIX).removesuffix("/"))
        shown = () if self._shown is None else (find_run(self._shown, self._directory),)
        found = next((run for run in (*shown, *runs) if run.name == name), None)
        if found is None:
            answer_page_request(request, 404, "text/plain", b"there is no run of this name; / lists the runs\n")
        elif found.state == RUNNING and (link := kept_page(found.files).get("link")):
            begin_page_response(request, 303, "text/plain", {"Location": link})
        else:
            kept = summarize_page(found.files)
            if found.state == RUNNING:  # on another host: what its files hold now
                kept["outcome"] = {"outcome": RUNNING}
            answer_page_request(request, 200, _HTML, page({**kept, "up": "/"}).encode(errors="replace"))
