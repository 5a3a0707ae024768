"""A script's own exception stays the script's own exception, whatever the runtime is doing at that moment."""

import json
import os
import sys
from pathlib import Path

from frameworks.harness import ENV
from support.commands import completed
from support.deadlines import patient

TESTS = Path(__file__).parents[1]
TRANSPORTS = ("shm", "grpc")
WORLDS = 20  # two transports, five stages, one rank or all of them


def test_an_exception_at_any_stage_of_a_step_ends_every_rank_by_an_exception() -> None:
    """No rank dies of a signal or hangs: who raised ends with 1, and so do the others, which lost a peer."""
    ended = completed(
        [sys.executable, "-m", "frameworks.crashing_script", *TRANSPORTS],
        cwd=TESTS,
        env={**os.environ, **ENV, "RINGTRAIN_TIMEOUT": "30"},
        timeout=patient(600),
    )
    worlds = [json.loads(line) for line in ended.stdout.splitlines()]
    assert len(worlds) == WORLDS, ended.stderr[-3000:]
    for world in worlds:
        assert world["ends"] == [1, 1], (world, ended.stderr[-3000:])
    for text in ("BugOfTheScript: the user's own", "PeerLost"):
        assert text in ended.stderr
