"""Log of an ended launcher whose node has only the newest part of its output."""

import asyncio
import json
from collections.abc import AsyncGenerator
from typing import Any

import pytest

from ringtrain_client.jobs.ended_logs import read_ended
from ringtrain_client.jobs.launcher_output import PrintedLauncherOutput, WantedLauncherOutput
from ringtrain_client.jobs.session import ClusterAccess
from ringtrain_operator.cluster.api.errors import Forbidden, ServerError
from ringtrain_operator.cluster.api.resources import SERVICES, ApiResource
from ringtrain_operator.errors import OperatorError

CLAIM = {"persistentVolumeClaim": {"claimName": "runs"}}
TOTAL = {"logLines": 3}
BY_RANK = {"logLines": 3, "rankLogLines": [2, 1]}


def job(**spec: Any) -> dict[str, Any]:
    """Return a job whose first attempt has ended."""
    container = {"name": "train", "image": "train:1", "command": ["train"]}
    return {
        "apiVersion": "ringtrain.dev/v1alpha1",
        "kind": "DistributedTrainingJob",
        "metadata": {"name": "digits", "namespace": "team", "uid": "1"},
        "spec": {"worker": {"replicas": 1, "template": {"spec": {"containers": [container]}}}, **spec},
        "status": {"state": "Succeeded", "attempt": 1},
    }


def launcher(attempt: int = 1, **told: Any) -> dict[str, Any]:
    """Return its pod with the content of its termination message."""
    message = json.dumps({"version": 1, "attempt": attempt, **told})
    return {
        "metadata": {"name": "digits-launcher", "labels": {"ringtrain.dev/attempt": str(attempt)}},
        "spec": {"containers": [{"name": "launcher"}]},
        "status": {
            "phase": "Succeeded",
            "containerStatuses": [{"name": "launcher", "state": {"terminated": {"exitCode": 0, "message": message}}}],
        },
    }


class Api:
    """API of a node with the last `kept` of a launcher's four lines, for a user who may not create pods."""

    def __init__(self, kept: int) -> None:
        self.lines = [b"[0] a\n", b"2026 the launcher's own\n", b"[1] b\n", b"[0] c\n"][4 - kept :]

    async def pod_log(self, *_: str, tail_lines: int | None = None, **__: Any) -> AsyncGenerator[bytes, None]:
        """Return the lines that the node has."""
        if not self.lines:
            raise ServerError("no answer from the node")
        for line in self.lines[-tail_lines:] if tail_lines else self.lines:
            yield line

    async def get(self, resource: ApiResource, *_: Any) -> None:
        """Raise Forbidden for the job's Service, the only object that is read."""
        assert resource is SERVICES
        raise Forbidden("may not get services")

    async def select(self, *_: Any, **__: Any) -> list[Any]:
        """Return no pods."""
        return []

    async def create(self, *_: Any) -> None:
        """Raise Forbidden."""
        raise Forbidden("may not create pods")

    async def delete(self, *_: Any) -> None:
        """Do nothing: no pod was created."""


def read(
    kept: int,
    rank: int | None,
    *,
    tail: int | None = None,
    attempt: int | None = None,
    pod: dict[str, Any] | None = None,
    status: dict[str, Any] | None = None,
    **spec: Any,
) -> tuple[bytes, str]:
    """Return the printed output and the error."""
    found = b""

    async def collect() -> None:
        nonlocal found
        wanted = WantedLauncherOutput("digits", rank, attempt, False, tail)
        made = job(**spec) if status is None else job(**spec) | {"status": status}
        async for chunk in read_ended(
            ClusterAccess(Api(kept), "team", print), wanted, made, pod, PrintedLauncherOutput()
        ):  # type: ignore[arg-type]
            found += chunk

    try:
        asyncio.run(collect())
    except OperatorError as exc:
        return found, str(exc)
    return found, ""


