"""The line of progress on a terminal: how far training is, how fast, and how long it will take."""

from dataclasses import dataclass
from typing import Final

from ringtrain_job.launcher.throughput import Progress, Speed, shown_loss, shown_rate, warnings
from ringtrain_job.page.runs import shown_time

# A shorter bar says nothing, a longer one no more.
_LEAST_BAR, _MOST_BAR = 10, 40
_BETWEEN: Final = "  "


@dataclass(frozen=True)
class ProgressBar:
    """`left_s`: seconds until the last step, None where that is not known."""

    progress: Progress
    speed: Speed | None
    left_s: float | None

    def line(self, columns: int) -> str:
        """`Step 40/300  13 %  [####------]  3 min left  5120.3 images/sec  loss: 0.412`, no longer than `columns`:
        what is last is left out, the bar first of all."""
        head, *others = self._parts()
        whole = head
        shown = []
        for part in others:
            if len(whole) + len(_BETWEEN) + len(part) > columns:
                break
            whole += _BETWEEN + part
            shown.append(part)
        room = columns - len(whole) - len(_BETWEEN) - len("[]")
        if self.progress.total_steps and room >= _LEAST_BAR:
            width = min(room, _MOST_BAR)
            done = width * self._percent // 100
            shown.insert(1, f"[{'#' * done}{'-' * (width - done)}]")
        return _BETWEEN.join([head, *shown])[: max(columns, 0)]

    @property
    def _percent(self) -> int:
        """Rounded down: 100 is when no step is left."""
        return min(100, 100 * self.progress.step // (self.progress.total_steps or 1))

    def _parts(self) -> list[str]:
        progress = self.progress
        if progress.total_steps:
            ending = progress.step >= progress.total_steps
            left = "" if self.left_s is None else f"{shown_time(self.left_s)} left"
            parts = [
                f"Step {progress.step}/{progress.total_steps}",
                f"{self._percent} %",
                "ending" if ending else left,
            ]
        else:
            parts = [f"Step {progress.step}"]
        parts += [f"{shown_rate(self.speed.mean)} {progress.unit}/sec"] if self.speed else []
        return [part for part in (*parts, shown_loss(progress), *warnings(progress)) if part]
