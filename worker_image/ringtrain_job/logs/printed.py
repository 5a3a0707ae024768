"""Reports extracted from printed progress lines, for programs that do not call `ringtrain.report`.

A parsed report has the field `printed`, the number of its series. If another loop turns out to be the training loop,
its reports form the rank's next series.
"""

import json
import math
import re
import time
from collections.abc import Callable, Collection, Mapping
from typing import Any, Final

from ringtrain_job.logs.metrics_rule import NONE
from ringtrain_job.logs.printed_forms import (
    BenchmarkLineForm,
    KerasLineForm,
    PrintedLineForm,
    PrintedProgress,
    TqdmLineForm,
    UserLineForm,
)

# Keras draws a bar with colours and backspaces; _DRESS removes them.
_MOST_BYTES: Final = 4096
_MOST_CHARACTERS: Final = 1000
# Each line that is parsed without a rule contains one of these: images/sec, 12ms/step, [.. 9it/s], [.. 2s/it].
_MARKS: Final = (b"/sec", b"/step", b"/s,", b"/s]", b"/it", b"Epoch ")
# Token bucket for parsing time, in seconds: its size, and its refill per second. The same thread reads ranks' pipes.
_SECONDS_AT_ONCE, _SECONDS_PER_S = 0.5, 0.1
# Largest integer that JSON numbers represent exactly.
_MOST: Final = 2**53
# Keys of report lines that do not describe a step.
_NO_STEP: Final = (b'"startedFrom"', b'"about"')
# Token bucket for reports: refill per second, and its size, for scripts that print faster. Skipped reports lose
# nothing, because step numbers continue.
_REPORTS_PER_S, _REPORTS_AT_ONCE = 50.0, 1000.0
_DRESS: Final = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|\x08")


class _PrintedLines:
    """Parser of one rank's lines. It uses the first format that matches, until a format of higher priority does."""

    def __init__(self, forms: list[PrintedLineForm]) -> None:
        self._forms = forms
        self._series = 1
        self._step: int | None = None
        self._last_line: tuple[int, float] | None = None
        self._last: dict[str, Any] = {}
        self._skipped = 0.0
        self._room, self._room_at = _REPORTS_AT_ONCE, -math.inf
        self.found = False

    def read(self, line: str, now: float) -> dict[str, Any] | None:
        """Return the report that `line` contains; None if it has none, or the rank prints too often."""
        said = ((form, found) for form in self._forms if (found := form.read(line)) is not None)
        form, found = next(said, (None, None))
        if form is None or found is None:
            return None
        if self.found and (found.anew or form is not self._forms[-1]):
            self._series, self._step, self._last_line, self._last = self._series + 1, None, None, {}
        self._forms = self._forms[: self._forms.index(form) + 1]
        self.found = True
        return self._report(found, now)

    def _report(self, found: PrintedProgress, now: float) -> dict[str, Any] | None:
        before = self._step or 0
        step = found.step if found.step is not None else before if found.sums_up else before + 1
        if max(step, found.total or 0, found.epoch or 0) > _MOST:
            return None
        if self._repeats(found, step):
            return None
        self._step = step
        self._skipped += found.samples or 0.0
        self._room = min(_REPORTS_AT_ONCE, self._room + (now - self._room_at) * _REPORTS_PER_S)
        self._room_at = now
        if self._room < 1 and not found.sums_up and step != found.total:
            return None
        self._room -= 1
        skipped, self._skipped = self._skipped, 0.0
        finite = {name: value for name, value in found.values.items() if math.isfinite(value)}
        words = {name: _report_word_printed(value) for name, value in found.values.items() if not math.isfinite(value)}
        report = {
            "step": step,
            "totalSteps": found.total,
            "epoch": found.epoch,
            "samples": None if found.sums_up else self._samples(found, skipped, step, now),
            "unit": found.unit or None,
            "loss": finite.pop("loss", None),
            "metrics": finite or None,
            "notFinite": words or None,
            "time": now,
            "printed": self._series,
        }
        told = {name: value for name, value in report.items() if value is not None}
        if found.sums_up:  # it adds to the report of that step
            metrics = {**self._last.get("metrics", {}), **finite}
            return {**self._last, **told, "metrics": metrics}
        self._last_line, self._last = (step, now), {name: told[name] for name in told if name != "samples"}
        return told

    def _repeats(self, found: PrintedProgress, step: int) -> bool:
        """Return whether a line repeats a step other than the last without new values, as tqdm does on a redraw."""
        said = {"loss", *self._last.get("metrics", ()), *self._last.get("notFinite", ())}
        again = self._last_line is not None and found.step is not None and step == self._last_line[0] != found.total
        return again and set(found.values) <= said

    def _samples(self, found: PrintedProgress, counted: float, step: int, now: float) -> float | None:
        if found.samples is not None:
            return counted
        if self._last_line is None:
            return None
        step_before, time_before = self._last_line
        return found.rate * (now - time_before) if found.rate is not None else float(max(0, step - step_before))


