"""How an attempt ended, kept beside its logs for a launcher that is started again."""

import json
import logging
import os
import shutil
from pathlib import Path

from ringtrain_job.control.model import Verdict
from ringtrain_job.control.termination import fit_termination_message, write_termination_message
from ringtrain_job.launcher.config import LauncherConfig
from ringtrain_job.logs.layout import AttemptFiles, replace_whole
from ringtrain_job.logs.shipping import Unshipped
from ringtrain_job.page.metrics import PageMetrics
from ringtrain_job.page.summary import write_report

log = logging.getLogger(__name__)


def write_outcome(files: AttemptFiles, verdict: Verdict, message: bytes) -> None:
    """Leave the outcome for a launcher that is started again after this attempt is over."""
    document = {"exitCode": verdict.exit_code, "message": json.loads(message)}
    try:
        replace_whole(files.outcome, json.dumps(document))
    except OSError as exc:  # the attempt ended as it did, whether or not the disk is full
        log.error("a launcher that is started again will not know how this attempt ended: %s", exc)


def keep_timeline(files: AttemptFiles, timeline: Path | None) -> None:
    """Have the ranks' timeline beside the attempt's logs, too: the next run takes its name."""
    if timeline is None or not timeline.is_file() or files.timeline.exists():
        return
    try:
        os.link(timeline, files.timeline)
    except OSError:  # another file system
        try:
            shutil.copyfile(timeline, files.timeline)
        except OSError as exc:
            log.error("%s could not be copied to %s: %s", timeline, files.timeline, exc)


def leave_report(files: AttemptFiles, metrics: PageMetrics | None = None) -> None:
    """Write the attempt as a page beside its logs; a full disk changes nothing of how the attempt ended."""
    try:
        write_report(files, metrics)
    except OSError as exc:
        log.error("%s could not be written: %s", files.report, exc)
    else:
        log.info("the attempt as a page: %s", files.report)


def repeat_outcome(config: LauncherConfig, files: AttemptFiles, unshipped: Unshipped | None = None) -> int:
    """Say again how this attempt ended, in the termination message; returns the exit code.

    `unshipped`: what of its logs is still not in the object store.
    """
    document = json.loads(files.outcome.read_text())
    message = fit_termination_message(document["message"], unshipped.document() if unshipped else None)
    write_termination_message(config.termination, message)
    if config.writes_report and not files.report.exists():
        leave_report(files)
    log.info("attempt %d is over already: %s", config.job.attempt, document["message"]["outcome"])
    return int(document["exitCode"])
