"""Progress reports to the launcher: `ringtrain.report(step, …)`."""

from __future__ import annotations

import difflib
import functools
import json
import math
import os
import select
import stat
import threading
import time
from collections.abc import Mapping
from typing import SupportsFloat

from ringtrain.errors import ConfigurationError
from ringtrain.shared import contract
from ringtrain.step_time import measured

# int64, the type in a Kubernetes status.
_MOST = 2**63 - 1

# Space reserved in a report line for added metrics and step times, in characters.
_ADDED_CHARS = 512

# Limit of a path. With every character escaped it still fits into an atomic write to a pipe.
_PATH_CHARS = 300

# A name that is almost one of these is a misspelling. `loss` is not here: names of losses have many forms.
_ARGUMENTS = ("step", "total_steps", "epoch", "samples", "unit", "metrics")

_lock = threading.Lock()
_dropped = 0
# Metrics that parts of the runtime add to each report.
_added: dict[str, float] = {}


def report(
    step: int,
    *,
    total_steps: int | None = None,
    epoch: int | None = None,
    samples: float | None = None,
    loss: SupportsFloat | None = None,
    unit: str = "samples",
    metrics: Mapping[str, SupportsFloat] | None = None,
    **numbers: SupportsFloat,
) -> None:
    """Report that this rank has finished `step`. The report is shown as progress and throughput, and stored in
    `metrics.jsonl`.

    `samples`: number that this rank has processed since its last report. `unit`: the name of a sample ("images").
    `numbers`: metrics by name, as in `report(step, loss=loss, grad_norm=norm)`. `metrics`: metrics whose names are not
    Python identifiers ("accuracy/val"). Values may be anything that `float` accepts, including tensors. Values that
    are not finite are reported unchanged: a NaN loss is shown as NaN, with the step at which it began.

    The runtime adds its own measurements: the rank's wait for input and for reductions, and its time for weight updates
    (docs/page.md defines them).

    Never blocks and never fails because of the reader: if the pipe is full the report is dropped, and the next one
    contains the number of dropped reports (`dropped`). Does nothing outside a job. Raises ConfigurationError for a
    wrong argument, and for a name that is almost the name of an argument.
    """
    for name in numbers:
        if near := _near_argument(name):
            raise ConfigurationError(
                f"report: there is no argument {name}=; write {near}=, or metrics={{{name!r}: ...}} "
                "for a metric of that name"
            )
    metrics = {**(metrics or {}), **numbers}
    if not isinstance(unit, str) or not unit:
        raise ConfigurationError(f"report: unit={unit!r}: expected a word such as 'images'")
    document: dict[str, object] = {
        "step": _report_count("step", step, 0),
        "totalSteps": None if total_steps is None else _report_count("total_steps", total_steps, 1),
        "epoch": None if epoch is None else _report_count("epoch", epoch, 0),
        "samples": None if samples is None else _report_samples(samples),
        "unit": unit,
        "time": time.time(),
    }
    document |= _report_numbers(loss, metrics)
    if _added and len(json.dumps(document)) + _ADDED_CHARS < select.PIPE_BUF:
        document |= _report_numbers(loss, {**_added, **metrics})
    parts = measured.take()
    if not send_report({name: value for name, value in {**document, **parts}.items() if value is not None}):
        measured.give_back(parts)  # for the next report


@functools.cache
def _near_argument(name: str) -> str:
    return next(iter(difflib.get_close_matches(name, _ARGUMENTS, n=1, cutoff=0.85)), "")


def add_to_reports(metrics: Mapping[str, float]) -> None:
    """Add `metrics` to all later reports of this rank. Metrics that the script passes take precedence."""
    if _report_fd() is not None:
        _added.update(metrics)


def report_start(step: int, path: str) -> None:
    """Report that training starts from the checkpoint of `step` at `path`; without a checkpoint if `path` is empty."""
    send_report({"step": step, "time": time.time(), "startedFrom": path[-_PATH_CHARS:]})


