"""Progress that scripts print: lines of a rank's log, read as reports where nobody calls `ringtrain.report`.

A report that was read has `printed`: the number of its series. Where another loop proves to be the one that
trains, its reports are the next series of the rank.
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

# Keras draws a bar of coloured characters and takes it back with backspaces; what is left is a line for people.
_MOST_BYTES: Final = 4096
_MOST_CHARACTERS: Final = 1000
# Every line that is understood without a rule holds one of these: images/sec, 12ms/step, [.. 9it/s], [.. 2s/it].
_MARKS: Final = (b"/sec", b"/step", b"/s,", b"/s]", b"/it", b"Epoch ")
# Seconds for reading lines: so many at once, and so many each second. The thread reads ranks' pipes besides.
_SECONDS_AT_ONCE, _SECONDS_PER_S = 0.5, 0.1
# JSON's numbers are whole up to here.
_MOST: Final = 2**53
# Keys of report lines that are about something else than a step.
_NO_STEP: Final = (b'"startedFrom"', b'"about"')
# So many reports a second of a script that prints faster, after so many at once. Skipped ones are no loss: steps
# count on.
_REPORTS_PER_S, _REPORTS_AT_ONCE = 50.0, 1000.0
_DRESS: Final = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|\x08")


class _PrintedLines:
    """One rank's lines, as reports. Of several forms the first that reads one counts until one before it does."""

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
        """The report that the line is, if it is one and there is room for it."""
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
        if self._says_nothing_new(found, step):
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
        if found.sums_up:  # it adds to what was said of that step
            metrics = {**self._last.get("metrics", {}), **finite}
            return {**self._last, **told, "metrics": metrics}
        self._last_line, self._last = (step, now), {name: told[name] for name in told if name != "samples"}
        return told

    def _says_nothing_new(self, found: PrintedProgress, step: int) -> bool:
        """Whether it is the same step again, which is not the last: tqdm draws a bar for a new loss, and counts on
        later."""
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
    """Reads what the ranks of one agent print. `rule`: a user's regular expression in place of the known forms, or
    `none`; empty: the known forms. `ranks`: of the world.

    The lowest rank that prints progress speaks for the others; `elastic`: until it is gone. Where ranks print more
    than can be read in a tenth of the time, lines are left out. Needs no lock: what threads do at the same time is
    about different ranks.
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
        self._forms()  # raises ConfigurationError for a rule that is none

    def _forms(self) -> list[PrintedLineForm]:
        if self._rule == NONE:
            return []
        return (
            [UserLineForm(self._rule)]
            if self._rule
            else [KerasLineForm(), BenchmarkLineForm(self._ranks), TqdmLineForm()]
        )

    def see_reports(self, data: bytes) -> None:
        """Lines that a rank reports by itself: once one is of a step, what is printed does not count any more."""
        if self._reads and any(
            b'"time"' in line and not any(other in line for other in _NO_STEP) for line in data.split(b"\n")
        ):
            self._reads = False

    def ended(self, rank: int) -> None:
        """The rank prints no more; another one of its number begins anew."""
        self._lines.pop(rank, None)
        if self._elastic and self._speaker == rank:
            self._speaker = None

    def read(self, rank: int, data: bytes) -> bytes:
        """The report lines that whole lines of a rank's log are; empty where none is one."""
        if not self._reads or (self._speaker is not None and rank > self._speaker):
            return b""
        now, began = time.perf_counter(), time.thread_time()  # waiting for a processor costs nobody anything
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
    """Whose reports count: those that ranks make; before the first of them those that were read from lines, of the
    lowest rank and of its newest series."""

    def __init__(self) -> None:
        self._best: tuple[int, ...] | None = None
        self._heard = False

    def keep(self, ranks: Collection[int]) -> None:
        """Who is none of these has nothing more to say: another rank may speak."""
        if self._best is not None and len(self._best) > 1 and self._best[1] not in ranks:
            self._best = None

    def hear(self, rank: int, report: Mapping[str, Any]) -> tuple[bool, bool]:
        """Whether this report counts, and whether it is the first that does: those before it do not."""
        series = report.get("printed")
        place = (0,) if series is None else (1, rank, -int(series))
        best = self._best
        if best is not None and place > best:
            return False, False
        first = not self._heard or (best is not None and place < best)
        self._best, self._heard = place, True
        return True, first
