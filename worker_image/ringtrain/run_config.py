"""Report of a run's configuration (`ringtrain.report_config(...)`) and package versions, to compare runs later."""

from __future__ import annotations

import json
import logging
import math
import os
import platform
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any, Final, cast

from ringtrain.errors import ConfigurationError
from ringtrain.report import send_report
from ringtrain.shared.masking import MASK, names_secret, without_secrets

log = logging.getLogger(__name__)

# Packages whose version is reported if the program has imported them.
PACKAGES: Final = ("ringtrain", "numpy", "torch", "tensorflow", "keras", "jax", "transformers", "lightning")
# A report line must fit into an atomic write to a pipe (4096 bytes), and a config into the pipe (64 KiB).
_PART_BYTES, _VALUE_BYTES, _MOST_BYTES = 3000, 400, 32 << 10

Scalar = str | int | float | bool | None


def report_config(config: Mapping[str, Any]) -> None:
    """Report the configuration that identifies this run, such as its hyperparameters.

    The configuration is shown on the job's page and stored in `run.json`.

    `config`: a dict of numbers, strings, booleans, None, paths, and of dicts and lists of these, up to 32 KiB as JSON.
    Nested dicts become dotted names: `optimizer.lr`. A string is replaced by `***` if its name contains a word such as
    token, secret, password or key, and so is a password in an address: neither leaves this process. A later call adds
    to an earlier one. If ranks report different values, the value of the lowest rank is used.

    Does nothing outside a job. Raises ConfigurationError for other types.
    """
    if not isinstance(config, Mapping):
        what = type(config).__name__
        raise ConfigurationError(f"report_config: expected a dict, got {what}; for parsed arguments pass vars(args)")
    try:
        flat = dict(_flat_run_config("", config))
    except RecursionError:
        raise ConfigurationError("report_config: config contains itself, or is nested too deeply") from None
    if (size := len(json.dumps(flat))) > _MOST_BYTES:
        raise ConfigurationError(f"report_config: {size} bytes as JSON; expected at most {_MOST_BYTES}")
    report_versions()
    for part in _run_config_parts(flat):
        if not _send_run_config({"config": part}):
            log.warning(
                "report_config: the agent's pipe is full, %s was dropped; call report_config again", ", ".join(part)
            )


def report_versions() -> None:
    """Report the versions of Python and of common packages, such as numpy and torch, that this process has imported."""
    found = {name: getattr(sys.modules.get(name), "__version__", None) for name in PACKAGES}
    versions = {name: str(version) for name, version in found.items() if version is not None}
    _send_run_config({"versions": {"python": platform.python_version(), **versions}})


def _send_run_config(about: dict[str, Any]) -> bool:
    return send_report({"step": 0, "time": time.time(), "about": about})


def _run_config_parts(flat: dict[str, Scalar]) -> Iterator[dict[str, Scalar]]:
    part: dict[str, Scalar] = {}
    for name, value in flat.items():
        if part and len(json.dumps({**part, name: value})) > _PART_BYTES:
            yield part
            part = {}
        part[name] = value
    if part:
        yield part


def _flat_run_config(path: str, value: object) -> Iterator[tuple[str, Scalar]]:
    """Yield pairs of a dotted name and a scalar. A list of scalars is one value."""
    nested = isinstance(value, list | tuple) and any(isinstance(one, Mapping | list | tuple) for one in value)
    if isinstance(value, Mapping) or nested:
        pairs = value.items() if isinstance(value, Mapping) else enumerate(cast("list[object]", value))
        for name, inner in pairs:
            yield from _flat_run_config(f"{path}.{name}" if path else str(name), inner)
    elif isinstance(value, list | tuple):
        yield path, json.dumps([_run_config_scalar(path, one) for one in value])[:_VALUE_BYTES]
    else:
        yield path, _run_config_scalar(path, value)


def _run_config_scalar(path: str, value: object) -> Scalar:
    if isinstance(value, os.PathLike):
        value = os.fspath(value)
    elif callable(item := getattr(value, "item", None)):
        with suppress(ValueError, RuntimeError, TypeError):  # numpy's scalars, and tensors of one number
            value = item()
    if isinstance(value, str):
        is_secret = any(map(names_secret, path.split(".")))
        return MASK if is_secret and value else without_secrets(value)[:_VALUE_BYTES]
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if value is None or isinstance(value, bool | int | float):
        return value
    expected = "a number, string, boolean, None, path, or a dict or list of these"
    raise ConfigurationError(f"report_config: {path} is a {type(value).__name__}; expected {expected}")
