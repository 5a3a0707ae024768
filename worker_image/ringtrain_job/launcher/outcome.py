"""How an attempt ended, kept beside its logs for a launcher that is started again."""

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
    """Leave the outcome for a launcher that is started again after this attempt is over."""
    document = {"exitCode": verdict.exit_code, "message": json.loads(message)}
    try:
        replace_whole(files.outcome, json.dumps(document))
    except OSError as exc:  # the attempt ended as it did, whether or not the disk is full
        log.error("a launcher that is started again will not know how this attempt ended: %s", exc)


def read_verdict(files: AttemptFiles) -> Verdict:
    """Return how the attempt ended, as far as that is stored: its outcome and the launcher's exit code."""
    document = json.loads(files.outcome.read_text())
    return Verdict(Outcome(document["message"]["outcome"]), int(document["exitCode"]))


def repeat_outcome(config: LauncherConfig, files: AttemptFiles, unfinished: Mapping[str, Any] | None = None) -> None:
    """Write the termination message of an attempt that is over again. `unfinished`: entries to add to it."""
    document = json.loads(files.outcome.read_text())
    write_termination_message(config.termination, fit_termination_message(document["message"], unfinished))
    log.info("attempt %d is over already: %s", config.job.attempt, document["message"]["outcome"])
