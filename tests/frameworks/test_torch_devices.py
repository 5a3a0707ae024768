"""ringtrain.torch does the same where reductions go through torch.distributed (gloo: the tests have no GPU)."""

import signal
import threading

import pytest
from frameworks.harness import Checks
from support.ranks import started_ranks, tell

CHECKS = Checks("torch", ("torch_devices", "torch_reductions", "torch_errors", "torch_world"))


@pytest.mark.sampled(1, of="size")
@pytest.mark.parametrize("check", CHECKS.names())
@pytest.mark.parametrize("size", [2, 3], ids=lambda size: f"ranks-{size}")
def test_torch_over_torch_distributed(check, size):
    """The check holds on every rank."""
    assert not CHECKS.failure(check, size)


def reduce_until_lost() -> str:
    import torch

    import ringtrain.torch as hvd
    from ringtrain.errors import PeerLost

    hvd.init()
    hvd.allreduce(torch.ones(1))
    tell("reduced")
    try:
        while True:
            hvd.allreduce(torch.ones(1 << 20))
    except PeerLost as error:
        return str(error)


def test_a_killed_rank_is_named_by_the_others():
    """Whether the library waits for it then or not."""
    env = {"RINGTRAIN_TRANSPORT": "torch"}
    with started_ranks(reduce_until_lost, 3, env=env) as ranks:
        for rank in range(3):
            assert ranks.message(rank) == "reduced"
        ranks.signal(1, signal.SIGKILL)
        lost = ranks.outcomes(ranks=[0, 2])
    assert [one.error for one in lost] == [None, None]
    assert all("rank 1" in one.value for one in lost)


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
