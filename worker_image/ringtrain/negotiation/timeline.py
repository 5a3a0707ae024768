"""Record when each named collective was submitted, agreed and run, as Chrome trace events (Perfetto opens
them).
"""

import json
import threading
import time
from pathlib import Path
from typing import Any

from ringtrain.negotiation.agreement import Agreed


class Timeline:
    """Off until `start`. One file a rank; `stop` writes it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._path: Path | None = None
        self._rank = 0
        self._origin_s = 0.0
        self._events: list[dict[str, Any]] = []

    def start(self, path: Path, rank: int) -> None:
        with self._lock:
            self._path, self._rank, self._events = path, rank, []
            self._origin_s = time.monotonic()

    def record(self, agreed: Agreed, submitted_s: float, started_s: float, ended_s: float) -> None:
        """`*_s`: readings of the monotonic clock."""
        if self._path is None:
            return
        kind = agreed.any_request.kind.upper()
        with self._lock:
            self._add(f"NEGOTIATE_{kind}", agreed.name, submitted_s, started_s)
            self._add(kind, agreed.name, started_s, ended_s)

    def stop(self) -> None:
        """Write the file, if recording. Raises OSError where it can't be written."""
        with self._lock:
            path, self._path = self._path, None
            if path is not None:
                path.write_text(json.dumps({"traceEvents": self._events}))

    def _add(self, phase: str, tensor: str, start_s: float, end_s: float) -> None:
        event = {"name": phase, "ph": "X", "pid": self._rank, "tid": tensor, "args": {"tensor": tensor}}
        start_us = max(0.0, start_s - self._origin_s) * 1e6
        self._events.append({**event, "ts": start_us, "dur": (end_s - self._origin_s) * 1e6 - start_us})
