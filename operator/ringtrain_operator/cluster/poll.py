"""What launchers say about progress: their /status, asked rarely, in bounded number, with a deadline."""

import asyncio
import logging
import random
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import aiohttp

from ringtrain_operator.cluster.queue import Key
from ringtrain_operator.observe.model import LauncherReport
from ringtrain_operator.observe.pods import OtherStatusVersion, read_report

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class PollTimes:
    """How often and how patiently. The interval grows with the number of jobs so that polls/s stay bounded.

    4 s: with their jitter, people see a step in the status within 5 s, up to 80 jobs that run at once.
    """

    interval_s: float = 4.0
    first_s: float = 0.5
    deadline_s: float = 2.0
    at_once: int = 8
    most_per_s: float = 20.0


@dataclass(frozen=True)
class Answer:
    """The last report of one launcher, or why there is none. `at`: when, on the monotonic clock.

    `unreadable`: the launcher answers, in another version of the contract.
    """

    report: LauncherReport | None = None
    error: str = ""
    unreadable: bool = False
    at: float = field(default_factory=time.monotonic)

    @property
    def content(self) -> tuple[object, ...]:
        """What makes an answer another one than the last."""
        return (self.report, bool(self.error), self.unreadable)

    @property
    def age_s(self) -> float:
        """How long ago that was."""
        return time.monotonic() - self.at


@dataclass(frozen=True)
class Endpoint:
    """Where a launcher answers /status, and the token that it asks for."""

    url: str
    token: str = ""


class LauncherPoller:
    """Polls the launchers it was told about and calls `changed(key)` when one says something new.

    `client` is shared by all polls. A launcher that hangs costs one of `at_once` slots for `deadline_s` at most.
    """

    def __init__(self, changed: Callable[[Key], None], times: PollTimes | None = None) -> None:
        self._changed = changed
        self._times = times or PollTimes()
        self._slots = asyncio.Semaphore(self._times.at_once)
        self._tasks: dict[Key, tuple[Endpoint, asyncio.Task[None]]] = {}
        self._answers: dict[Key, Answer] = {}
        self._session: aiohttp.ClientSession | None = None

    def watch(self, key: Key, endpoint: Endpoint) -> None:
        """Poll the launcher at `endpoint` from now on; a new one (a new pod) replaces the old one."""
        known = self._tasks.get(key)
        if known is not None and known[0] == endpoint and not known[1].done():
            return
        self.forget(key)
        self._tasks[key] = (endpoint, asyncio.create_task(self._poll(key, endpoint), name=f"poll {key}"))

    def forget(self, key: Key) -> None:
        """Stop polling; what was said is dropped."""
        known = self._tasks.pop(key, None)
        self._answers.pop(key, None)
        if known is not None:
            known[1].cancel()

    def answer(self, key: Key) -> Answer:
        """What the launcher said last."""
        return self._answers.get(key, Answer())

    async def close(self) -> None:
        """Stop all polls."""
        tasks = [task for _, task in self._tasks.values()]
        for key in list(self._tasks):
            self.forget(key)
        await asyncio.gather(*tasks, return_exceptions=True)
        if self._session is not None:
            await self._session.close()

    async def _poll(self, key: Key, endpoint: Endpoint) -> None:
        wait_s = self._times.first_s
        while True:
            await asyncio.sleep(wait_s * random.uniform(0.8, 1.2))
            async with self._slots:
                answer = await self._ask(endpoint)
            before = self._answers.get(key)
            self._answers[key] = answer
            if before is None or before.content != answer.content:
                self._changed(key)
            running = answer.report is not None and answer.report.phase == "Running"
            bound_s = len(self._tasks) / self._times.most_per_s
            # a launcher that waits for its agents is asked more often: people wait for its change to Running
            longest_s = max(self._times.interval_s, bound_s)
            wait_s = longest_s if running else min(longest_s, wait_s * 2)

    async def _ask(self, endpoint: Endpoint) -> Answer:
        url, headers = endpoint.url, {"Authorization": f"Bearer {endpoint.token}"} if endpoint.token else {}
        if self._session is None:
            self._session = aiohttp.ClientSession(
                timeout=aiohttp.ClientTimeout(total=self._times.deadline_s),
                connector=aiohttp.TCPConnector(limit=self._times.at_once, force_close=True),
                trust_env=False,
            )
        try:
            async with self._session.get(url, headers=headers, allow_redirects=False) as response:
                if response.status != 200:
                    return Answer(error=f"{url} answered {response.status}")
                return Answer(report=read_report(await response.json(content_type=None)))
        except (aiohttp.ClientError, TimeoutError, OSError) as exc:
            return Answer(error=f"{url} did not answer: {str(exc) or type(exc).__name__}")
        except OtherStatusVersion as exc:
            return Answer(error=str(exc), unreadable=True)
        except (KeyError, TypeError, ValueError, RecursionError) as exc:
            return Answer(error=f"{url} answered something that is no status: {exc!r}")
