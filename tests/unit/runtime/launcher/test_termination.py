"""The termination message, and what becomes of errors that nothing else handles."""

import errno
import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ringtrain.errors import ConfigurationError
from ringtrain.shared.ports import PortTaken
from ringtrain_job.cli.failures import exit_code_of
from ringtrain_job.control.model import Failure, Outcome, Reason, Verdict
from ringtrain_job.control.termination import TerminationPath, termination_message, write_termination_message


def test_a_failure_in_the_words_of_the_contract() -> None:
    """Every field of docs/contract.md."""
    failure = Failure(
        Reason.RANK_FAILED,
        "rank 3 was killed by SIGKILL",
        3,
        "digits-worker-1",
        "node-b",
        137,
        "SIGKILL",
        ("last",),
    )
    message = termination_message(Verdict(Outcome.FAILED, 137, 1, failure), attempt=2, world_size=4)
    assert json.loads(message) == {
        "version": 1, "attempt": 2, "outcome": "Failed", "worldSize": 4, "ranksSucceeded": 1,
        "failure": {
            "rank": 3, "pod": "digits-worker-1", "node": "node-b", "exitCode": 137, "signal": "SIGKILL",
            "reason": "RankFailed", "message": "rank 3 was killed by SIGKILL", "logTail": ["last"],
        },
    }  # fmt: skip


@given(tail=st.lists(st.text(max_size=600), max_size=25), message=st.text(max_size=5000))
def test_never_more_than_a_pod_may_say(tail: list[str], message: str) -> None:
    """The message has at most 4096 bytes of JSON, with as much of the log's end and the failure as fits."""
    failure = Failure(Reason.RANK_FAILED, message, 0, log_tail=tuple(tail))
    encoded = termination_message(Verdict(Outcome.FAILED, 1, 0, failure), 1, 1)
    assert len(encoded) <= 4096
    told = json.loads(encoded)["failure"]
    kept = told["logTail"]
    assert message.startswith(told["message"])
    if len(kept) > 1:
        assert kept == tail[-len(kept) :]
    if kept:
        assert told["message"] == message


def test_a_path_that_cannot_be_written(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A path that was set causes a warning; the default path causes none."""
    absent = tmp_path / "absent" / "log"
    write_termination_message(TerminationPath(absent, required=False), b"{}")
    assert not caplog.records
    write_termination_message(TerminationPath(absent, required=True), b"{}")
    assert "cannot write the termination message" in caplog.text


@pytest.mark.parametrize(
    ("error", "code", "reason"),
    [
        (ConfigurationError("X='1': expected 2"), 64, "BadConfiguration"),
        (PortTaken("port 7 is in use"), 69, "NotAssembled"),
        (ZeroDivisionError("division"), 70, "InternalError"),
        (OSError(errno.EMFILE, "Too many open files"), 64, "BadConfiguration"),
        (OSError(errno.EIO, "Input/output error"), 70, "InternalError"),
    ],
    ids=["configuration", "port", "defect", "open-files", "disk"],
)
def test_errors_become_exit_codes(
    error: Exception, code: int, reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The termination message contains the same error."""
    monkeypatch.setenv("RINGTRAIN_TERMINATION_MESSAGE_PATH", str(tmp_path / "message"))
    monkeypatch.setenv("RINGTRAIN_ATTEMPT", "3")
    monkeypatch.setenv("RINGTRAIN_NUM_WORKERS", "bad")

    def fail() -> int:
        raise error

    assert exit_code_of(fail) == code
    told = json.loads((tmp_path / "message").read_bytes())
    assert (told["attempt"], told["outcome"], told["failure"]["reason"]) == (3, "Failed", reason)
    assert (getattr(error, "strerror", None) or str(error)) in told["failure"]["message"]
