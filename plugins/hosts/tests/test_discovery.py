"""The host discovery script of an elastic run."""

import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.elastic_world import RULES
from support.gang import until

from ringtrain.errors import ConfigurationError
from ringtrain_hosts.discovery import HostDiscovery, run_discovery_script
from ringtrain_hosts.table import HostTable


def test_a_script_that_fails_or_hangs() -> None:
    """The error has its code and the last line that it wrote, or the deadline."""
    closed = threading.Event()
    assert run_discovery_script("echo here:2", 30, closed) == "here:2\n"
    with pytest.raises(ConfigurationError, match=r"the script exited with 3 \(no such cloud\)"):
        run_discovery_script("echo no such cloud >&2; exit 3", 30, closed)
    began = time.monotonic()
    with pytest.raises(ConfigurationError, match=r"the script took longer than 0.2 s"):
        run_discovery_script("sleep 60", 0.2, closed)
    assert time.monotonic() - began < 30


def test_a_script_that_hangs_holds_nobody_up() -> None:
    """The script ends with the run."""
    discovery = HostDiscovery("sleep 600", HostTable(1, 8, 8), RULES, World([]))
    began = time.monotonic()
    discovery.close()
    assert time.monotonic() - began < 8


class World:
    """World that records requests and runs nothing."""

    def __init__(self, asked: list[frozenset[int]]) -> None:
        self._asked = asked

    def request_slots(self, slots: frozenset[int]) -> None:
        self._asked.append(slots)

    def workers_in_use(self) -> frozenset[int]:
        return frozenset()

    def attached_workers(self) -> frozenset[int]:
        return frozenset()

    def failed_processes(self) -> dict[tuple[int, int], str]:
        return {}


@pytest.fixture
def hosts(tmp_path: Path) -> Path:
    """The file that the script prints."""
    path = tmp_path / "hosts"
    path.write_text("localhost:2\n")
    return path


@pytest.fixture
def asked(hosts: Path) -> Iterator[list[frozenset[int]]]:
    """Return the numbers of slots that the script has requested."""
    found: list[frozenset[int]] = []
    discovery = HostDiscovery(f"cat {hosts}", HostTable(1, 8, 8), RULES, World(found))
    yield found
    discovery.close()


@pytest.mark.slow
def test_answers_are_followed_and_bad_ones_change_nothing(
    asked: list[frozenset[int]], hosts: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A failure of the script is logged once, and its last answer stays valid."""
    until("the first answer", lambda: frozenset({0, 1}) in asked)
    hosts.write_text("elsewhere:4\n")
    until("the complaint", lambda: "'elsewhere', which is not this machine" in caplog.text)
    hosts.write_text("localhost:1\n")
    until("the complaint", lambda: "the script lists 1 slot; expected 2 or more (--min-np)" in caplog.text)
    assert set(asked) == {frozenset({0, 1})}
    hosts.write_text("localhost:4\n")
    until("the next answer", lambda: frozenset({0, 1, 2, 3}) in asked)
    hosts.write_text("localhost:12\n")
    until("as many as may be", lambda: frozenset(range(8)) in asked)
