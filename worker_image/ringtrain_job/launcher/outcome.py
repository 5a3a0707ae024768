"""Outcome of an attempt, stored with its logs for a launcher that restarts."""

import json
import logging
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any, Final

from ringtrain.errors import ConfigurationError
from ringtrain.shared import contract
from ringtrain_job.control.model import Failure, Outcome, Verdict, reason_of
from ringtrain_job.control.termination import fit_termination_message, termination_message, write_termination_message
from ringtrain_job.launcher.config import LauncherConfig
from ringtrain_job.logs.fields import (
    MOST_WHOLE,
    Check,
    checked_fields,
    complete_fields,
    finite_number,
    finite_numbers,
    not_finite_word,
    number_to,
    plain_text,
    printable_text,
    rank_number,
    read_json,
    whole_number,
    world_size,
)
from ringtrain_job.logs.layout import AttemptFiles, replace_whole
from ringtrain_job.logs.store import LogStore

log = logging.getLogger(__name__)


def write_outcome(files: AttemptFiles, verdict: Verdict, message: bytes) -> None:
    """Store the outcome of this attempt, so that a restarted launcher reports it again."""
    if files.is_deleted:
        return
    document = {"exitCode": verdict.exit_code, "message": json.loads(message)}
    try:
        replace_whole(files.outcome, json.dumps(document))
    except OSError as exc:  # a full disk does not change how the attempt ended
        log.error("cannot store the attempt's outcome (a restarted launcher will not know it): %s", exc)


def read_outcome(files: AttemptFiles) -> dict[str, Any] | None:
    """Return the fields of the stored outcome that lists and pages show, None for invalid ones; None if the launcher
    has not written an outcome, or its file is invalid."""
    document = read_json(files.outcome)
    found = checked_fields(document.get("message"), _OUTCOME) if isinstance(document, dict) else None
    return found if found is not None and found.get("outcome") else None


def _outcome_word(value: object) -> str | None:
    return next((outcome.value for outcome in Outcome if outcome == value), None)


def _texts(value: object) -> list[str] | None:
    return [plain_text(line) or "" for line in value] if isinstance(value, list) else None


def _whole_numbers(value: object) -> list[int | None] | None:
    return [whole_number(count) for count in value] if isinstance(value, list) else None


def _unit(value: object) -> str | None:
    return None if (found := plain_text(value)) is None else printable_text(found)


def _not_finite(value: object) -> dict[str, dict[str, Any]] | None:
    """Return the valid objects {value, since, rank}, by name of the metric."""
    if not isinstance(value, dict):
        return None
    each = ((printable_text(name), complete_fields(inner, _NOT_FINITE)) for name, inner in value.items())
    return {name: found for name, found in each if found is not None}


_NOT_FINITE: Final[Mapping[str, Check]] = {"value": not_finite_word, "since": whole_number, "rank": rank_number}
_FAILURE: Final[Mapping[str, Check]] = {
    **dict.fromkeys(("pod", "podUid", "node", "signal", "reason", "message"), plain_text),
    "rank": rank_number,
    "exitCode": whole_number,
    "logTail": _texts,
}
_PROGRESS: Final[Mapping[str, Check]] = {
    **dict.fromkeys(("step", "totalSteps", "epoch"), whole_number),
    **dict.fromkeys(("samplesPerSecond", "samplesPerSecondError", "samples"), partial(number_to, MOST_WHOLE)),
    "unit": _unit,
    "loss": finite_number,
    "notFinite": _not_finite,
    "metrics": finite_numbers,
    "startedFrom": plain_text,
}
_OUTCOME: Final[Mapping[str, Check]] = {
    "outcome": _outcome_word,
    "worldSize": world_size,
    "failure": partial(checked_fields, checks=_FAILURE),
    "warning": plain_text,
    "progress": partial(checked_fields, checks=_PROGRESS),
    "rankLogLines": _whole_numbers,
}


def write_refusal(config: LauncherConfig, files: AttemptFiles, error: ConfigurationError) -> None:
    """Store that this attempt failed because its launcher refused its configuration, before any rank started."""
    verdict = Verdict(Outcome.FAILED, contract.EXIT_BAD_CONFIGURATION, failure=Failure(reason_of(error), str(error)))
    write_outcome(files, verdict, termination_message(verdict, config.job.attempt, config.world_size))


def read_verdict(files: AttemptFiles) -> Verdict:
    """Return the stored outcome and exit code of the attempt."""
    document = json.loads(files.outcome.read_text())
    return Verdict(Outcome(document["message"]["outcome"]), int(document["exitCode"]))


def repeat_outcome(config: LauncherConfig, files: AttemptFiles, unfinished: Mapping[str, Any] | None = None) -> None:
    """Write the stored termination message of an ended attempt once more. `unfinished`: entries to add to it."""
    document = json.loads(files.outcome.read_text())
    write_termination_message(config.termination, fit_termination_message(document["message"], unfinished))
    log.info("attempt %d has already ended: %s", config.job.attempt, document["message"]["outcome"])


def with_refused_lines(verdict: Verdict, store: LogStore) -> Verdict:
    """Return the verdict; after a success, add a warning if log lines could not be stored."""
    if verdict.outcome is not Outcome.SUCCEEDED or not store.refused:
        return verdict
    warning = (
        f"some of the last lines of ranks could not be written to {store.files.directory} "
        f"({store.refused}); their workers print them"
    )
    log.info("warning: %s", warning)
    return replace(verdict, warning="; ".join(filter(None, [verdict.warning, warning])))
