"""Display of a job for a pipe or file: a line for each change, and at intervals the progress."""

import time
from collections.abc import Callable
from typing import TextIO

from .driver import JobView
from .past_runs import PastLocalRunTail
from .wording import job_name, local_state_reason, progress_numbers, progress_of, shown_state

# Longest pause between two lines about progress only. The pauses grow from one second, as those of `ringtrain run`.
LONGEST_PAUSE_S = 60.0


class PlainLocalDisplay:
    """Display that writes a line to `out` for each change. `tail`: output of ranks to write, too."""

    def __init__(self, out: TextIO, tail: PastLocalRunTail | None, clock: Callable[[], float] = time.monotonic) -> None:
        self._out = out
        self._clock = clock
        self._tail = tail
        self._shown_state = ("", "")
        self._step: object = None
        self._next_progress = 0.0
        self._pause_s = 1.0

    def show(self, view: JobView) -> None:
        """Write what has changed in the job since the last call."""
        for event in view.events:
            if event.reason == "ChangeRefused":  # other events also change the state
                self._line(f"{event.reason}: {event.message}")
        now = (shown_state(view.status.state, view.status.reason), local_state_reason(view.status))
        if now != self._shown_state and not view.status.finished:  # the summary shows the end
            self._shown_state = now
            attempt = "" if now[1].startswith("attempt ") else f" (attempt {view.status.attempt})"
            self._line(f"{job_name(view)} {now[0]}{attempt}: {now[1]}")
        for line in self._tail.lines(view.status.attempt) if self._tail is not None else ():
            self._line(line)
        self._show_progress(view)

    def _show_progress(self, view: JobView) -> None:
        progress = progress_of(view)
        if not progress or progress.get("step") == self._step or self._clock() < self._next_progress:
            return
        self._step = progress.get("step")
        self._next_progress = self._clock() + self._pause_s
        self._pause_s = min(LONGEST_PAUSE_S, 2 * self._pause_s)
        total = progress.get("totalSteps")
        steps = f"step {self._step}/{total}" if total else f"step {self._step}"
        self._line(", ".join([steps, *(f"{label} {text}" for label, text in progress_numbers(progress))]))

    def _line(self, text: str) -> None:
        self._out.write(text + "\n")
        self._out.flush()
