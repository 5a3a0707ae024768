"""Results belong to the caller alone: dropped, their memory is free at once, without the garbage collector."""

import gc
import threading
import weakref
from collections.abc import Callable, Iterator

import numpy as np
import pytest

import ringtrain as rt
from ring.worlds import world_of

COLLECTIVES: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "allreduce": rt.allreduce,
    "short-allreduce": lambda x: rt.allreduce(x[:10]),
    "grouped-allreduce": lambda x: rt.grouped_allreduce([x, x[:1000]])[0],
    "allreduce-async": lambda x: rt.synchronize(rt.allreduce_async(x)),
    "reducescatter": rt.reducescatter,
    "allgather": rt.allgather,
    "broadcast": lambda x: rt.broadcast(x, 0),
    "alltoall": lambda x: rt.alltoall(x)[0],
}


@pytest.fixture
def no_collector() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def _is_freed(collective: Callable[[np.ndarray], np.ndarray], x: np.ndarray) -> bool:
    """Whether the memory behind the result goes when the result does; threads that served it may take a moment."""
    gone = threading.Event()
    result = collective(x)
    weakref.finalize(result if result.base is None else result.base, gone.set)
    del result
    return gone.wait(30)


@pytest.mark.usefixtures("no_collector")
@pytest.mark.parametrize("transport", ["memory", "grpc", "shm"])
@pytest.mark.parametrize("collective", COLLECTIVES.values(), ids=COLLECTIVES)
def test_a_dropped_result_is_free(collective: Callable[[np.ndarray], np.ndarray], transport: str) -> None:
    with world_of(2, transport) as world:
        assert world.run(lambda rank: _is_freed(collective, np.ones(1 << 18, np.float32))) == [True, True]
