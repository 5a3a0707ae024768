"""Hosts for MPI jobs, or the reason why there are none."""

import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from mpi_jobs import MpiGang
from support.namespaces import loopback, network, why_not

_NO_HOSTS = why_not()


@pytest.fixture
def short_path() -> Iterator[Path]:
    """A directory whose path is short enough for the Unix sockets that MPI makes in it."""
    with tempfile.TemporaryDirectory(prefix="rt-", dir="/tmp", ignore_cleanup_errors=True) as directory:
        yield Path(directory)


@pytest.fixture
def local_gang(short_path: Path) -> Iterator[Callable[..., MpiGang]]:
    """`local_gang(workers, slots, implementation, user=None, **settings)`: all on loopback."""
    with ExitStack() as stack:

        def make(workers: int, slots: int, implementation: str, user: int | None = None, **settings: str) -> MpiGang:
            made = MpiGang(short_path, loopback(workers + 1, user), slots, implementation, **settings)
            stack.callback(made.close)
            return made

        yield make


@pytest.fixture
def gang(short_path: Path) -> Iterator[Callable[..., MpiGang]]:
    """`gang(workers=2, slots=2, implementation="OpenMPI", **settings)`: its pods are killed at the end."""
    if _NO_HOSTS:
        pytest.skip(_NO_HOSTS)
    with ExitStack() as stack:

        def make(workers: int, slots: int, implementation: str, **settings: str) -> MpiGang:
            made = MpiGang(short_path, stack.enter_context(network(workers + 1)), slots, implementation, **settings)
            stack.callback(made.close)
            return made

        yield make
