"""Export to OpenTelemetry over OTLP: the attempt, its ranks and steps as spans, ranks' lines as log records.

All data goes to the SDK's bounded queues, and the SDK's threads send it (OTEL_* variables configure receiver and
limits). Records that the receiver did not accept are counted and logged at the end of the attempt.
"""

import logging
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any, Final

from ringtrain.errors import ConfigurationError
from ringtrain.shared import contract
from ringtrain_job.control.model import JobIdentity, RankPhase, RankState, Verdict
from ringtrain_job.launcher.observers import AttemptObserver
from ringtrain_job.launcher.registry import Attempt
from ringtrain_job.launcher.verdict import GangView
from ringtrain_job.logs.records import rank_of_line

log = logging.getLogger(__name__)

# Shortest interval between two step spans of a rank.
_STEP_EVERY_S: Final = 1.0
# Seconds that the end of an attempt waits for the receiver.
_CLOSE_S: Final = 5.0
_ENDED: Final = (RankPhase.SUCCEEDED, RankPhase.FAILED, RankPhase.STOPPED)


class OtlpTelemetry(AttemptObserver):
    """Observer that exports spans of ranks and steps, and log lines. Only `close` may block, for some seconds."""

    def __init__(self, signals: tuple[str, ...], job: JobIdentity, view: Callable[[], GangView]) -> None:
        """Open the exporters. `view`: returns the launcher's current view of all ranks. Raises ConfigurationError if
        the SDK is missing."""
        self._view = view
        try:
            from ringtrain_sinks import otlp
        except ImportError as exc:
            raise ConfigurationError(
                f"{contract.ENV_OTEL}={','.join(signals)} needs OpenTelemetry's SDK where the launcher runs "
                f"({exc}): pip install 'ringtrain[otel]'"
            ) from exc
        resource = otlp.otlp_resource(
            {
                "ringtrain.job.namespace": job.namespace,
                "ringtrain.job.name": job.name,
                "ringtrain.job.uid": job.uid,
                "ringtrain.attempt": job.attempt,
            }
        )
        self._spans = otlp.OtlpSpans(resource) if "traces" in signals else None
        self._lines = otlp.OtlpLogLines(resource) if "logs" in signals else None
        self._attempt: Any = self._spans.start(f"attempt {job.attempt}", None, {}) if self._spans else None
        self._over: set[tuple[int, int]] = set()  # rank and life
        self._ranks: dict[int, tuple[int, Any]] = {}
        self._reported: dict[int, tuple[int, float]] = {}
        self._shown: dict[int, float] = {}

    def wrote(self, lines: bytes) -> None:
        if self._lines is None:
            return
        for line in lines.splitlines():
            rank = rank_of_line(line)
            text = line.partition(b" ")[2] if rank is not None else line
            span = self._ranks.get(-1 if rank is None else rank, (0, self._attempt))[1]
            where = {} if rank is None else {"ringtrain.rank": rank}
            self._lines.emit(text.decode("utf-8", "replace"), where, span)

    def reported(self, rank: int, report: Mapping[str, Any]) -> None:
        """Send a span from the rank's previous report to `report`, at most one per second and rank."""
        if self._spans is None or report.get("startedFrom") is not None:
            return
        step, now = int(report["step"]), float(report["time"])
        before, self._reported[rank] = self._reported.get(rank), (step, now)
        if before is None or now <= before[1] or now - self._shown.get(rank, 0.0) < _STEP_EVERY_S:
            return
        self._shown[rank] = now
        numbers = {name: report[name] for name in ("loss", "samples", "epoch") if report.get(name) is not None}
        about = {"ringtrain.rank": rank, "ringtrain.step": step, "ringtrain.steps": step - before[0]}
        about |= {f"ringtrain.{name}": value for name, value in numbers.items()}
        parent = self._ranks.get(rank, (0, self._attempt))[1]
        self._spans.start(f"step {step}", parent, about, before[1]).end(int(now * 1e9))

    def changed(self, view: GangView) -> None:
        """Begin spans of ranks that have started, and end spans of ranks that have ended."""
        if self._spans is None:
            return
        for state in view.ranks:
            known = self._ranks.get(state.rank)
            if known is not None and (known[0] != state.life or state.phase in _ENDED):
                self._end_rank(state, known[1])
            begun = state.phase is RankPhase.RUNNING or (state.phase in _ENDED and state.exit_code is not None)
            if begun and state.rank not in self._ranks and (state.rank, state.life) not in self._over:
                about = {"ringtrain.rank": state.rank, "ringtrain.life": state.life}
                span = self._spans.start(f"rank {state.rank}", self._attempt, about)
                self._ranks[state.rank] = (state.life, span)
                if state.phase in _ENDED:  # it began and ended between two looks
                    self._end_rank(state, span)

    def _end_rank(self, state: RankState, span: Any) -> None:
        self._over.add((state.rank, self._ranks.pop(state.rank)[0]))
        if state.exit_code is not None:
            span.set_attribute("ringtrain.exit_code", state.exit_code)
        if self._spans is not None and state.phase is RankPhase.FAILED:
            self._spans.fail(span, state.message or f"rank {state.rank} failed")
        span.end()

    def ended(self, verdict: Verdict | None) -> None:
        if self._spans is None:
            return
        self.changed(self._view())
        for _, span in self._ranks.values():
            span.end()
        if verdict is not None:
            self._attempt.set_attribute("ringtrain.outcome", verdict.outcome.value)
        if verdict is not None and verdict.failure is not None:
            self._spans.fail(self._attempt, verdict.failure.message)
        self._attempt.end()

    def close(self) -> None:
        """Send remaining records for at most some seconds; log how many the receiver did not accept."""
        deadline = time.monotonic() + _CLOSE_S
        parts = {name: part for name, part in (("spans", self._spans), ("lines", self._lines)) if part}
        closing = [threading.Thread(target=part.close, daemon=True) for part in parts.values()]
        for thread in closing:
            thread.start()
        for thread in closing:
            thread.join(max(0.0, deadline - time.monotonic()))
        for name, part in parts.items():
            if part.lost:
                text = "OpenTelemetry: %d of %d %s were not accepted by the receiver"
                log.warning(text, part.lost, part.given, name)


def open_telemetry(attempt: Attempt) -> OtlpTelemetry | None:
    """Return the launcher's observer for OpenTelemetry; None if it is not enabled or the attempt is over."""
    config = attempt.config
    if not config.otel or attempt.is_over:
        return None
    return OtlpTelemetry(config.otel, config.job, attempt.status.gang.view)
