"""Threads and sockets that a rank has not cleaned up, counted from outside of the runtime."""

import os
import threading
import time

import psutil

_of_others: set[str | threading.Thread] = set()


def note_others() -> None:
    """Do not hold against the tests of a file what those of others have left in this process."""
    _of_others.clear()
    _of_others.update(_sockets(), threading.enumerate())


def leftovers(deadline_s: float = 30.0) -> list[str]:
    """Threads of the runtime and sockets of this process, of this file's tests, that do not go away.

    gRPC closes its sockets from a thread of its own, a moment after a channel is closed: hence a deadline.
    """
    end = time.monotonic() + deadline_s
    never = threading.Event()
    while (left := _alive()) and time.monotonic() < end:
        never.wait(0.02)
    return left


def _alive() -> list[str]:
    threads = [
        thread.name
        for thread in threading.enumerate()
        if thread.name.startswith("ringtrain") and thread not in _of_others
    ]
    return threads + [f"{ends} {status}" for ends, status in _sockets().items() if ends not in _of_others]


def _sockets() -> dict[str, str]:
    """Status by both ends."""
    connections = psutil.Process(os.getpid()).net_connections("inet")
    return {f"{c.laddr} {c.raddr}": c.status for c in connections if c.status != "NONE"}
