"""Hosts of an elastic run: their slots, their agents, and the treatment of failures."""

import re

import pytest

from ringtrain.errors import ConfigurationError
from ringtrain_hosts.table import (
    AgentEnd,
    HostCoolDown,
    HostSlots,
    HostTable,
    check_only_here,
    parse_hosts,
)


@pytest.mark.parametrize(
    ("output", "hosts"),
    [
        ("localhost:2\nhere:3\n", {"localhost": 2, "here": 3}),
        ("\n  here\n\nhere:2", {"here": 6}),
        ("here:0", {"here": 0}),
        ("fe80::1:2", {"fe80::1": 2}),
        ("", {}),
    ],
)
def test_lines(output: str, hosts: dict[str, int]) -> None:
    """A line is host:slots, or a host, which then has --slots-per-host slots."""
    assert parse_hosts(output, 4) == hosts
    assert parse_hosts("here") == {"here": 1}


@pytest.mark.parametrize("line", ["here:two", ":2", "-oProxyCommand=x:2", "a b:2"])
def test_lines_that_cannot_be(line: str) -> None:
    """The line is named; no option of ssh is a host."""
    with pytest.raises(ConfigurationError, match=re.escape(f"the script printed {line!r}; expected host:slots")):
        parse_hosts(line)


def test_a_run_on_this_machine_alone() -> None:
    """Another host's name is an error with the ways out."""
    check_only_here(["localhost", "127.0.0.1"])
    with pytest.raises(ConfigurationError, match=r"'there', which is not this machine .*--network-interfaces"):
        check_only_here(["localhost", "there"])


def test_a_host_keeps_its_slots() -> None:
    """Changes of other hosts do not matter as long as it is listed."""
    slots = HostSlots(6)
    assert slots.assign({"a": 2, "b": 2}) == {0, 1, 2, 3}
    assert slots.assign({"b": 2}) == {2, 3}
    assert slots.assign({"b": 1, "c": 3}) == {2, 0, 1, 3}
    assert slots.assign({"b": 3, "c": 3}) == {0, 1, 2, 3, 4, 5}
    with pytest.raises(ConfigurationError, match="the script lists 7 slots; expected at most 6"):
        slots.assign({"a": 7})


def test_places_of_hosts() -> None:
    """Each host has a worker; who was listed first has slots first; a host's further slots are not used."""
    table = HostTable(workers=4, slots=2, most=5)
    assert table.assign({"a": 2, "b": 1}, 0) == {0, 1, 2}
    assert table.assign({"c": 9, "b": 2, "a": 2}, 1) == {0, 1, 2, 3, 4}
    assert table.due([], 1) == [(0, "a"), (1, "b"), (2, "c")]
    assert table.due([0, 2], 1) == [(1, "b")]
    assert table.assign({"c": 2}, 2) == {4, 5}
    assert table.idle([0, 1, 2], used=frozenset({1})) == [0]  # ranks of b have the state
    assert table.idle([0, 1, 2], used=frozenset()) == [1]
    assert table.assign({"c": 2, "a": 1}, 3) == {4, 5}  # it comes again when its agent has ended
    assert table.note_end(AgentEnd(0, "", reached=True, meant=True), 3) == ""
    assert table.assign({"c": 2, "a": 1}, 4) == {4, 5, 0}


def test_names_of_this_machine_share_a_worker() -> None:
    """A script may list it several times."""
    table = HostTable(workers=2, slots=4, most=4)
    assert table.assign({"localhost": 1, "127.0.0.1": 2}, 0) == {0, 1, 2}
    assert table.due([], 0) == [(0, "localhost")]


def test_a_host_that_fails_again() -> None:
    """Is tried again once, then set aside, for longer each time; within two seconds is the same failure."""
    table = HostTable(workers=2, slots=1, most=1, cooldown=HostCoolDown(failures=2, first_s=10, most_s=15))
    assert table.assign({"a": 1, "b": 1}, 0) == {0}
    table.note_reached(0)
    assert table.note_failure(0, "x", 100) == "x; trying host a again"
    assert table.note_failure(0, "x", 101) == ""
    assert (table.due([], 101), table.due([], 102)) == ([], [(0, "a")])
    assert table.note_failure(0, "x", 110) == "x; host a has failed 2 times and gets no ranks for 10 s"
    assert table.assign({"a": 1, "b": 1}, 110) == {1}
    assert table.assign({"a": 1}, 119) == frozenset()
    assert table.assign({"a": 1}, 120) == {0}
    assert table.note_failure(0, "x", 125) == "x; host a has failed 3 times and gets no ranks for 15 s"
    assert table.assign({"a": 1}, 4000) == {0}
    assert table.note_failure(0, "x", 4000) == "x; trying host a again"  # an hour later that is forgotten


def test_a_host_that_was_never_reached() -> None:
    """Is set aside the first time: others do not wait for it. Its place is free then."""
    table = HostTable(workers=1, slots=1, most=1)
    assert table.assign({"a": 1}, 0) == {0}
    assert "gets no ranks for 10 s" in table.note_end(AgentEnd(0, "no ssh", reached=False, meant=False), 0)
    assert table.assign({"a": 1, "b": 1}, 1) == frozenset()
    assert table.idle([], used=frozenset()) == []
    assert table.assign({"a": 1, "b": 1}, 2) == {0}
    assert table.due([], 2) == [(0, "b")]


def test_an_agent_that_ends_as_its_host_is_left() -> None:
    """The agent's slot becomes free."""
    table = HostTable(workers=1, slots=1, most=1)
    table.assign({"a": 1}, 0)
    table.assign({}, 1)
    assert table.note_end(AgentEnd(0, "gone", reached=True, meant=False), 1) == "gone"
    assert table.idle([], used=frozenset()) == []
    assert table.assign({"b": 1}, 20) == {0}
