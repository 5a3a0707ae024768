"""Poller of launchers: reads their /status at a limited rate, and sends them documents (PUT /workers, /pods, /sites).

Every launcher gets the state of its pods. The launcher of an elastic job also gets the wanted number of workers, and
the pods that have ended.
"""

import asyncio
import logging
import random
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import datetime

import aiohttp

from ..contract import ROLE_WORKER
from ..errors import counted
from ..observe.model import LauncherReport, PodView
from ..observe.pods import OtherStatusVersion, read_report
from .api.client import ApiClient
from .api.errors import ApiError
from .api.resources import NODES
from .queue import JobKey

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class PollTimes:
    """Rate and timeouts of polls. The interval grows with the number of jobs, so that polls per second are bounded.

    With 4 s and jitter, the status shows a step within 5 s, for up to 80 running jobs.
    """

    interval_s: float = 4.0
    deadline_s: float = 2.0
    at_once: int = 8
    most_per_s: float = 20.0

    def pause_s(self, launchers: int, waits_since_s: float | None) -> float:
        """Return the seconds between two polls of one launcher, for `launchers` polled launchers.

        `waits_since_s`: seconds for which the launcher has waited for its agents, or None if its ranks run. Because
        users then wait for Running, the pause is a quarter of `waits_since_s`, within limits.
        """
        longest_s = max(self.interval_s, launchers / self.most_per_s)
        if waits_since_s is None:
            return longest_s
        return min(longest_s, max(longest_s / 16, waits_since_s / 4))


@dataclass(frozen=True)
class LauncherPollAnswer:
    """Last answer of a launcher: its report, or an error. `at`: time of the answer on the monotonic clock.

    `unreadable`: the launcher answers in another version of the contract. `refused`: reason for which it refused the
    wanted number of workers.
    """

    report: LauncherReport | None = None
    error: str = ""
    unreadable: bool = False
    refused: str = ""
    at: float = field(default_factory=time.monotonic)

    @property
    def content(self) -> tuple[object, ...]:
        """Values of the answer that trigger a reconcile when they change."""
        return (self.report, bool(self.error), self.unreadable, self.refused)

    @property
    def age_s(self) -> float:
        """Age of the answer in seconds."""
        return time.monotonic() - self.at


@dataclass(frozen=True)
class LauncherPollEndpoint:
    """URL of a launcher's /status, and the token that it requires."""

    url: str
    token: str = ""

    @property
    def headers(self) -> dict[str, str]:
        """Headers with the token."""
        return {"Authorization": f"Bearer {self.token}"} if self.token else {}

    def url_of(self, path: str) -> str:
        """Return the URL for a PUT to `path`: `/workers` for an elastic job, `/sites` with
        networking.sites, `/pods`.
        """
        return f"{self.url.removesuffix('/status')}{path}"


@dataclass(frozen=True)
class LauncherPollWish:
    """Content of PUT /workers to an elastic job's launcher. `gone`: incarnation of the last ended pod, by worker."""

    workers: int
    gone: Mapping[int, int] = field(default_factory=dict)

    @property
    def document(self) -> dict[str, object]:
        """Body of `PUT /workers`."""
        return {"workers": self.workers, "gone": {str(index): number for index, number in self.gone.items()}}


# Body of a PUT to a launcher; and all bodies by path.
Document = Mapping[str, object]
Documents = Mapping[str, Document]


def _document_text(document: Document) -> str:
    workers = document.get("workers")
    if isinstance(workers, int):
        return f"that the job wants {counted(workers, 'worker')}"
    return "at which sites its workers are" if "sites" in document else "what became of its pods"


