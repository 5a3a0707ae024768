"""In which order jobs are looked at."""

from ringtrain_operator.cluster.queue import FAIR_SHARE, JobKey, ReconcileQueue


def key(name: str) -> JobKey:
    return JobKey("default", name)


async def drain(queue: ReconcileQueue) -> list[str]:
    """Names of all waiting keys, as one worker takes them."""
    names = []
    while len(queue):
        taken = await queue.take()
        names.append(taken.name)
        queue.done(taken)
    return names


async def test_urgent_keys_go_first() -> None:
    """Also one that waited among the others already; each comes once."""
    queue = ReconcileQueue()
    for name in ("a", "b", "c"):
        queue.add(key(name))
    queue.add(key("u"), urgent=True)
    queue.add(key("c"), urgent=True)
    queue.add(key("c"), urgent=True)
    assert await drain(queue) == ["u", "c", "a", "b"]


async def test_others_have_a_share() -> None:
    """A key that is not urgent is taken in time, however many are."""
    queue = ReconcileQueue()
    queue.add(key("patient"))
    for number in range(50):
        queue.add(key(f"u{number}"), urgent=True)
    assert (await drain(queue)).index("patient") == FAIR_SHARE - 1


async def test_a_key_that_is_worked_on_comes_again_once() -> None:
    """And before the others if that was urgent; afterwards it is like any other."""
    queue = ReconcileQueue()
    queue.add(key("busy"))
    taken = await queue.take()
    queue.add(key("other"))
    queue.add(taken)
    queue.add(taken, urgent=True)
    queue.done(taken)
    assert await drain(queue) == ["busy", "other"]
    queue.add(key("other"))
    queue.add(key("busy"))
    assert await drain(queue) == ["other", "busy"]
