"""The host discovery script of a run on one machine."""

import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.elastic_world import RULES
from support.gang import until

from ringtrain.errors import ConfigurationError
from ringtrain_job.launcher.discovery import HostDiscovery, HostSlots, parse_hosts, run_script

OWN = frozenset({"localhost", "here"})


@pytest.mark.parametrize(
    ("output", "hosts"),
    [
        ("localhost:2\nhere:3\n", {"localhost": 2, "here": 3}),
        ("\n  here\n\nhere:2", {"here": 3}),
        ("here:0", {"here": 0}),
        ("", {}),
    ],
)
def test_lines(output: str, hosts: dict[str, int]) -> None:
    """host:slots, or a host with one."""
    assert parse_hosts(output, OWN) == hosts


@pytest.mark.parametrize(
    ("output", "message"),
    [
        ("here:two", "it printed 'here:two'; expected host:slots"),
        (":2", "it printed ':2'; expected host:slots"),
        ("there:2", "it printed 'there:2', and there is not this machine; expected one of here, localhost"),
    ],
)
def test_lines_that_cannot_be(output: str, message: str) -> None:
    """The line is named."""
    with pytest.raises(ConfigurationError, match=message):
        parse_hosts(output, OWN)


def test_a_host_keeps_its_slots() -> None:
    """Whatever others do, for as long as it is listed."""
    slots = HostSlots(6)
    assert slots.assign({"a": 2, "b": 2}) == {0, 1, 2, 3}
    assert slots.assign({"b": 2}) == {2, 3}
    assert slots.assign({"b": 1, "c": 3}) == {2, 0, 1, 3}
    assert slots.assign({"b": 3, "c": 3}) == {0, 1, 2, 3, 4, 5}
    with pytest.raises(ConfigurationError, match="it lists 7 slots; expected at most 6"):
        slots.assign({"a": 7})


def test_a_script_that_fails_or_hangs() -> None:
    """The error has its code and the last line that it wrote, or the deadline."""
    closed = threading.Event()
    assert run_script("echo here:2", 30, closed) == "here:2\n"
    with pytest.raises(ConfigurationError, match=r"it exited with 3 \(no such cloud\)"):
        run_script("echo no such cloud >&2; exit 3", 30, closed)
    began = time.monotonic()
    with pytest.raises(ConfigurationError, match=r"it took longer than 0.2 s"):
        run_script("sleep 60", 0.2, closed)
    assert time.monotonic() - began < 30


def test_a_script_that_hangs_holds_nobody_up() -> None:
    """When the run ends, so does the script."""
    discovery = HostDiscovery("sleep 600", 8, RULES, lambda slots: None)
    began = time.monotonic()
    discovery.close()
    assert time.monotonic() - began < 8


@pytest.fixture
def hosts(tmp_path: Path) -> Path:
    """The file that the script prints."""
    path = tmp_path / "hosts"
    path.write_text("localhost:2\n")
    return path


@pytest.fixture
def asked(hosts: Path) -> Iterator[list[frozenset[int]]]:
    """What the script has asked for so far."""
    found: list[frozenset[int]] = []
    told = threading.Lock()

    def ask(slots: frozenset[int]) -> None:
        with told:
            found.append(slots)

    discovery = HostDiscovery(f"cat {hosts}", 8, RULES, ask)
    yield found
    discovery.close()


@pytest.mark.slow
def test_answers_are_followed_and_bad_ones_change_nothing(
    asked: list[frozenset[int]], hosts: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A script that fails is said once, and its last answer holds."""
    until("the first answer", lambda: frozenset({0, 1}) in asked)
    hosts.write_text("elsewhere:4\n")
    until("the complaint", lambda: "elsewhere is not this machine" in caplog.text)
    hosts.write_text("localhost:1\n")
    until("the complaint", lambda: "it lists 1 slots; expected 2 to 8 (--min-np, --max-np)" in caplog.text)
    assert set(asked) == {frozenset({0, 1})}
    hosts.write_text("localhost:4\n")
    until("the next answer", lambda: frozenset({0, 1, 2, 3}) in asked)
