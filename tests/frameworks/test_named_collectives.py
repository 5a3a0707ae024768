"""Named collectives beside what else a world does: process sets that come and go, optimizers, shutdown.

Ranks are threads, and adapters for numpy arrays stand for the frameworks'.
"""

import re
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from ring.leftovers import leftovers
from ring.worlds import TRANSPORTS, World, world_of
from support.memory_transport import MemoryNetwork, MemoryTransport
from support.world_config import world_config

import ringtrain as rt
from ringtrain._core.negotiation.collective import NamedCollective, NamedReduction
from ringtrain._core.process_groups.process_sets import ProcessSet, open_group
from ringtrain._core.process_groups.rank_context import ProcessGroupContext
from ringtrain.common import basics
from ringtrain.errors import ConfigurationError, NotInitializedError, PeerLost
from ringtrain.optim import SGD, HostOptimizer

OVER = pytest.mark.parametrize("transport", TRANSPORTS)
ONES = np.ones(2, np.float32)


def begin(name: str, process_set: ProcessSet = rt.global_process_set):
    return NamedCollective.allreduce(NamedReduction("Sum", process_set), name).begin([ONES])


def summed(name: str, process_set: ProcessSet = rt.global_process_set) -> float:
    return float(begin(name, process_set).result(60)[0][0])


@OVER
def test_members_use_a_set_for_the_first_time_when_they_like(transport: str) -> None:
    """A rank's first named collective in a set waits for the others'; what they do elsewhere meanwhile goes on."""
    with world_of(4, transport) as world:

        def use(rank: int) -> tuple[float, float | None]:
            pair = rt.add_process_set([0, 2])
            early = begin("x", pair) if rank == 0 else None
            rt.barrier()
            everyone = summed("everyone")
            late = begin("x", pair) if rank == 2 else None
            mine = early or late
            result = None if mine is None else float(mine.result(60)[0][0])
            assert rt.remove_process_set(pair)
            return everyone, result

        assert world.run(use) == [(4.0, 2.0), (4.0, None), (4.0, 2.0), (4.0, None)]


@OVER
@pytest.mark.parametrize(
    ("dtype", "kind", "said"),
    [
        ("complex256", "allreduce", "complex256 can't be reduced; expected one of float16, "),
        ("uint64", "reducescatter", "uint64 can't be reduced; expected one of float16, "),
        ("object", "broadcast", "text and objects can't be sent as a tensor; use broadcast_object"),
    ],
)
def test_what_cannot_travel_is_named_on_all_ranks(transport: str, dtype: str, kind: str, said: str) -> None:
    """And costs nothing but that collective: the next one is carried out."""
    with world_of(2, transport) as world:

        def submit(rank: int) -> str:
            how = NamedReduction("Sum", rt.global_process_set)
            calls = {
                "allreduce": NamedCollective.allreduce(how, "x"),
                "reducescatter": NamedCollective.reducescatter(how, "x"),
                "broadcast": NamedCollective.broadcast(0, rt.global_process_set, "x"),
            }
            with pytest.raises(ConfigurationError) as caught:
                calls[kind].run([np.ones(2, dtype)])
            assert summed("next") == 2.0
            return str(caught.value)

        for message in world.run(submit):
            assert said in message


@OVER
def test_a_set_with_a_collective_in_flight_is_not_removed(transport: str) -> None:
    """Every rank raises who waits for what; the set goes on, and can be removed afterwards."""
    with world_of(3, transport) as world:

        def remove(rank: int) -> str:
            pair = rt.add_process_set([0, 2])
            early = begin("x", pair) if rank == 0 else None
            with pytest.raises(ConfigurationError) as caught:
                rt.remove_process_set(pair)
            if rank != 1:
                assert (early or begin("x", pair)).result(60)[0].tolist() == [2.0, 2.0]
            assert rt.remove_process_set(pair)
            assert summed("after") == 3.0
            return str(caught.value)

        (message,) = set(world.run(remove))
    assert re.search(r"\[0, 2\] can't be removed .*'allreduce.x' on rank 0; call synchronize\(\)", message)


