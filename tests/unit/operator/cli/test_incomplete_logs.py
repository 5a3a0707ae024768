"""One rank's log from the output of a launcher that has ended, of which its node kept the newest part."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator
from typing import Any

import pytest

from ringtrain_operator.cli.logs import LogsIncomplete, Wanted, _of_rank
from ringtrain_operator.cli.session import Session

JOB = {
    "metadata": {"name": "digits", "namespace": "team"},
    "spec": {"logs": {"persistentVolumeClaim": {"claimName": "runs"}}},
}


class Api:
    """A launcher that has written three ranks' lines, `kept` of which its node still has."""

    def __init__(self, kept: int) -> None:
        self.lines = [b"[0] a\n", b"2026 the launcher's own\n", b"[1] b\n", b"[0] c\n"][-kept:]

    async def get(self, resource: Any, namespace: str, name: str) -> dict[str, Any]:
        """The job, or the launcher's pod."""
        if name == "digits":
            return JOB
        told = {"terminated": {"exitCode": 0, "message": json.dumps({"version": 1, "attempt": 1, "logLines": 3})}}
        return {
            "metadata": {"name": name, "labels": {"ringtrain.dev/attempt": "1"}},
            "spec": {"containers": [{"name": "launcher"}]},
            "status": {"phase": "Succeeded", "containerStatuses": [{"name": "launcher", "state": told}]},
        }

    async def pod_log(self, *_: str, **__: Any) -> AsyncGenerator[bytes, None]:
        """What the node has."""
        for line in self.lines:
            yield line


def read(kept: int, tail: int | None = None) -> list[bytes]:
    """What is printed of rank 0."""
    found: list[bytes] = []

    async def collect() -> None:
        wanted = Wanted("digits", 0, None, False, tail)
        async for line in _of_rank(Session(Api(kept), "team"), wanted, skip=0):  # type: ignore[arg-type]
            found.append(line)

    try:
        asyncio.run(collect())
    except LogsIncomplete as exc:
        found.append(f"error: {exc}".encode())
    return found


def test_all_is_there() -> None:
    """Then nothing is said."""
    assert read(4) == [b"a\n", b"c\n"]


@pytest.mark.parametrize("kept", [1, 3])
def test_some_are_missing(kept: int) -> None:
    """What is there is printed; the error says how many are not, and where they are."""
    *lines, error = read(kept)
    assert lines == [b"c\n"]
    missing = {1: 2, 3: 1}[kept]
    assert f"error: {missing} of the 3 lines that all ranks wrote are no longer".encode() in error
    assert b"claim runs, in team/digits/1/" in error


def test_a_tail_that_is_whole() -> None:
    """The newest lines are what a node keeps."""
    assert read(1, tail=1) == [b"c\n"]
