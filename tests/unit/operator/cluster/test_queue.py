"""The queue of keys: each at most once, none with two workers, failures wait longer and longer."""

import asyncio

import pytest

from ringtrain_operator.cluster.queue import FIRST_BACKOFF_S, LONGEST_BACKOFF_S, JobKey, ReconcileQueue

A, B = JobKey("default", "a"), JobKey("default", "b")


def even_queue() -> ReconcileQueue:
    """Without jitter."""
    return ReconcileQueue(jitter=lambda: 1.0)


async def test_a_key_waits_once() -> None:
    """Added thrice it is taken once, in the order of the first."""
    queue = even_queue()
    for key in (A, B, A, A):
        queue.add(key)
    assert len(queue) == 2
    assert [await queue.take(), await queue.take()] == [A, B]
    assert len(queue) == 0


async def test_a_key_has_one_worker() -> None:
    """A key that is added while a worker processes it is queued once, after that worker is done."""
    queue = even_queue()
    queue.add(A)
    await queue.take()
    queue.add(A)
    queue.add(A)
    assert len(queue) == 0
    queue.done(A)
    assert await queue.take() == A
    queue.done(A)
    assert len(queue) == 0


async def test_each_failure_doubles_the_wait_up_to_a_bound() -> None:
    """Until it succeeds: then the wait begins anew."""
    queue = even_queue()
    waits = [queue.retry(A) for _ in range(13)]
    assert waits[:4] == [FIRST_BACKOFF_S * 2**n for n in range(4)]
    assert waits[-1] == LONGEST_BACKOFF_S
    assert queue.retry(B) == FIRST_BACKOFF_S
    queue.succeeded(A)
    assert queue.retry(A) == FIRST_BACKOFF_S


async def test_waits_are_spread() -> None:
    """Jobs that failed together do not come back together."""
    queue = ReconcileQueue()
    waits = {queue.retry(JobKey("default", str(n))) for n in range(20)}
    assert len(waits) > 10
    assert all(0.75 * FIRST_BACKOFF_S <= wait <= 1.25 * FIRST_BACKOFF_S for wait in waits)


@pytest.mark.parametrize("later_s", [0.02, 3600.0], ids=["in-time", "brought-forward"])
async def test_a_key_comes_when_it_is_due(later_s: float) -> None:
    """Of two times the earlier counts, and an event counts at once."""
    queue = even_queue()
    queue.add_after(A, later_s)
    queue.add_after(A, 7200.0)
    if later_s > 1:
        queue.add(A)
    assert await queue.take() == A


async def test_a_closed_queue_takes_nothing_in() -> None:
    """`idle` returns when the looks in progress are over."""
    queue = even_queue()
    queue.add(A)
    await queue.take()
    queue.add(B)
    queue.close()
    queue.add(B)
    assert len(queue) == 0
    idle = asyncio.ensure_future(queue.idle())
    queue.done(A)
    await idle
