"""Operators in this process, for tests: started, observed, stopped or interrupted."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any
from weakref import WeakKeyDictionary

from ringtrain_operator.cluster.api.connection import ApiConnection
from ringtrain_operator.cluster.config import OperatorConfig
from ringtrain_operator.cluster.health import ReachTimes
from ringtrain_operator.cluster.lease import LeaseTimes
from ringtrain_operator.cluster.operator import Operator
from ringtrain_operator.cluster.poll import PollTimes
from ringtrain_operator.cluster.reconcile import Clock, utc_now

# Task of each operator.
_TASKS: "WeakKeyDictionary[Operator, asyncio.Task[None]]" = WeakKeyDictionary()
QUICK_POLLS = PollTimes(interval_s=0.2)


async def start_operator(
    connection: ApiConnection,
    clock: Clock = utc_now,
    *,
    lease_times: LeaseTimes | None = None,
    reach_times: ReachTimes | None = None,
    wait: bool = True,
    **config: Any,
) -> "tuple[Operator, asyncio.Task[None]]":
    """Start an operator and wait until it watches, unless `wait` is False; return it and its task. Raises its error."""
    settings: dict[str, Any] = {"listen": "127.0.0.1:0", "leader_election": False, "grace_s": 5.0, **config}
    operator = Operator(
        OperatorConfig(**settings),
        connection,
        poll_times=QUICK_POLLS,
        lease_times=lease_times,
        reach_times=reach_times,
        clock=clock,
    )
    running = _TASKS[operator] = asyncio.create_task(operator.run())
    if wait:
        watching = asyncio.create_task(operator.watching.wait())
        await asyncio.wait((running, watching), return_when=asyncio.FIRST_COMPLETED)
        watching.cancel()
    if running.done():
        running.result()
    return operator, running


async def stop_operator(operator: Operator, running: "asyncio.Task[None]") -> None:
    """End an operator gracefully. Raises its error."""
    operator.stop()
    await running


async def end_operator(operator: Operator) -> None:
    """Stop an operator that `running_operator` started, and wait for its end."""
    operator.stop()
    await asyncio.wait((_TASKS[operator],))


@asynccontextmanager
async def running_operator(connection: ApiConnection, clock: Clock = utc_now, **config: Any) -> AsyncIterator[Operator]:
    """Run an operator within the block. Its error fails the test."""
    operator, running = await start_operator(connection, clock, **config)
    try:
        yield operator
    except BaseException:
        if running.done():  # the operator's error is the cause of the test's failure
            running.result()
        raise
    finally:
        await stop_operator(operator, running)


async def cut_off(operator: Operator, running: "asyncio.Task[None]") -> None:
    """End an operator like a killed process, which sends no further request."""
    operator.api.fence(lambda: False)
    running.cancel()
    await asyncio.wait((running,))