@OVER
def test_optimizers_and_named_collectives_of_one_set_do_not_wait_for_each_other(transport: str) -> None:
    """Two optimizers of each half of the world step in opposite orders on its ranks; sets are removed after."""
    with world_of(4, transport) as world:

        def train(rank: int) -> list[float]:
            halves = [rt.add_process_set([0, 1]), rt.add_process_set([2, 3])]
            mine = halves[rank // 2]
            weights = {"a": np.zeros(5, np.float32), "b": np.zeros(3000, np.float32)}
            groups = [open_group(mine) for _ in range(2)]
            optimizers = [HostOptimizer(weights, SGD(lr=1.0), group=g, bucket_bytes=4096) for g in groups]
            for step in range(2):
                handle = begin(f"step{step}", mine)
                for optimizer in optimizers if rank % 2 else reversed(optimizers):
                    for name, like in weights.items():
                        optimizer.submit(name, np.full_like(like, rank))
                    optimizer.step(wait=False)
                assert handle.result(60)[0].tolist() == [2.0, 2.0]
            for optimizer in optimizers:
                optimizer.wait_for()
            results = [float(optimizer.weights["b"][-1]) for optimizer in optimizers]
            for optimizer, group in zip(optimizers, groups, strict=True):
                optimizer.close()
                group.close()
            assert all(rt.remove_process_set(half) for half in halves)
            return results

        assert world.run(train) == [[-1.0, -1.0]] * 2 + [[-5.0, -5.0]] * 2


@OVER
@pytest.mark.parametrize("both", [False, True], ids=["one-rank", "both-ranks"])
def test_shutdown_while_a_queue_opens_its_communicator(transport: str, both: bool) -> None:
    """At whatever point of it: the future fails or has its result, at once, and nothing is left of the world."""

    def leave(world: World, rank: int, spin: int) -> bool:
        if rank == 1 and not both:
            return True
        future = begin("x")
        sum(range(spin))
        world.contexts[rank].close()
        try:
            return future.result(10)[0].tolist() == [2.0, 2.0]
        except (NotInitializedError, PeerLost):
            return True

    for spin in (0, 1, 3, 10, 30, 100, 300):  # thousands of additions: at most some milliseconds
        with world_of(2, transport, timeout_s=20.0) as world:
            assert all(world.run(lambda rank, world=world, spin=spin: leave(world, rank, spin * 1000)))
        assert not leftovers()


@OVER
def test_a_rank_that_leaves_without_a_set_that_others_use_is_named(transport: str) -> None:
    """A rank whose peer ends before its first collective in their set says so, at once."""
    with world_of(3, transport) as world:

        def use(rank: int) -> None:
            pair = rt.add_process_set([0, 2])
            if rank == 0:
                begin("x", pair).result(60)
            if rank == 2:
                world.contexts[2].close()

        error = world.errors(use)[0]
    assert isinstance(error, PeerLost)
    assert re.search(r"rank 2 has shut down, and rank 0 needs it for .* on 'allreduce.x'", str(error))


@pytest.mark.parametrize(("hosts", "alike"), [((2, 2), True), ((1, 2, 3), False), ((1,), True)])
def test_every_rank_knows_whether_hosts_have_equally_many_ranks(hosts: tuple[int, ...], alike: bool) -> None:
    """Without a further exchange, so that it does not matter which module made the world, and where."""
    size, network = sum(hosts), MemoryNetwork()
    local_sizes = [count for count in hosts for _ in range(count)]

    def ask(rank: int) -> bool:
        config = world_config(
            rank=rank, size=size, addresses=("memory:1",) * size, transport="grpc", local_size=local_sizes[rank]
        )
        world = ProcessGroupContext(config, MemoryTransport(network, rank))
        with world.entered():
            answer = basics.is_homogeneous()
        world.close()
        return answer

    with ThreadPoolExecutor(size) as pool:
        assert list(pool.map(ask, range(size))) == [alike] * size
