"""Display for pipes and files: a line for each change, and now and then the progress."""

import time
from typing import TextIO

from .driver import JobView
from .past_runs import PastLocalRunTail
from .wording import job_name, local_state_reason, progress_numbers, progress_of

# Pause between two lines about progress only.
PROGRESS_INTERVAL_S = 5.0


class PlainLocalDisplay:
    """Writes lines to `out`. `tail`: output of ranks to write in addition."""

    def __init__(self, out: TextIO, tail: PastLocalRunTail | None) -> None:
        self._out = out
        self._tail = tail
        self._shown_state = ("", "")
        self._step: object = None
        self._next_progress = 0.0

    def show(self, view: JobView) -> None:
        """Write the changes since the last call."""
        for event in view.events:
            if event.reason == "ChangeRefused":  # other events also change the state
                self._line(f"{event.reason}: {event.message}")
        now = (str(view.status.state), local_state_reason(view.status))
        if now != self._shown_state and not view.status.finished:  # the summary shows the end
            self._shown_state = now
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
        self._line(", ".join([steps, *(f"{label} {text}" for label, text in progress_numbers(progress))]))

    def _line(self, text: str) -> None:
        self._out.write(text + "\n")
        self._out.flush()
