"""The line and the arithmetic of the benchmark over slow links."""

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.deadlines import patient

from bench.delayed_line import delayed_line
from bench.slow_links import seconds_to

ANSWERS = """
import socket
server = socket.create_server(("10.78.0.2", 5000)); print("up", flush=True)
one = server.accept()[0]
while data := one.recv(1): one.sendall(data)
"""
ASKS = """
import socket, time
one = socket.create_connection(("10.78.0.2", 5000), 30); one.settimeout(30); times = []
for _ in range(5):
    began = time.monotonic(); one.sendall(b"x"); one.recv(1); times.append(time.monotonic() - began)
print(min(times))
"""


@contextlib.contextmanager
def two_namespaces() -> Iterator[tuple[str, str]]:
    names = f"rtline{os.getpid()}a", f"rtline{os.getpid()}b"
    try:
        for name in names:
            subprocess.run(["ip", "netns", "add", name], check=True)
        yield names
    finally:
        for name in names:
            subprocess.run(["ip", "netns", "del", name], check=False)


@pytest.mark.skipif(os.geteuid() != 0 or not Path("/dev/net/tun").exists(), reason="needs root and TUN devices")
def test_an_answer_takes_twice_the_delay() -> None:
    """And little more."""
    with two_namespaces() as names, delayed_line(names, 0.02):
        for place, name in enumerate(names):
            for words in (f"addr add 10.78.0.{place + 1}/24 dev eth0", "link set eth0 up"):
                subprocess.run(["ip", "-n", name, *words.split()], check=True)
        inside = [["ip", "netns", "exec", name, sys.executable, "-c"] for name in names]
        with subprocess.Popen([*inside[1], ANSWERS], stdout=subprocess.PIPE, text=True) as answers:
            assert answers.stdout.readline() == "up\n"
            asked = subprocess.run(
                [*inside[0], ASKS], check=True, timeout=patient(60), stdout=subprocess.PIPE, text=True
            )
    assert 0.04 <= float(asked.stdout) < 0.4


def test_the_first_time_below_the_target_counts() -> None:
    """A loss that goes up again was there all the same; one that was never there has no time."""
    curve = [
        {"step": 10, "seconds": 4.0, "loss": 3.0},
        {"step": 20, "seconds": 8.0, "loss": 2.5},
        {"step": 30, "seconds": 12.0, "loss": 2.7},
    ]
    assert seconds_to(curve, 2.5) == (8.0, 20)
    assert seconds_to(curve, 2.4) is None
