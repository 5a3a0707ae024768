"""Observer that copies the ranks' timeline to the attempt's logs, because the next run overwrites it."""

import logging
import os
import shutil
from pathlib import Path

from ringtrain_job.control.model import Verdict
from ringtrain_job.launcher.observers import AttemptObserver
from ringtrain_job.launcher.registry import Attempt

log = logging.getLogger(__name__)


class TimelineCopy(AttemptObserver):
    """Observer that links or copies the timeline file into the log folder at the end."""

    order = 40

    def __init__(self, attempt: Attempt, timeline: Path) -> None:
        self._timeline, self._files = timeline, attempt.files

    def ended(self, verdict: Verdict | None) -> None:
        if verdict is None or not self._timeline.is_file() or self._files.timeline.exists():
            return
        try:
            os.link(self._timeline, self._files.timeline)
        except OSError:  # another file system
            try:
                shutil.copyfile(self._timeline, self._files.timeline)
            except OSError as exc:
                log.error("cannot copy the timeline %s to %s: %s", self._timeline, self._files.timeline, exc)


def open_timeline(attempt: Attempt) -> TimelineCopy | None:
    """Return the observer that copies the ranks' timeline; None if the ranks do not write one or the attempt is
    over."""
    timeline = attempt.config.timeline
    return None if timeline is None or attempt.is_over else TimelineCopy(attempt, timeline)
