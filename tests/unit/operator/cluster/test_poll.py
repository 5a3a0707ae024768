"""Polls of launchers end when they are told to."""

import asyncio

import pytest
from support.deadlines import patient

from ringtrain_operator.cluster.poll import LauncherPollEndpoint, LauncherPoller, LauncherPollWish, PollTimes
from ringtrain_operator.cluster.queue import JobKey

KEY = JobKey("default", "digits")
NOBODY = LauncherPollEndpoint("http://127.0.0.1:9/status")
DEADLINE_S = patient(20.0)


@pytest.mark.parametrize("turns", range(6))
async def test_it_ends_in_any_turn_after_the_news_that_woke_it(turns: int) -> None:
    """A cancellation that meets the end of a pause is one: the operator that stops waits for its polls."""
    poller = LauncherPoller(lambda key: None, PollTimes(interval_s=1000.0))
    poller.watch(KEY, NOBODY)
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    poller.watch(KEY, NOBODY, LauncherPollWish(2))
    for _ in range(turns):
        await asyncio.sleep(0)
    async with asyncio.timeout(DEADLINE_S):
        await poller.close()
