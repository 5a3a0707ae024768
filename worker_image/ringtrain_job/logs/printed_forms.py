"""Formats of progress lines that scripts print, with a parser for each.

The forms are the lines of the TensorFlow benchmarks and of Horovod's synthetic ones, Keras' and tqdm's progress bars,
or a user's regular expression.
"""

import logging
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, Protocol

from ringtrain.errors import ConfigurationError
from ringtrain_job.logs.metrics_rule import metrics_rule_problem

log = logging.getLogger(__name__)

# A rule that takes longer for one line is disabled, because the thread that reads ranks' pipes waits for it.
_SLOW_S: Final = 0.1
_NUMBER: Final = r"[-+]?(?:\d+\.?\d*(?:[eE][-+]?\d+)?|\.\d+(?:[eE][-+]?\d+)?|nan|inf)"
_VALUES: Final = re.compile(rf"([A-Za-z_][\w./@-]*)\s?[=:]\s?({_NUMBER})(?![\w.])", re.IGNORECASE)


@dataclass(frozen=True)
class PrintedProgress:
    """Progress that one line shows. `rate`: samples per second of all ranks; if it is None, `step` counts samples.

    `step`: the step. None stands for one more than the step of the line before; for a line that only sums up
    (`sums_up`), None stands for the step of the line before. `anew`: whether the lines before this one belong to
    another loop.
    """

    step: int | None = None
    total: int | None = None
    epoch: int | None = None
    unit: str = ""
    rate: float | None = None
    samples: float | None = None
    values: Mapping[str, float] = field(default_factory=dict)
    sums_up: bool = False
    anew: bool = False


class PrintedLineForm(Protocol):
    """Interface of a parser for one format of progress lines. It has state for one rank."""

    def read(self, line: str) -> PrintedProgress | None:
        """Return the progress that `line` shows; None if it has another format or is not about training."""


class BenchmarkLineForm:
    """Parser for lines of tf_cnn_benchmarks and of Horovod's synthetic benchmarks.

    * tf_cnn_benchmarks: `10  images/sec: 57.0 +/- 0.1 (jitter = 0.3)  7.412` and `total images/sec: 227.9`
    * Horovod: `Iter #3: 12.3 img/sec per CPU`, `Img/sec per CPU: 12.3 +-0.2` and
      `Total img/sec on 4 CPU(s): 49.1 +-0.8`

    Lines other than the totals count one rank's images; the speed is `ranks` times that number.
    """

    _STEP = re.compile(
        rf"(?:(\d+)\s+)?(\w+)/sec: ({_NUMBER})(?: \+/- {_NUMBER})?(?: \(jitter = {_NUMBER}\))?"
        rf"(?:\s+({_NUMBER}))?\s*"
    )
    _ITERATION = re.compile(rf"Iter #(\d+): ({_NUMBER}) (\w+)/sec per \w+\s*")
    _TOTAL = re.compile(
        rf"(total (\w+)/sec|(\w+)/sec per \w+|total (\w+)/sec on \d+ \w+\(s\)): ({_NUMBER})(?: \+-{_NUMBER})?\s*",
        re.IGNORECASE,
    )

    def __init__(self, ranks: int) -> None:
        self._ranks = ranks

    def read(self, line: str) -> PrintedProgress | None:
        """Return the progress that `line` shows; None if it has another format."""
        if "/sec" not in line:
            return None
        if found := self._TOTAL.fullmatch(line):
            return PrintedProgress(values={found[1].lower(): float(found[5])}, sums_up=True)
        if found := self._STEP.fullmatch(line):
            values = {} if found[4] is None else {"loss": float(found[4])}
            step = None if found[1] is None else int(found[1])
            return PrintedProgress(
                step, unit=found[2], rate=_positive_printed_number(self._ranks * float(found[3])), values=values
            )
        if found := self._ITERATION.fullmatch(line):
            return PrintedProgress(
                int(found[1]) + 1, unit=found[3], rate=_positive_printed_number(self._ranks * float(found[2]))
            )
        return None


class KerasLineForm:
    """Parser for lines of Keras' `fit`: `Epoch 2/5` and `450/1000 ━━━━ 5s 12ms/step - loss: 0.31`.

    The bar is optional. Without a preceding epoch line, such a line belongs to `evaluate` or `predict`.
    """

    _EPOCH = re.compile(r"Epoch (\d+)/(\d+)\s*")
    _STEP = re.compile(r"\s*(\d+)/(\d+|Unknown) (?:\S* )?\s*(?:- )?(?:ETA: )?[\d:hms]+ (?:- )?[\d.hmnuµs:]+/step(.*)")

    def __init__(self) -> None:
        self._epoch = self._epochs = 0
        # Steps before this call of `fit`, before this epoch, and in this epoch.
        self._first = self._before = self._step = 0
        self._over = True

    def read(self, line: str) -> PrintedProgress | None:
        """Return the progress that `line` shows; None if it shows no new progress."""
        if found := self._EPOCH.fullmatch(line):
            self._epoch, self._epochs = int(found[1]), int(found[2])
            self._before += self._step
            self._first = self._before if self._epoch == 1 else self._first
            self._step, self._over = 0, False
            return None
        if not self._epoch or "/step" not in line or not (found := self._STEP.fullmatch(line)):
            return None
        step, total, values = int(found[1]), found[2], _printed_values(found[3])
        if step < self._step or (self._over and not any(name.startswith("val_") for name in values)):
            return None
        known = None if total == "Unknown" else int(total)
        self._step, self._over = step, step == known
        whole = None if known is None else self._first + known * self._epochs
        return PrintedProgress(self._before + step, whole, self._epoch, "steps", values=values)


