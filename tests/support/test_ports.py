"""Ports for tests are nobody else's."""

import multiprocessing
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack

import pytest

from support.ports import free_ports


@pytest.mark.parametrize("start", ["fork", "spawn"])
def test_processes_side_by_side_never_get_the_same_port(start: str) -> None:
    """Also those that nobody listens on yet, and from a process that was forked from one that has ports."""
    given = free_ports(30)
    with ExitStack() as alive:
        for _ in range(3):
            context = multiprocessing.get_context(start)
            process = alive.enter_context(ProcessPoolExecutor(1, context))
            given += process.submit(free_ports, 30).result(60)
    assert len(set(given)) == 120


def test_a_port_is_not_given_again_soon() -> None:
    ports = [free_ports(1)[0] for _ in range(60)]
    assert len(set(ports)) == 60
