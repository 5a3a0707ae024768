"""What launchers say about progress: their /status, asked rarely, in bounded number, with a deadline.

A launcher is told beside it what Kubernetes knows of its pods; that of an elastic job also how many workers are
wanted, and which of their pods are gone.
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
from ..observe.model import LauncherReport, PodView
from ..observe.pods import OtherStatusVersion, read_report
from .api.client import ApiClient
from .api.errors import ApiError
from .api.resources import NODES
from .queue import JobKey

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class PollTimes:
    """How often and how patiently. The interval grows with the number of jobs so that polls/s stay bounded.

    4 s: with their jitter, people see a step in the status within 5 s, up to 80 jobs that run at once.
    """

    interval_s: float = 4.0
    deadline_s: float = 2.0
    at_once: int = 8
    most_per_s: float = 20.0

    def pause_s(self, launchers: int, waits_since_s: float | None) -> float:
        """How long not to ask one of so many launchers.

        `waits_since_s`: for how long it has waited for its agents; None: its ranks run. People wait for the change
        to Running: it is seen after a quarter more than the time that it took.
        """
        longest_s = max(self.interval_s, launchers / self.most_per_s)
        if waits_since_s is None:
            return longest_s
        return min(longest_s, max(longest_s / 16, waits_since_s / 4))


@dataclass(frozen=True)
class LauncherPollAnswer:
    """The last report of one launcher, or why there is none. `at`: when, on the monotonic clock.

    `unreadable`: the launcher answers, in another version of the contract. `refused`: why it did not take what it
    was told of its workers.
    """

    report: LauncherReport | None = None
    error: str = ""
    unreadable: bool = False
    refused: str = ""
    at: float = field(default_factory=time.monotonic)

    @property
    def content(self) -> tuple[object, ...]:
        """What makes an answer another one than the last."""
        return (self.report, bool(self.error), self.unreadable, self.refused)

    @property
    def age_s(self) -> float:
        """How long ago that was."""
        return time.monotonic() - self.at


@dataclass(frozen=True)
class LauncherPollEndpoint:
    """Where a launcher answers /status, and the token that it asks for."""

    url: str
    token: str = ""

    @property
    def headers(self) -> dict[str, str]:
        """What shows the token."""
        return {"Authorization": f"Bearer {self.token}"} if self.token else {}

    def url_of(self, path: str) -> str:
        """Where the launcher is told something: `/workers` in an elastic job, `/sites` where a label names them,
        `/pods` in any."""
        return f"{self.url.removesuffix('/status')}{path}"


@dataclass(frozen=True)
class LauncherPollWish:
    """What an elastic job's launcher is to know: how many workers are wanted, and `gone`: by worker, the newest
    incarnation of which no container runs any more."""

    workers: int
    gone: Mapping[int, int] = field(default_factory=dict)

    @property
    def document(self) -> dict[str, object]:
        """As `PUT /workers` says it."""
        return {"workers": self.workers, "gone": {str(index): number for index, number in self.gone.items()}}


# What a launcher is told at one path; and by path all that it is to know.
Document = Mapping[str, object]
Told = Mapping[str, Document]


def _short_status(document: Document) -> str:
    workers = document.get("workers")
    if workers is not None:
        return f"that {workers} workers are wanted"
    return "at which sites its workers are" if "sites" in document else "what became of its pods"


class LauncherPoller:
    """Polls the launchers it was told about and calls `changed(key)` when one says something new.

    `client` is shared by all polls. A launcher that hangs costs one of `at_once` slots for `deadline_s` at most.
    """

    def __init__(self, changed: Callable[[JobKey], None], times: PollTimes | None = None) -> None:
        self._changed = changed
        self._times = times or PollTimes()
        self._slots = asyncio.Semaphore(self._times.at_once)
        self._tasks: dict[JobKey, tuple[LauncherPollEndpoint, asyncio.Task[None]]] = {}
        self._answers: dict[JobKey, LauncherPollAnswer] = {}
        # What each launcher is to know, by the path to which it is put.
        self._news_of: dict[JobKey, Told] = {}
        self._news: dict[JobKey, asyncio.Event] = {}
        # What a launcher was told last, and when its process began: one that came back has to be told again.
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
        """Poll the launcher at `endpoint` from now on; a new one (a new pod) replaces the old one.

        `wish`: what to tell it, at once if it is another than before; None: it is not elastic. `pods`: what to
        tell it of its pods, `sites`: of where they are.
        """
        known = self._tasks.get(key)
        told = {"/workers": wish.document if wish is not None else None, "/pods": pods, "/sites": sites}
        news = {path: document for path, document in told.items() if document}
        if self._news_of.get(key, {}) != news:
            self._news_of[key] = news
            self._news.setdefault(key, asyncio.Event()).set()
        if known is not None and known[0] == endpoint and not known[1].done():
            return
        self._stop(key)
        self._tasks[key] = (endpoint, asyncio.create_task(self._poll(key, endpoint), name=f"poll {key}"))

    def forget(self, key: JobKey) -> None:
        """Stop polling; what was said is dropped."""
        self._news_of.pop(key, None)
        self._news.pop(key, None)
        self._stop(key)

    def _stop(self, key: JobKey) -> None:
        known = self._tasks.pop(key, None)
        self._answers.pop(key, None)
        self._known_documents.pop(key, None)
        if known is not None:
            known[1].cancel()

    def answer(self, key: JobKey) -> LauncherPollAnswer:
        """What the launcher said last."""
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
                answer = replace(answer, refused=await self._tell(key, endpoint, answer.report))
            before = self._answers.get(key)
            self._answers[key] = answer
            if before is None or before.content != answer.content:
                self._changed(key)
            ran, running = running, answer.report is not None and answer.report.phase == "Running"
            if ran and not running:  # it was started anew in its pod, or an elastic job forms its next world
                since = time.monotonic()

    async def _tell(self, key: JobKey, endpoint: LauncherPollEndpoint, report: LauncherReport | None) -> str:
        """Tell the launcher what is new to it. What fails is tried again after a poll.

        Returns why it would not have the number of workers; empty if it took it, or could not be asked.
        """
        if report is None:
            return ""
        refused, known = "", self._known_documents.setdefault(key, {})
        for path, document in self._news_of.get(key, {}).items():
            news = (document, report.start_time)
            if known.get(path) == news:
                continue
            why, has_answered = await self._put(endpoint, path, document)
            if not why or (has_answered and path == "/pods"):  # a launcher of an earlier version has no such path
                known[path] = news
                continue
            refused = why if has_answered else refused
            url = endpoint.url_of(path)
            log.warning("%s was not told %s; it %s", url, _short_status(document), why, extra={"job": str(key)})
        return refused

    async def _put(self, endpoint: LauncherPollEndpoint, path: str, document: Document) -> tuple[str, bool]:
        """Why the launcher did not take `document`, empty if it did, and whether it answered."""
        try:
            asked = self._client().put(
                endpoint.url_of(path), json=document, headers=endpoint.headers, allow_redirects=False
            )
            async with asked as response:
                if response.status < 300:
                    return "", True
                return f"answered {response.status}: {(await response.text())[:200].strip()}", True
        except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as exc:
            return f"did not answer: {str(exc) or type(exc).__name__}", False

    async def _pause(self, key: JobKey, seconds: float) -> None:
        """Return after `seconds`, or when there is news to tell."""
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
            return LauncherPollAnswer(error=f"{url} answered something that is no status: {exc!r}")


async def read_sites(
    api: ApiClient, label: str, workers: int, pods: Sequence[PodView], known: dict[str, str]
) -> Document | None:
    """What the launcher is told: by value of `label`, the workers whose nodes have it, and by node its value; "":
    nodes without one. None until `workers` have nodes, and where nodes may not be read. `known`: by node, what was
    read before."""
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
        log.warning("sites of nodes could not be read: %s", exc)
        return None
    sites: dict[str, list[int]] = {}
    for index, node in sorted(nodes.items()):
        sites.setdefault(known.get(node, ""), []).append(index)
    return {"sites": sites, "nodes": {node: known.get(node, "") for node in sorted(set(nodes.values()))}}