class TqdmLineForm:
    """Parser for tqdm's bars: `train: 45%|# | 450/1000 [00:10<00:12, 45.2it/s, loss=0.3]` or `450it [00:10, 45.2it/s]`.

    Of several bars the longest counts; if it restarts, the next epoch begins. Bars that count bytes, files or examples,
    or whose title is loading, evaluating or similar, are ignored.
    """

    _BAR = re.compile(
        r"(?:(.*?):)?\s*(?:\d+%\|[^|]*\| )?(\d+)(?:/(\d+)|[A-Za-z]+) \[[\d:]+(?:<[\d:?]+)?, *"
        r"(?:\?|[\d.]+)(?:([A-Za-z]+)/s|s/([A-Za-z]+))(?:, (.*))?\]\s*"
    )
    _EPOCH = re.compile(r"\bepoch\D{0,3}(\d+)(?:\s*(?:/|of)\s*(\d+))?", re.IGNORECASE)
    _OTHER_UNITS = frozenset({"B", "iB", "file", "files", "example", "examples"})
    _OTHER_BARS = re.compile(
        r"(?:down|up)?load|eval|valid|test|predict|map|filter|token|generat|fetch|pars|read|sav|writ",
        re.IGNORECASE,
    )

    def __init__(self) -> None:
        self._total = -1
        self._before = self._step = 0

    def read(self, line: str) -> PrintedProgress | None:
        """Return the progress that `line` shows; None if it has another format or is not the main bar."""
        if "[" not in line or not (found := self._BAR.fullmatch(line)):
            return None
        title, step, total = found[1] or "", int(found[2]), int(found[3] or 0)
        unit = found[4] or found[5]
        if not step or unit in self._OTHER_UNITS or self._OTHER_BARS.match(title) or total < self._total:
            return None
        anew = total > self._total >= 0
        if total > self._total:
            self._total, self._before = total, 0
        elif step < self._step:
            self._before += self._step
        self._step = step
        epoch = self._EPOCH.search(title)
        epochs = int(epoch[2]) if epoch and epoch[2] else 0
        whole = max(total * epochs, self._before + total) if total else None
        return PrintedProgress(
            self._before + step,
            whole,
            int(epoch[1]) if epoch else None,
            unit,
            values=_printed_values(found[6]),
            anew=anew,
        )


class UserLineForm:
    """Parser with a user's regular expression, which may match anywhere in a line.

    Groups with a fixed meaning: `step` (if it restarts, the next epoch begins), `total` (steps), `epoch`, `loss`,
    `samples` (since the previous line), `rate` (samples per second of all ranks). Any other group is a metric of that
    name. Raises ConfigurationError for an invalid rule.
    """

    def __init__(self, text: str) -> None:
        if problem := metrics_rule_problem(text):
            raise ConfigurationError(f"the regular expression for metrics {text!r} {problem}")
        import regex  # it can be given up; with `re` a rule such as (a+)+ could hold a thread for ever

        try:
            self._rule: regex.Pattern[str] | None = regex.compile(text)
        except regex.error as exc:
            raise ConfigurationError(f"the regular expression for metrics {text!r} is invalid: {exc}") from exc
        self._before = self._step = 0

    def read(self, line: str) -> PrintedProgress | None:
        """Return the progress in the named groups of the match; None without a match."""
        if self._rule is None:
            return None
        try:
            found = self._rule.search(line, timeout=_SLOW_S, concurrent=True)
        except TimeoutError:
            log.warning(
                "stopped reading metrics from lines: the regular expression %r took more than %g s",
                self._rule.pattern,
                _SLOW_S,
            )
            self._rule = found = None
        groups = (found.groupdict() if found else {}).items()
        values = {name: number for name, text in groups if (number := _printed_number(text)) is not None}
        if not values:
            return None
        step, total, epoch = (_whole_printed_number(values.pop(name, None)) for name in ("step", "total", "epoch"))
        rate, samples = (_positive_printed_number(values.pop(name, None)) for name in ("rate", "samples"))
        if step is not None:  # a step that restarts belongs to the next epoch
            self._before += self._step if step < self._step else 0
            self._step, step = step, self._before + step
        total = None if total is None else self._before + total
        unit = "steps" if rate is None and samples is None else "samples"
        return PrintedProgress(step, total, epoch, unit, rate, samples, values)


def _printed_number(text: str | None) -> float | None:
    try:
        return float((text or "").strip(" \t,;%"))
    except ValueError:
        return None


def _whole_printed_number(value: float | None) -> int | None:
    return int(value) if value is not None and 0 <= value < 2**53 else None


def _positive_printed_number(value: float | None) -> float | None:
    return value if value is not None and 0 <= value < math.inf else None


def _printed_values(text: str | None) -> dict[str, float]:
    return {name: float(number) for name, number in _VALUES.findall(text or "")}
