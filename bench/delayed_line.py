"""Lines with a delay between network namespaces: packets of TUN devices, each held back for a while.

tc's netem would do that, and is not in every kernel. With packets of 9,000 bytes a line of 100 Mbit/s carries
1,400 a second each way, of which the relay below takes a few per cent of a core.
"""

import contextlib
import fcntl
import multiprocessing
import os
import select
import struct
import subprocess
import time
from collections import deque
from collections.abc import Iterator, Sequence
from typing import Final

_TUNSETIFF: Final = 0x400454CA
_TUN_WITHOUT_HEADERS: Final = 0x0001 | 0x1000
MTU: Final = 9000


@contextlib.contextmanager
def delayed_line(namespaces: Sequence[str], one_way_s: float) -> Iterator[None]:
    """Give each namespace a device `eth0` that reaches the others after `one_way_s`: the one in place i has an
    IPv4 address that ends with i + 1. Needs root, ip and /dev/net/tun. The devices are gone afterwards."""
    ends = []
    for place, namespace in enumerate(namespaces):
        ends.append(os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK))
        fcntl.ioctl(ends[-1], _TUNSETIFF, struct.pack("16sH", f"rttun{place}".encode(), _TUN_WITHOUT_HEADERS))
        for words in (
            f"link set rttun{place} netns {namespace} name eth0",
            f"-n {namespace} link set eth0 mtu {MTU} txqueuelen 1000",
        ):
            subprocess.run(["ip", *words.split()], check=True)
    relay = multiprocessing.get_context("fork").Process(target=_relay, args=(ends, one_way_s), daemon=True)
    relay.start()
    try:
        yield
    finally:
        relay.kill()
        relay.join()
        for end in ends:
            os.close(end)


def _relay(ends: list[int], one_way_s: float) -> None:
    """Carry packets from each end to the one that they are addressed to, in order, when they are due."""
    held: dict[int, deque[tuple[float, bytes]]] = {end: deque() for end in ends}  # by the end that they go to
    while True:
        due = [packets[0][0] for packets in held.values() if packets]
        wait = max(0.0, min(due) - time.monotonic()) if due else None
        for end in select.select(ends, [], [], wait)[0]:
            with contextlib.suppress(BlockingIOError):
                while True:
                    packet = os.read(end, MTU + 4)
                    if packet[0] >> 4 == 4 and 1 <= packet[19] <= len(ends):  # the last byte of where it goes
                        held[ends[packet[19] - 1]].append((time.monotonic() + one_way_s, packet))
        now = time.monotonic()
        for end, packets in held.items():
            while packets and packets[0][0] <= now:
                with contextlib.suppress(OSError):  # as a device that is not up drops it
                    os.write(end, packets.popleft()[1])
