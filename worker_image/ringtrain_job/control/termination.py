"""Termination message of a pod: JSON of at most 4096 bytes that says how and why it ended."""

import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ringtrain.shared import contract
from ringtrain_job.control.model import Failure, Verdict

log = logging.getLogger(__name__)

DEFAULT_PATH = Path("/dev/termination-log")


@dataclass(frozen=True)
class TerminationPath:
    """Path of the termination message. `required`: whether the user set the path; a failed write is then logged."""

    path: Path
    required: bool


def failure_json(failure: Failure) -> dict[str, Any]:
    """Return `failure` as a JSON object (docs/contract.md)."""
    uid = {"podUid": failure.pod_uid} if failure.pod_uid else {}
    return {
        "rank": failure.rank,
        "pod": failure.pod,
        **uid,
        "node": failure.node,
        "exitCode": failure.exit_code,
        "signal": failure.signal or None,
        "reason": failure.reason.value,
        "message": failure.message,
        "logTail": list(failure.log_tail),
    }


def termination_message(
    verdict: Verdict,
    attempt: int,
    world_size: int,
    progress: dict[str, Any] | None = None,
    log_lines: Sequence[int] | None = None,
    unfinished: Mapping[str, Any] | None = None,
    lost_log_lines: int = 0,
) -> bytes:
    """Return the termination message for `verdict`: JSON of at most 4096 bytes.

    `log_lines`: number of log lines by rank. `unfinished`: entries about unfinished work, such as `unshipped` logs
    (`pendingBytes`, `problem`). `lost_log_lines`: number of a worker's lines that the launcher could not write. A
    message that is too long loses the line counts by rank first, then metrics, then the oldest log lines.
    """
    document: dict[str, Any] = {
        "version": contract.TERMINATION_MESSAGE_VERSION,
        "attempt": attempt,
        "outcome": verdict.outcome.value,
        "worldSize": world_size,
        "ranksSucceeded": verdict.ranks_succeeded,
    }
    if verdict.failure is not None:
        document["failure"] = failure_json(verdict.failure)
    if verdict.warning:
        document["warning"] = verdict.warning
    if progress is not None:
        document["progress"] = progress
    if log_lines is not None:
        document["logLines"] = sum(log_lines)
        document["rankLogLines"] = list(log_lines)
    if lost_log_lines:
        document["lostLogLines"] = lost_log_lines
    return fit_termination_message(document, unfinished)


def fit_termination_message(document: dict[str, Any], unfinished: Mapping[str, Any] | None = None) -> bytes:
    """Return `document` with the entries `unfinished` as JSON, shortened to the limit of 4096 bytes."""
    document = {**document, **(unfinished or {})}
    return _fit_termination(document, contract.TERMINATION_MESSAGE_MAX_BYTES)


def _fit_termination(document: dict[str, Any], limit: int) -> bytes:
    encoded = _encode_termination(document)
    if len(encoded) > limit and document.pop("rankLogLines", None):
        encoded = _encode_termination(document)
    failure, progress = document.get("failure"), document.get("progress")
    if len(encoded) > limit and progress and progress.get("metrics"):
        # Many metrics of a script are also in metrics.jsonl; the cause of a failure is only here.
        document["progress"] = {**progress, "metrics": {}}
        encoded = _encode_termination(document)
    while len(encoded) > limit and failure and failure["logTail"]:
        tail = failure["logTail"]
        excess = len(encoded) - limit
        if len(tail) > 1:
            tail.pop(0)
        else:
            # An escaped character has up to six bytes, so this may cut more than necessary.
            tail[0] = tail[0][min(excess, len(tail[0])) :]
            if not tail[0]:
                tail.clear()
        encoded = _encode_termination(document)
    while len(encoded) > limit and failure and failure["message"]:
        failure["message"] = failure["message"][: -max(1, len(encoded) - limit)]
        encoded = _encode_termination(document)
    if len(encoded) > limit and document.pop("progress", None):
        encoded = _encode_termination(document)
    return encoded


def _encode_termination(document: dict[str, Any]) -> bytes:
    return json.dumps(document, separators=(",", ":"), ensure_ascii=False).encode("utf-8", "replace")


def write_termination_message(where: TerminationPath, message: bytes) -> None:
    """Write `message` to the pod's termination message. Log a failure as a warning if `where.required` is True."""
    try:
        if where.required or where.path.exists():
            where.path.write_bytes(message)
    except OSError as exc:
        if where.required:
            log.warning("cannot write the termination message to %s: %s", where.path, exc)
