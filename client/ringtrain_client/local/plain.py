"""The display for pipes and files: a line when something changes, and now and then where training is."""

import time
from typing import TextIO

from .driver import JobView
from .past_runs import PastLocalRunTail
from .wording import job_name, local_progress_numbers, local_state_reason, progress_of

# Between two lines about progress alone.
PROGRESS_INTERVAL_S = 5.0


class PlainLocalDisplay:
    """Writes lines to `out`, each readable by itself. `tail`: ranks' output to write, too."""

    def __init__(self, out: TextIO, tail: PastLocalRunTail | None) -> None:
        self._out = out
        self._tail = tail
        self._said = ("", "")
        self._step: object = None
        self._next_progress = 0.0

    def show(self, view: JobView) -> None:
        """Say what is new."""
        for event in view.events:
            if event.reason == "ChangeRefused":  # of all others the state tells
                self._line(f"{event.reason}: {event.message}")
        now = (str(view.status.state), local_state_reason(view.status))
        if now != self._said and not view.status.finished:  # the summary tells the end
            self._said = now
            attempt = "" if now[1].startswith("attempt ") else f" (attempt {view.status.attempt})"
            self._line(f"{job_name(view)} {now[0]}{attempt}: {now[1]}")
        for line in self._tail.lines(view.status.attempt) if self._tail is not None else ():
            self._line(line)
        self._show_progress(view)

    def _show_progress(self, view: JobView) -> None:
        progress = progress_of(view)
        if not progress or progress.get("step") == self._step or time.monotonic() < self._next_progress:
            return
        self._step = progress.get("step")
        self._next_progress = time.monotonic() + PROGRESS_INTERVAL_S
        total = progress.get("totalSteps")
        steps = f"step {self._step}/{total}" if total else f"step {self._step}"
        self._line(", ".join([steps, *(f"{label} {text}" for label, text in local_progress_numbers(progress))]))

    def _line(self, text: str) -> None:
        self._out.write(text + "\n")
        self._out.flush()
