"""Threads and sockets that a rank has not cleaned up, counted from outside of the runtime."""

import contextlib
import os
import socket
import threading
import time

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
    """State by both ends. Each descriptor is asked: /proc/net has the whole machine's, and reading it takes 15 ms."""
    found = {}
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):  # no socket, or closed by now
            one = socket.socket(fileno=int(name))
            try:
                if one.family in (socket.AF_INET, socket.AF_INET6) and (state := _state(one)) != _CLOSED:
                    found[f"{one.getsockname()} {_peer(one)}"] = f"in state {state}"
            finally:
                one.detach()
    return found


_CLOSED = 7  # TCP_CLOSE of linux/tcp_states.h: neither bound to a peer nor listening


def _state(one: socket.socket) -> int:
    return one.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)[0]


def _peer(one: socket.socket) -> object:
    try:
        return one.getpeername()
    except OSError:
        return ""  # it listens
