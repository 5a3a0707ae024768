"""Outcome of an attempt, stored with its logs for a launcher that restarts."""

import json
import logging
from collections.abc import Mapping
from typing import Any

from ringtrain.errors import ConfigurationError
from ringtrain.shared import contract
from ringtrain_job.control.model import Failure, Outcome, Verdict, reason_of
from ringtrain_job.control.termination import fit_termination_message, termination_message, write_termination_message
from ringtrain_job.launcher.config import LauncherConfig
from ringtrain_job.logs.layout import AttemptFiles, replace_whole

log = logging.getLogger(__name__)


def write_outcome(files: AttemptFiles, verdict: Verdict, message: bytes) -> None:
    """Store the outcome of this attempt, so that a restarted launcher reports it again."""
    document = {"exitCode": verdict.exit_code, "message": json.loads(message)}
    try:
        replace_whole(files.outcome, json.dumps(document))
    except OSError as exc:  # a full disk does not change how the attempt ended
        log.error("cannot store the attempt's outcome (a restarted launcher will not know it): %s", exc)


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