def _report_word_printed(value: float) -> str:
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"


class PrintedReports:
    """Parser that turns progress lines of one agent's ranks into reports.

    `rule`: a user's regular expression that replaces the known forms of lines; `none`: no lines are parsed; empty: the
    known forms are parsed. `ranks`: size of the world. The lowest rank that prints progress represents the others. If
    `elastic` is True, another rank does so after its end. If ranks print more than can be parsed in a tenth of the
    time, lines are skipped. No lock is needed, because concurrent calls are about different ranks.
    """

    def __init__(self, rule: str, ranks: int, *, elastic: bool = False, clock: Callable[[], float] = time.time) -> None:
        self._rule = rule
        self._ranks = ranks
        self._elastic = elastic
        self._clock = clock
        self._lines: dict[int, _PrintedLines] = {}
        self._speaker: int | None = None
        self._reads = rule != NONE
        self._left_s, self._left_at = _SECONDS_AT_ONCE, time.perf_counter()
        self._forms()  # raises ConfigurationError for an invalid rule

    def _forms(self) -> list[PrintedLineForm]:
        if self._rule == NONE:
            return []
        return (
            [UserLineForm(self._rule)]
            if self._rule
            else [KerasLineForm(), BenchmarkLineForm(self._ranks), TqdmLineForm()]
        )

    def see_reports(self, data: bytes) -> None:
        """Stop parsing printed lines if `data` contains a report of a step that the rank itself has sent."""
        if self._reads and any(
            b'"time"' in line and not any(other in line for other in _NO_STEP) for line in data.split(b"\n")
        ):
            self._reads = False

    def ended(self, rank: int) -> None:
        """Reset the parser of `rank`, which has ended."""
        self._lines.pop(rank, None)
        if self._elastic and self._speaker == rank:
            self._speaker = None

    def read(self, rank: int, data: bytes) -> bytes:
        """Return report lines (JSON) for the progress lines in `data`, whole lines of a rank's log; empty if none."""
        if not self._reads or (self._speaker is not None and rank > self._speaker):
            return b""
        now, began = time.perf_counter(), time.thread_time()  # thread time: waiting for a processor does not count
        self._left_s = min(_SECONDS_AT_ONCE, self._left_s + (now - self._left_at) * _SECONDS_PER_S)
        self._left_at = now
        if self._left_s <= 0:
            return b""
        reports = self._reports(rank, data)
        self._left_s -= time.thread_time() - began
        return reports

    def _reports(self, rank: int, data: bytes) -> bytes:
        if not (self._rule or _is_report_line(data)):
            return b""
        lines, now = self._lines.setdefault(rank, _PrintedLines(self._forms())), self._clock()
        reports = []
        for raw in data.replace(b"\r", b"\n").split(b"\n"):
            if not raw or len(raw) > _MOST_BYTES or not (self._rule or _is_report_line(raw)):
                continue
            line = _DRESS.sub("", raw.decode(errors="replace"))
            if len(line) <= _MOST_CHARACTERS and (report := lines.read(line, now)) is not None:
                reports.append(report)
        if lines.found:
            self._speaker = rank
        return b"".join(json.dumps(report).encode() + b"\n" for report in reports)


def _is_report_line(data: bytes) -> bool:
    return any(mark in data for mark in _MARKS)


class PrintedReportsChoice:
    """Choice of the reports to use. Reports that ranks send themselves take precedence.

    If there are none, reports extracted from printed lines are used: those of the lowest rank's newest series of lines.
    """

    def __init__(self) -> None:
        self._best: tuple[int, ...] | None = None
        self._heard = False

    def keep(self, ranks: Collection[int]) -> None:
        """If the rank whose printed lines are used is not in `ranks`, let `choose` select another rank."""
        if self._best is not None and len(self._best) > 1 and self._best[1] not in ranks:
            self._best = None

    def choose(self, rank: int, report: Mapping[str, Any]) -> tuple[bool, bool]:
        """Choose whether to use `report` of `rank`. Return two values: whether to use it, and whether to discard all
        earlier reports."""
        series = report.get("printed")
        place = (0,) if series is None else (1, rank, -int(series))
        best = self._best
        if best is not None and place > best:
            return False, False
        first = not self._heard or (best is not None and place < best)
        self._best, self._heard = place, True
        return True, first
