"""What a rank has not cleaned up: counted from outside of the runtime."""

import os
import threading
import time

import psutil


def leftovers(deadline_s: float = 30.0) -> list[str]:
    """Threads of the runtime and sockets of this process that do not go away.

    gRPC closes its sockets from a thread of its own, a moment after a channel is closed: hence a deadline.
    """
    end = time.monotonic() + deadline_s
    never = threading.Event()
    while (left := _alive()) and time.monotonic() < end:
        never.wait(0.02)
    return left


def _alive() -> list[str]:
    threads = [thread.name for thread in threading.enumerate() if thread.name.startswith("ringtrain")]
    process = psutil.Process(os.getpid())
    sockets = [f"{c.laddr} {c.raddr} {c.status}" for c in process.net_connections("inet") if c.status != "NONE"]
    return threads + sockets
