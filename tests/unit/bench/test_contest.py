"""Contenders that take turns, and one that hangs."""

import sys
from typing import Any

import pytest

from bench.contest import Gang, Hung, Rounds, contest, gangs

# A rank that answers every command, or the first `patience` ones.
RANK = """
import json, socket, sys
stream = socket.socket(socket.AF_UNIX)
stream.connect(sys.argv[1])
stream = stream.makefile("rw")
print(json.dumps({"rank": 0}), file=stream, flush=True)
for count, command in enumerate(stream):
    if json.loads(command)["do"] == "stop":
        break
    if count < int(sys.argv[2]):
        print(json.dumps({"times": [0.5], "cpu_s": 0.25}), file=stream, flush=True)
"""


class OneRank:
    """Hosts of one process a contender. `patience`: how many commands each answers."""

    ranks = 1

    def __init__(self, **patience: int) -> None:
        self._patience = patience

    def commands(self, contender: str, worker: list[str]) -> list[tuple[list[str], dict[str, str]]]:
        return [([sys.executable, "-c", RANK, worker[-1], str(self._patience[contender])], {})]

    def sent_bytes(self) -> int:
        return 0


ROUNDS = Rounds(seconds=1e9, repetitions=1, turns=3)
WHAT = {"kind": "allreduce"}


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Gang, "answer_s", 1.0)


def test_a_peer_that_hangs_is_left_out_and_said(capsys: pytest.CaptureFixture[str]) -> None:
    """In the middle of a contest, and in all that follow; the others are measured as ever."""
    hosts: Any = OneRank(ringtrain=99, peer=1)
    with gangs({"ringtrain": {}, "peer": {}}, hosts) as running:
        assert [list(contest(running, ROUNDS, WHAT)) for _ in range(2)] == [["ringtrain"], ["ringtrain"]]
    said = capsys.readouterr().err
    assert said.count("peer is left out from here on: peer has not answered for 1 s in {'kind': 'allreduce'}") == 1


def test_ours_may_not_hang() -> None:
    """It ends the benchmark."""
    hosts: Any = OneRank(ringtrain=1)
    with (
        gangs({"ringtrain": {}}, hosts) as running,
        pytest.raises(Hung, match="ringtrain has not answered for 1 s"),
    ):
        contest(running, ROUNDS, WHAT)