class LauncherPoller:
    """Poller of the launchers passed to `watch`. It calls `changed(key)` when an answer differs from the previous one.

    `client` is shared by all polls. A launcher that hangs uses one of `at_once` slots for at most `deadline_s`.
    """

    def __init__(self, changed: Callable[[JobKey], None], times: PollTimes | None = None) -> None:
        self._changed = changed
        self._times = times or PollTimes()
        self._slots = asyncio.Semaphore(self._times.at_once)
        self._tasks: dict[JobKey, tuple[LauncherPollEndpoint, asyncio.Task[None]]] = {}
        self._answers: dict[JobKey, LauncherPollAnswer] = {}
        # Documents for each launcher, by path.
        self._documents: dict[JobKey, Documents] = {}
        self._news: dict[JobKey, asyncio.Event] = {}
        # Documents already sent, with the start time of the launcher's process: a restarted one needs them again.
        self._known_documents: dict[JobKey, dict[str, tuple[Document, datetime | None]]] = {}
        self._session: aiohttp.ClientSession | None = None

    def watch(
        self,
        key: JobKey,
        endpoint: LauncherPollEndpoint,
        wish: LauncherPollWish | None = None,
        pods: Document | None = None,
        sites: Document | None = None,
    ) -> None:
        """Poll the launcher at `endpoint` from now on; a new endpoint (a new pod) replaces the old one.

        `wish`: wanted state of an elastic job, sent at once if it changes; None if the job is not elastic. `pods`:
        state of the job's pods. `sites`: site of each worker.
        """
        known = self._tasks.get(key)
        documents = {"/workers": wish.document if wish is not None else None, "/pods": pods, "/sites": sites}
        news = {path: document for path, document in documents.items() if document}
        if self._documents.get(key, {}) != news:
            self._documents[key] = news
            self._news.setdefault(key, asyncio.Event()).set()
        if known is not None and known[0] == endpoint and not known[1].done():
            return
        self._stop(key)
        self._tasks[key] = (endpoint, asyncio.create_task(self._poll(key, endpoint), name=f"poll {key}"))

    def forget(self, key: JobKey) -> None:
        """Stop polling the job's launcher and drop its last answer."""
        self._documents.pop(key, None)
        self._news.pop(key, None)
        self._stop(key)

    def _stop(self, key: JobKey) -> None:
        known = self._tasks.pop(key, None)
        self._answers.pop(key, None)
        self._known_documents.pop(key, None)
        if known is not None:
            known[1].cancel()

    def answer(self, key: JobKey) -> LauncherPollAnswer:
        """Return the last answer of the job's launcher."""
        return self._answers.get(key, LauncherPollAnswer())

    async def close(self) -> None:
        """Stop all polls."""
        tasks = [task for _, task in self._tasks.values()]
        for key in list(self._tasks):
            self.forget(key)
        await asyncio.gather(*tasks, return_exceptions=True)
        if self._session is not None:
            await self._session.close()

    async def _poll(self, key: JobKey, endpoint: LauncherPollEndpoint) -> None:
        since, running = time.monotonic(), False
        while True:
            waits_since_s = None if running else time.monotonic() - since
            await self._pause(key, self._times.pause_s(len(self._tasks), waits_since_s) * random.uniform(0.8, 1.2))
            async with self._slots:
                answer = await self._ask(endpoint)
                answer = replace(answer, refused=await self._push(key, endpoint, answer.report))
            before = self._answers.get(key)
            self._answers[key] = answer
            if before is None or before.content != answer.content:
                self._changed(key)
            ran, running = running, answer.report is not None and answer.report.phase == "Running"
            if ran and not running:  # it restarted in its pod, or an elastic job forms its next world
                since = time.monotonic()

    async def _push(self, key: JobKey, endpoint: LauncherPollEndpoint, report: LauncherReport | None) -> str:
        """Send new documents to the launcher. A document that was not accepted is sent again after the next poll.

        Returns the reason for which the launcher refused /workers or /sites; empty if it accepted them or could not be
        reached.
        """
        if report is None:
            return ""
        refused, known = "", self._known_documents.setdefault(key, {})
        for path, document in self._documents.get(key, {}).items():
            news = (document, report.start_time)
            if known.get(path) == news:
                continue
            why, has_answered = await self._put(endpoint, path, document)
            if not why or (has_answered and path == "/pods"):  # earlier versions of the launcher do not have /pods
                known[path] = news
                continue
            refused = why if has_answered else refused
            url = endpoint.url_of(path)
            log.warning(
                "%s did not receive %s: the launcher %s", url, _document_text(document), why, extra={"job": str(key)}
            )
        return refused

    async def _put(self, endpoint: LauncherPollEndpoint, path: str, document: Document) -> tuple[str, bool]:
        """PUT `document` to a launcher. Returns the reason of a failure (or empty), and whether it answered."""
        try:
            request = self._client().put(
                endpoint.url_of(path), json=document, headers=endpoint.headers, allow_redirects=False
            )
            async with request as response:
                if response.status < 300:
                    return "", True
                return f"answered {response.status}: {(await response.text())[:200].strip()}", True
        except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as exc:
            return f"did not answer: {str(exc) or type(exc).__name__}", False

    async def _pause(self, key: JobKey, seconds: float) -> None:
        """Wait for `seconds`, or until there is a new document for the job's launcher."""
        news = self._news.setdefault(key, asyncio.Event())
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await news.wait()
        news.clear()

    def _client(self) -> aiohttp.ClientSession:
        if self._session is None:
            self._session = aiohttp.ClientSession(
                timeout=aiohttp.ClientTimeout(total=self._times.deadline_s),
                connector=aiohttp.TCPConnector(limit=self._times.at_once, force_close=True),
                trust_env=False,
            )
        return self._session

    async def _ask(self, endpoint: LauncherPollEndpoint) -> LauncherPollAnswer:
        url, headers = endpoint.url, endpoint.headers
        try:
            async with self._client().get(f"{url}?brief", headers=headers, allow_redirects=False) as response:
                if response.status != 200:
                    return LauncherPollAnswer(error=f"{url} answered {response.status}")
                return LauncherPollAnswer(report=read_report(await response.json(content_type=None)))
        except (aiohttp.ClientError, TimeoutError, OSError) as exc:
            return LauncherPollAnswer(error=f"{url} did not answer: {str(exc) or type(exc).__name__}")
        except OtherStatusVersion as exc:
            return LauncherPollAnswer(error=str(exc), unreadable=True)
        except (KeyError, TypeError, ValueError, RecursionError) as exc:
            return LauncherPollAnswer(error=f"{url} answered, but not with a status: {exc!r}")


async def read_sites(
    api: ApiClient, label: str, workers: int, pods: Sequence[PodView], known: dict[str, str]
) -> Document | None:
    """Return the body of `PUT /sites`: workers by site, and the site by node.

    The site of a node is the value of its label `label`, or "" if the node does not have this label.

    Returns None until `workers` workers have nodes, and if nodes may not be read. `known`: earlier results, by node.
    """
    nodes = {
        pod.id.index: pod.place.node
        for pod in pods
        if pod.id.role == ROLE_WORKER and pod.place.node and not pod.finished
    }
    if not nodes or len(nodes) < workers:
        return None
    try:
        for name in set(nodes.values()) - known.keys():
            labels = (await api.get(NODES, None, name))["metadata"].get("labels") or {}
            if label in labels:
                known[name] = labels[label]
    except ApiError as exc:
        log.warning("node labels for networking.sites could not be read: %s", exc)
        return None
    sites: dict[str, list[int]] = {}
    for index, node in sorted(nodes.items()):
        sites.setdefault(known.get(node, ""), []).append(index)
    return {"sites": sites, "nodes": {node: known.get(node, "") for node in sorted(set(nodes.values()))}}