def test_all_is_there() -> None:
    """A complete log is printed without a message, and no pod is created."""
    assert read(4, 0, pod=launcher(**TOTAL), logs=CLAIM) == (b"a\nc\n", "")
    merged = b"[0] a\n2026 the launcher's own\n[1] b\n[0] c\n"
    assert read(4, None, pod=launcher(**TOTAL), logs=CLAIM) == (merged, "")


@pytest.mark.parametrize(("kept", "missing"), [(1, 2), (3, 1)])
@pytest.mark.parametrize(("rank", "printed"), [(0, b"c\n"), (None, b"[0] c\n")], ids=["rank", "merged"])
def test_some_are_missing(kept: int, missing: int, rank: int | None, printed: bytes) -> None:
    """The existing lines are printed, and the error has the number and the location of the missing ones."""
    out, error = read(kept, rank, pod=launcher(**TOTAL))
    assert out.endswith(printed)
    assert f"lacks {missing} of 3 lines that all ranks wrote" in error
    assert "its logs were deleted with its pod, because spec.logs names neither a claim nor a uri" in error


def test_the_ranks_own_count() -> None:
    """With the launcher's counts by rank, only the missing lines of the requested rank matter."""
    out, error = read(1, 0, pod=launcher(**BY_RANK))
    assert (out, "1 of 2 lines that rank 0 wrote" in error) == (b"c\n", True)
    assert read(3, 1, pod=launcher(**BY_RANK)) == (b"b\n", "")


def test_without_the_right_to_create_pods() -> None:
    """The node's lines are printed, and the error has the location of the rest and the reason for not reading it."""
    out, error = read(1, 0, pod=launcher(**TOTAL), logs=CLAIM)
    assert out == b"c\n"
    assert "2 of 3 lines" in error
    assert "claim runs, in team/digits/1/" in error
    assert error.endswith("may not create pods")


def test_no_launcher() -> None:
    """Nothing is printed, and the error has the location of the log, or says that it was deleted."""
    assert read(4, None) == (
        b"",
        "digits has no launcher now; its logs were deleted with its pod, because "
        "spec.logs names neither a claim nor a uri",
    )
    out, error = read(4, 0, attempt=1, pod=launcher(attempt=2, **TOTAL), logs=CLAIM)
    assert (out, error.partition(";")[0]) == (b"", "the launcher of digits is of attempt 2")


def test_an_attempt_that_never_was() -> None:
    """An attempt without a launcher has no logs, nor has a job that has not started."""
    for logs in ({}, {"logs": CLAIM}):
        assert read(4, 0, attempt=7, pod=launcher(**TOTAL), **logs) == (
            b"",
            "--attempt 7: digits has only 1 attempt",
        )
    for status in ({}, {"state": "Queued", "attempt": 1}):
        assert read(4, None, status=status) == (
            b"",
            "attempt 1 of digits has not begun and has no logs; run dtj why digits for the reason",
        )
    out, error = read(4, None, status={"state": "Restarting", "attempt": 2}, logs=CLAIM)
    assert (out, error.partition(" and ")[0]) == (b"", "attempt 2 of digits has not begun")


def test_a_node_that_is_gone() -> None:
    """If the node does not answer, the claim is tried, and the error has the answers of the node and of the claim."""
    out, error = read(0, 0, pod=launcher(**TOTAL), logs=CLAIM)
    assert (out, "claim runs, in team/digits/1/" in error) == (b"", True)
    assert error.endswith("no answer from the node; may not create pods")


def test_a_tail_that_is_whole() -> None:
    """With --tail, lines that the node has deleted do not matter."""
    assert read(1, 0, tail=1, pod=launcher(**TOTAL)) == (b"c\n", "")
    assert read(2, None, tail=2, pod=launcher(**TOTAL)) == (b"[1] b\n[0] c\n", "")


def test_a_launcher_that_left_no_count(capsys: pytest.CaptureFixture[str]) -> None:
    """Without the launcher's count, a message says that lines may be missing."""
    assert read(4, 0, pod=launcher()) == (b"a\nc\n", "")
    assert "did not report how many lines it wrote" in capsys.readouterr().out
