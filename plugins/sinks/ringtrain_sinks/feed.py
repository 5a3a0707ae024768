"""Feed of a sink: read an attempt's reports from its log folder, once or while they grow, and send them.

A launcher starts one process for each sink, and waits for it only after the end of the attempt, for some seconds.
"""

import logging
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

from ringtrain.errors import quoted
from ringtrain.shared import contract
from ringtrain.shared.masking import without_secrets
from ringtrain.shared.processes import end_child, start_child
from ringtrain_job.launcher.observers import AttemptObserver
from ringtrain_job.launcher.outcome import read_outcome
from ringtrain_job.launcher.registry import Attempt
from ringtrain_job.logs.about import read_run_description
from ringtrain_job.logs.events import KUBERNETES, read_log_events
from ringtrain_job.logs.layout import AttemptFiles
from ringtrain_job.logs.reading import follow_log
from ringtrain_job.logs.reports import report_rows
from ringtrain_sinks.base import Sink, SinkAttempt, check_sink

log = logging.getLogger(__name__)

# Interval of sending, and the longer interval after a failure of the service.
_EVERY_S: Final = 1.0
_AGAIN_S: Final = 5.0
# Seconds to retry sending the end of an attempt.
END_S: Final = 10.0
# Additional seconds for a sink's end: importing its package may take seconds.
_MARGIN_S: Final = 5.0
# Characters of an error of a service's library.
_MOST_SAID: Final = 200


def sink_attempt_of(files: AttemptFiles, ranks: int = 0) -> SinkAttempt:
    """Return a description of the attempt in `files` for a sink. `ranks`: world size; 0: read it from the outcome."""
    own = (event["time"] for event in read_log_events(files) if event.get("source") != KUBERNETES)
    job = files.directory.parent
    known = ranks or (read_outcome(files) or {}).get("worldSize") or 0
    return SinkAttempt(job.parent.name, job.name, files.number, files.directory, next(own, 0.0), known)


class SinkFeed:
    """Reader that passes the reports in `files` to `sink`. `name`: the sink's name for messages."""

    def __init__(self, name: str, sink: Sink, files: AttemptFiles) -> None:
        self._name = name
        self._sink = sink
        self._files = files
        self._next = 0.0
        self._problem = ""

    def run(self, is_over: Callable[[], bool]) -> str:
        """Feed the sink until `is_over()` is true and all is sent; return "" or the reason why data was not sent."""
        for rows in report_rows(follow_log(self._files.metrics, 0, is_over)):
            for rank, report in rows:
                self._sink.report(rank, report)
            if time.monotonic() >= self._next:
                self._try(lambda: self._sink.flush(read_run_description(self._files)))
        return self._end()

    def _end(self) -> str:
        outcome = read_outcome(self._files) or {}
        failure = (outcome.get("failure") or {}).get("message") or ""

        def end_sink() -> None:
            self._sink.flush(read_run_description(self._files))
            self._sink.end(outcome.get("outcome") or "Unknown", failure)

        deadline = time.monotonic() + END_S
        while not self._try(end_sink):
            if time.monotonic() + _EVERY_S > deadline:
                return (
                    f"{self._name}: {self._sink.pending} points and the end of the run were not sent: {self._problem}"
                )
            time.sleep(_EVERY_S)
        return ""

    def _try(self, send: Callable[[], None]) -> bool:
        """Call `send`; return whether it succeeded. Log the first of consecutive failures, and the recovery."""
        try:
            send()
        except Exception as exc:  # any error of the service's library: it must not affect training
            first = f"{type(exc).__name__}: {str(exc).strip()}".splitlines()[0]
            problem = without_secrets(first)[:_MOST_SAID]  # a server's address may contain a password
            if not self._problem:
                log.warning(
                    "sink %s: cannot send reports (%s); training continues, and sending is retried", self._name, problem
                )
            self._problem = problem
            self._next = time.monotonic() + _AGAIN_S
            return False
        if self._problem:
            log.info("sink %s: sending reports works again", self._name)
        self._problem = ""
        self._next = time.monotonic() + _EVERY_S
        return True


def is_sink_attempt_ended(files: AttemptFiles) -> bool:
    """Return whether the launcher has written the attempt's outcome."""
    return Path(files.outcome).exists()


class SinkProcesses(AttemptObserver):
    """Observer that starts a process for each sink in `names`. Call `close` after the outcome is written."""

    def __init__(self, names: Sequence[str], files: AttemptFiles, ranks: int, env: Mapping[str, str]) -> None:
        self._files = files
        # Without the job's own variables: its tokens are of no use there.
        inherited = {name: value for name, value in env.items() if not name.startswith("RINGTRAIN_")}
        self._processes = {name: self._start(name, ranks, inherited) for name in names}

    def _start(self, name: str, ranks: int, env: dict[str, str]) -> "subprocess.Popen[bytes]":
        words = ["export", str(self._files.directory), "--to", name, "--follow", "--ranks", str(ranks)]
        return start_child([sys.executable, "-m", "ringtrain", *words], env, stdout=subprocess.DEVNULL)

    def close(self) -> None:
        """Wait some seconds until the sinks have sent the outcome; do not wait if the attempt has none yet."""
        deadline = time.monotonic() + (END_S + _MARGIN_S if is_sink_attempt_ended(self._files) else 0.0)
        for name, process in self._processes.items():
            if not end_child(process, max(0.0, deadline - time.monotonic())) and is_sink_attempt_ended(self._files):
                log.warning("the sink %s did not send the end of the run within its deadline", name)


def open_sinks(attempt: Attempt) -> SinkProcesses | None:
    """Return the launcher's observer that feeds the job's sinks; None if none is configured. Raises ConfigurationError
    for an unknown sink."""
    names = attempt.config.sinks
    for name in names:
        check_sink(name, f"{contract.ENV_SINKS}={quoted(','.join(names))}")
    if not names or attempt.is_over:
        return None
    return SinkProcesses(names, attempt.files, attempt.config.world_size, os.environ)
