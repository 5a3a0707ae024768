"""ringtrain.torch does the same where reductions go through torch.distributed (gloo: the tests have no GPU)."""

import os
import signal
import threading
import time

import pytest
from frameworks.harness import Checks
from support.ranks import started_ranks

CHECKS = Checks("torch", ("torch_devices", "torch_reductions", "torch_exchanges", "torch_errors", "torch_world"))


@pytest.mark.sampled(1, of="size")
@pytest.mark.parametrize("check", CHECKS.names())
@pytest.mark.parametrize("size", [2, 3], ids=lambda size: f"ranks-{size}")
def test_torch_over_torch_distributed(check, size):
    """The check holds on every rank."""
    assert not CHECKS.failure(check, size)


def lose_one_in_mid_reduction(victim: int, number: int) -> tuple[str, str, float, bool]:
    """What the others hear, what they were in then, after how many seconds, and whether the group has ended."""
    import torch

    import ringtrain.torch as hvd
    from ringtrain.errors import PeerLost
    from ringtrain.process_groups.context import current
    from ringtrain.torch.device_groups import DeviceGroups

    hvd.init()
    hvd.allreduce(torch.ones(1))
    offers, groups = current()._member.offers, current().attached(DeviceGroups, DeviceGroups)

    def end_in_mid_reduction() -> None:
        while "is in device_allreduce" not in offers.activity():
            pass
        os.kill(os.getpid(), number)

    if hvd.rank() == victim:
        threading.Thread(target=end_in_mid_reduction, daemon=True).start()
    began = time.monotonic()
    try:
        hvd.allreduce(torch.ones(LONG))
    except PeerLost as error:
        return str(error), offers.activity(), time.monotonic() - began, not groups.in_use()
    raise AssertionError("nobody was lost")


LONG = 16 << 20  # elements: many times as long as a thread takes to look
TIMEOUT_S = 20


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP], ids=["killed", "stopped"])
def test_a_rank_lost_in_mid_reduction_is_named_within_the_timeout(number):
    """The library would wait for it for ever: its group is aborted."""
    env = {"RINGTRAIN_TRANSPORT": "torch", "RINGTRAIN_TIMEOUT": str(TIMEOUT_S)}
    with started_ranks(lose_one_in_mid_reduction, 3, 1, number, env=env) as ranks:
        lost = ranks.outcomes(ranks=[0, 2])
    assert [one.error for one in lost] == [None, None]
    for message, activity, seconds, ended in (one.value for one in lost):
        assert "rank 1" in message
        assert "is in device_allreduce" in activity
        assert seconds < TIMEOUT_S
        assert ended


def test_a_group_that_the_library_does_not_make_is_given_up():
    """After the time given, on all ranks, with what was waited for; the waiting thread is let go."""
    from ringtrain.torch.device_store import RoundsStore

    class Alone:
        ranks = (0,)

        def all_gather_parts(self, what, part):
            return [part]

    store = RoundsStore()

    def make():
        with pytest.raises(RuntimeError, match=r"within 0\.05 s"):
            store.wait(["never set"])

    waits = threading.Thread(target=make)
    waits.start()
    assert store.exchange(Alone(), waits, [], timeout_s=0.05) == "rank 0: the library has made none within 0.05 s"
    waits.join(10)
    assert not waits.is_alive()
