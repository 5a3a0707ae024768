"""Outcome of an attempt, stored with its logs for a launcher that restarts."""

import json
import logging
from collections.abc import Mapping
from typing import Any

from ringtrain_job.control.model import Outcome, Verdict
from ringtrain_job.control.termination import fit_termination_message, write_termination_message
from ringtrain_job.launcher.config import LauncherConfig
from ringtrain_job.logs.layout import AttemptFiles, replace_whole

log = logging.getLogger(__name__)


def write_outcome(files: AttemptFiles, verdict: Verdict, message: bytes) -> None:
    """Store the outcome for a launcher that restarts after the end of this attempt."""
    document = {"exitCode": verdict.exit_code, "message": json.loads(message)}
    try:
        replace_whole(files.outcome, json.dumps(document))
    except OSError as exc:  # a full disk does not change how the attempt ended
        log.error("a launcher that is started again will not know how this attempt ended: %s", exc)


def read_verdict(files: AttemptFiles) -> Verdict:
    """Return the stored outcome and exit code of the attempt."""
    document = json.loads(files.outcome.read_text())
    return Verdict(Outcome(document["message"]["outcome"]), int(document["exitCode"]))


def repeat_outcome(config: LauncherConfig, files: AttemptFiles, unfinished: Mapping[str, Any] | None = None) -> None:
    """Write the termination message of an attempt that has already ended again. `unfinished`: entries to add to it."""
    document = json.loads(files.outcome.read_text())
    write_termination_message(config.termination, fit_termination_message(document["message"], unfinished))
    log.info("attempt %d is over already: %s", config.job.attempt, document["message"]["outcome"])
