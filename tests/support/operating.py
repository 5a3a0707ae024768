"""An operator in this process, for tests: started, watched, stopped or cut off."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

from ringtrain_operator.cluster.api import Connection
from ringtrain_operator.cluster.config import OperatorConfig
from ringtrain_operator.cluster.operator import Operator
from ringtrain_operator.cluster.poll import PollTimes

QUICK_POLLS = PollTimes(interval_s=0.2, first_s=0.05)


@asynccontextmanager
async def running_operator(connection: Connection, **config: Any) -> AsyncIterator[Operator]:
    """An operator that watches; what breaks it breaks the test."""
    settings: dict[str, Any] = {"listen": "127.0.0.1:0", "leader_election": False, "grace_s": 5.0, **config}
    operator = Operator(OperatorConfig(**settings), connection, poll_times=QUICK_POLLS)
    running = asyncio.create_task(operator.run())
    watching = asyncio.create_task(operator.watching.wait())
    try:
        await asyncio.wait((running, watching), return_when=asyncio.FIRST_COMPLETED)
        if running.done():
            running.result()
        yield operator
    except BaseException:
        if running.done():  # the operator broke: that is the cause, not what the test missed because of it
            running.result()
        raise
    finally:
        watching.cancel()
        operator.stop()
        if running.done() and not running.cancelled():
            running.result()
        else:
            await running


async def cut_off(operator: Operator, running: "asyncio.Task[None]") -> None:
    """End an operator as a killed process ends: nothing more is sent."""
    operator.api.fence(lambda: False)
    running.cancel()
    with suppress(asyncio.CancelledError, Exception):
        await running
