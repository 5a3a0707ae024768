"""Worlds of processes that mpirun has started: every rank runs the same tests, and sees what all ranks returned.

A test is written for a world whose ranks are threads: it calls `world.run(function)` and looks at the list of
results. Here each process calls `function` for its own rank only, and the results are exchanged; so the test's
assertions are made by every rank, on the same values.
"""

import contextlib
import os
import pickle
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any, TypeVar

import pytest
from support.ports import free_addresses
from support.world_config import world_config

from ringtrain._core.process_groups.rank_context import ProcessGroupContext

T = TypeVar("T")
UNDER_MPIRUN = "RINGTRAIN_TEST_UNDER_MPIRUN" in os.environ
if UNDER_MPIRUN:
    from ringtrain_mpi.ranks import communicator
    from ringtrain_mpi.ranks.library import load_mpi_of_world

    communicator.COUNT_MOST = int(os.environ.get("RINGTRAIN_TEST_COUNT_MOST", communicator.COUNT_MOST))


@dataclass(frozen=True)
class _Result:
    """Return value or exception of a function on one rank."""

    value: Any = None
    error: BaseException | None = None


class SpmdWorld:
    """The rank that this process is, in a world over MPI; used as `worlds.World`."""

    def __init__(self, context: ProcessGroupContext) -> None:
        self._context = context

    def run(self, function: Callable[[int], T]) -> list[T]:
        """Return `function(rank)` of every rank."""
        results = self._results(function)
        for result in results:
            if result.error is not None:
                raise result.error
        return [result.value for result in results]

    def errors(self, function: Callable[[int], Any]) -> list[BaseException | None]:
        """Return the exception of `function(rank)` on every rank; None if it raised none."""
        return [result.error for result in self._results(function)]

    def meet(self) -> None:
        """In a rank: wait for all ranks of this world."""
        _between_tests().Barrier()

    def _results(self, function: Callable[[int], Any]) -> list[_Result]:
        with self._context.entered():
            try:
                mine = _Result(value=function(self._context.config.place.rank))
            except BaseException as error:  # the test decides what an error means
                mine = _Result(error=_picklable(error))
        return list(_between_tests().allgather(mine))


@contextlib.contextmanager
def spmd_world(size: int, segment_bytes: int, timeout_s: float) -> Iterator[SpmdWorld]:
    """The world of all processes. Skips the test if it is for another number of them."""
    ranks = _between_tests()
    if ranks.size != size:
        pytest.skip(f"for {size} ranks; mpirun has started {ranks.size}")
    addresses = tuple(ranks.allgather(free_addresses(1)[0]))
    config = world_config(
        rank=ranks.rank,
        size=size,
        addresses=addresses,
        timeout_s=timeout_s,
        transport="mpi" if size > 1 else "grpc",
    )
    context = ProcessGroupContext(config, None, segment_bytes)
    try:
        yield SpmdWorld(context)
    finally:
        context.close()


@cache
def _between_tests() -> Any:
    """A communicator of the tests' own."""
    return load_mpi_of_world().COMM_WORLD.Dup()


def _picklable(error: BaseException) -> BaseException:
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:
        return RuntimeError(f"{type(error).__name__}: {error}")
    return error
