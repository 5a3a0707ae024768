"""Event log of an attempt (`events.jsonl`), which the page shows as a timeline."""

import json
import logging
import threading
import time
from collections.abc import Iterable, Mapping
from typing import Any, Final

from ringtrain.errors import counted
from ringtrain_job.logs.fields import checked_fields, complete_fields, parse_json, past_time, plain_text
from ringtrain_job.logs.layout import AttemptFiles
from ringtrain_job.logs.reading import read_log_from

log = logging.getLogger(__name__)

# Limit on events, for a world that changes continually.
_MOST: Final = 1000
_FIELDS: Final = {"time": past_time, "kind": plain_text, "text": plain_text}
# Source of the operator's events about pods, which may be older than the attempt's launcher.
KUBERNETES: Final = "Kubernetes"


class EventsFile:
    """Writer of `events.jsonl`, with one {"time", "kind", "text"} per line. Errors are not raised.

    Call `record_state` from one thread only, as often as desired; any thread may call the other methods. Events that do
    not come from the launcher also have a "source".
    """

    def __init__(self, files: AttemptFiles) -> None:
        self._files = files
        before = read_log_events(files)
        self._phase = "Running" if any(event["kind"] == "Running" for event in before) else ""
        # A launcher that continues an attempt finds a world that its predecessor has recorded.
        self._elastic: Mapping[str, Any] | None = None if before else {}
        self._count = len(before)
        self._lock = threading.Lock()
        self._heard = {_event_identity(event) for event in before if event.get("source") == KUBERNETES}
        self._kinds = {event["kind"] for event in before}
        self._record_event("Launcher", "the launcher was restarted" if before else "the launcher started")

    def record_state(self, phase: str, backend: Mapping[str, Any], why: str = "") -> None:
        """Record an event for each change: phase, lost rank, generation, recovery. `why`: reason of a failure."""
        now = backend.get("elastic", {})
        known = now if self._elastic is None else self._elastic
        if now.get("degraded") and not known.get("degraded"):
            self._record_event("Loss", "a rank was lost, or fewer ranks train than requested")
        if now.get("formation", 0) > known.get("formation", 0):
            self._record_event("Formation", f"generation {now['formation']}: {counted(now['ranks'], 'rank')}")
        if now.get("recoveries", 0) > known.get("recoveries", 0):  # once its ranks have completed the rendezvous
            took = now["lastRecoverySeconds"]
            self._record_event(
                "Recovery",
                "all ranks have completed a new rendezvous" + (f", {took:.1f} s after the loss" if took else ""),
            )
        if phase not in (self._phase, "Waiting"):
            self._record_event(phase, why or {"Running": "all ranks were started"}.get(phase, ""))
            self._phase = phase
        self._elastic = now

    def record_once(self, kind: str, text: str, when: float | None = None) -> None:
        """Record an event unless an event of this kind exists. `when`: seconds since the epoch; default: now."""
        if kind not in self._kinds:
            self._record_event(kind, text, when)

    def record_pod_events(self, events: Iterable[Mapping[str, Any]]) -> None:
        """Record events about the attempt's pods that the operator has sent ({"time", "kind", "text"}), each once."""
        for event in events:
            with self._lock:
                is_new = _event_identity(event) not in self._heard
                self._heard.add(_event_identity(event))
            if is_new:
                self._record_event(event["kind"], event["text"], event["time"], source=KUBERNETES)

    def _record_event(self, kind: str, text: str, when: float | None = None, **more: str) -> None:
        event = {"time": time.time() if when is None else when, "kind": kind, "text": text, **more}
        with self._lock:
            self._count += 1
            self._kinds.add(kind)
            if self._count > _MOST and kind not in ("Succeeded", "Failed", "Stopped", "Ended"):
                return
            try:
                with self._files.events.open("a", encoding="utf-8") as file:
                    file.write(json.dumps(event) + "\n")
            except OSError as exc:  # the attempt continues even if the disk is full
                log.debug("the event %s could not be written to %s: %s", kind, self._files.events, exc)


def _event_identity(event: Mapping[str, Any]) -> tuple[Any, ...]:
    return event.get("time"), event.get("kind"), event.get("text")


def read_log_events(files: AttemptFiles) -> list[dict[str, Any]]:
    """Return the events of an attempt in order of time. Invalid lines, and events in the future, are ignored."""
    lines = b"".join(read_log_from(files.events, 0)).split(b"\n")
    found = [event for line in lines if (event := _checked_event(parse_json(line))) is not None]
    return sorted(found, key=lambda event: event["time"])


def _checked_event(value: object) -> dict[str, Any] | None:
    event, source = complete_fields(value, _FIELDS), checked_fields(value, {"source": plain_text})
    return None if event is None else {**event, **(source or {})}
