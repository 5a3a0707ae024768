"""An operator in this process, for tests: started, watched, stopped or cut off."""

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

# By operator the task that it runs in.
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
    """An operator that watches (unless not to `wait`), and the task it runs in; raises what kept it from that."""
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
    """End an operator gracefully; raises what broke it."""
    operator.stop()
    await running


async def end_operator(operator: Operator) -> None:
    """Stop an operator that `running_operator` started, and return when it has ended."""
    operator.stop()
    await asyncio.wait((_TASKS[operator],))


@asynccontextmanager
async def running_operator(connection: ApiConnection, clock: Clock = utc_now, **config: Any) -> AsyncIterator[Operator]:
    """An operator that watches; what breaks it breaks the test."""
    operator, running = await start_operator(connection, clock, **config)
    try:
        yield operator
    except BaseException:
        if running.done():  # the operator broke: that is the cause, not what the test missed because of it
            running.result()
        raise
    finally:
        await stop_operator(operator, running)


async def cut_off(operator: Operator, running: "asyncio.Task[None]") -> None:
    """End an operator as a killed process ends: nothing more is sent."""
    operator.api.fence(lambda: False)
    running.cancel()
    await asyncio.wait((running,))