def report_joined() -> None:
    """Report to the agent that this rank has joined its world."""
    fd = _report_fd()
    if fd is not None:
        _write_report(fd, f"{contract.JOINED_LINE}\n".encode())


def _report_count(name: str, value: int, low: int) -> int:
    try:
        number = int(value)
    except (TypeError, ValueError, OverflowError) as exc:
        raise ConfigurationError(f"report: {name}={value!r}: expected an integer of at least {low}") from exc
    if number != value or number < low:
        raise ConfigurationError(f"report: {name}={value!r}: expected an integer of at least {low}")
    if number > _MOST:
        raise ConfigurationError(f"report: {name} is above {_MOST}, the limit of a job's status")
    return number


def _report_samples(value: float) -> float:
    number = _finite_report_number("samples", value)
    if number is None or not 0 <= number <= _MOST:
        raise ConfigurationError(f"report: samples={value!r}: expected a number of at least 0")
    return number


def _report_numbers(loss: SupportsFloat | None, metrics: Mapping[str, SupportsFloat]) -> dict[str, object]:
    """Return the report fields of loss and metrics.

    JSON has no numbers for NaN and infinity: `notFinite` names these values.
    """
    own = {str(name): _report_number(str(name), value) for name, value in metrics.items()}
    finite = {name: value if math.isfinite(value) else None for name, value in own.items()}
    words = {name: _report_word(value) for name, value in own.items() if not math.isfinite(value)}
    of_loss = 0.0 if loss is None else _report_number("loss", loss)
    if not math.isfinite(of_loss):
        words["loss"] = _report_word(of_loss)
    known = None if loss is None or "loss" in words else of_loss
    return {"loss": known, "metrics": finite or None, "notFinite": words or None}


def _report_word(value: float) -> str:
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"


def _report_number(name: str, value: SupportsFloat) -> float:
    detach = getattr(value, "detach", None)  # torch warns about a tensor that requires a gradient
    try:
        return float(detach() if callable(detach) else value)
    except OverflowError:  # an int too large for a float: report infinity
        return math.copysign(math.inf, 1 if value > 0 else -1)  # type: ignore[operator]
    except (TypeError, ValueError, RuntimeError) as exc:
        raise ConfigurationError(f"report: {name}={value!r}: expected a number") from exc


def _finite_report_number(name: str, value: SupportsFloat) -> float | None:
    number = _report_number(name, value)
    return number if math.isfinite(number) else None


def send_report(document: dict[str, object]) -> bool:
    """Write one report line. Return False if it was dropped because the pipe is full or closed.

    Raises ConfigurationError if the line is longer than PIPE_BUF.
    """
    if _dropped:
        document["dropped"] = _dropped
    line = json.dumps(document).encode() + b"\n"
    # A pipe accepts a line of at most this size whole or not at all.
    if len(line) > select.PIPE_BUF:
        raise ConfigurationError(
            f"report: {len(line)} bytes as JSON; expected at most {select.PIPE_BUF}; report fewer metrics"
        )
    fd = _report_fd()
    return _write_report(fd, line) if fd is not None else True


def _report_fd() -> int | None:
    """Return the pipe to the agent; None outside a job, or in a child process that did not inherit it."""
    named = os.environ.get(contract.ENV_REPORT_FD, "")
    if not named.isdecimal():
        return None
    fd = int(named)
    try:
        return fd if stat.S_ISFIFO(os.fstat(fd).st_mode) else None
    except OSError:
        return None


def _write_report(fd: int, line: bytes) -> bool:
    global _dropped
    with _lock:
        try:
            os.set_blocking(fd, False)
            os.write(fd, line)
            _dropped = 0
            return True
        except BlockingIOError:
            _dropped += 1
        except BrokenPipeError:  # the agent ends, and this rank with it
            _dropped += 1
        return False
