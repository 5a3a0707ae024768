"""Whether the API server answers this operator: without its answers no replica, leader or not, is ready."""

import asyncio
import logging
import random
import time
from dataclasses import dataclass

from ringtrain_operator.cluster.api import ApiError, Connection, Unauthorized, Unreachable
from ringtrain_operator.cluster.api.client import ApiClient
from ringtrain_operator.cluster.api.transport import RetryPolicy

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class ReachTimes:
    """How often it is asked, how long for an answer, and how long without one until the operator is not ready."""

    every_s: float = 5.0
    deadline_s: float = 5.0
    lost_after_s: float = 15.0


class ApiReach:
    """Asks the API server for its version now and then, on a connection of its own, and keeps when it answered."""

    def __init__(self, connection: Connection, times: ReachTimes | None = None) -> None:
        self._times = times or ReachTimes()
        self._api = ApiClient(
            connection, connections=1, timeout_s=self._times.deadline_s, retry=RetryPolicy(attempts=1)
        )
        self._answered_at: float | None = None
        self._problem = ""

    async def ask_forever(self) -> None:
        """Ask until cancelled."""
        try:
            while True:
                self._note(await self._ask())
                await asyncio.sleep(self._times.every_s * random.uniform(0.8, 1.2))
        finally:
            await self._api.close()

    def why_not(self) -> str:
        """What is wrong; empty while the API server answers."""
        if self._answered_at is None:
            return f"the API server has not answered yet{self._cause()}"
        silent_s = time.monotonic() - self._answered_at
        if silent_s < self._times.lost_after_s:
            return ""
        return f"the API server has not answered for {silent_s:.0f} s{self._cause()}"

    @property
    def failed(self) -> bool:
        """Whether the last question had no answer."""
        return bool(self._problem)

    def _cause(self) -> str:
        return f": {self._problem}" if self._problem else ""

    async def _ask(self) -> str:
        """What was wrong with the answer; empty for one."""
        try:
            await self._api.raw_get("/version")
        except (Unreachable, Unauthorized) as exc:
            return str(exc)
        except ApiError as exc:
            return str(exc) if exc.code >= 500 else ""  # a refusal is an answer
        return ""

    def _note(self, problem: str) -> None:
        if not problem:
            self._answered_at = time.monotonic()
        if problem and not self._problem:
            log.warning("the API server does not answer: %s", problem)
        elif self._problem and not problem:
            log.info("the API server answers again")
        self._problem = problem
