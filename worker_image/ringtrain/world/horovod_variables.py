"""Horovod's environment variables that have a counterpart here, in one table."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from ringtrain import contract
from ringtrain.errors import ConfigurationError, shown

# Horovod's names of levels, in lower case, and Python's. Those that both have are not repeated.
LOG_LEVELS: Final = {"trace": "debug", "fatal": "critical"}
OUR_LOG_LEVELS: Final = ("debug", "info", "warning", "error", "critical")


@dataclass(frozen=True)
class Counterpart:
    """`horovod` is read where `ours` is not set. `translate(name, value)` is our value; empty: as if not set."""

    horovod: str
    ours: str
    translate: Callable[[str, str], str]
    note: str = ""


def log_level(name: str, value: str) -> str:
    """Python's name of the level `value`, in either spelling. ConfigurationError names `name`."""
    level = LOG_LEVELS.get(value.lower(), value.lower())
    if level not in OUR_LOG_LEVELS:
        expected = ", ".join((*OUR_LOG_LEVELS, *LOG_LEVELS))
        raise ConfigurationError(f'{name} is "{shown(value)}"; expected one of {expected}')
    return level


def _file(_: str, value: str) -> str:
    # With DYNAMIC Horovod waits for start_timeline(), which needs no preparation here.
    return "" if value == "DYNAMIC" else value


def _seconds(name: str, value: str) -> str:
    try:
        number = float(value)
    except ValueError:
        raise ConfigurationError(f'{name} is "{shown(value)}"; expected a number of seconds') from None
    return f"{number:g}" if number else ""


COUNTERPARTS: Final = (
    Counterpart("HOROVOD_TIMELINE", contract.ENV_TIMELINE, _file, "`DYNAMIC` counts as not set"),
    Counterpart(
        "HOROVOD_LOG_LEVEL", contract.ENV_LOG_LEVEL, log_level, "`TRACE` is `debug`, `FATAL` is `critical`"
    ),
    Counterpart(
        "HOROVOD_STALL_SHUTDOWN_TIME_SECONDS",
        contract.ENV_STALL_TIMEOUT,
        _seconds,
        "`0`, for ever in Horovod, is the default of 600 s",
    ),
    Counterpart("HOROVOD_START_TIMEOUT", contract.ENV_START_TIMEOUT, _seconds, "read by the command"),
    Counterpart(
        "HOROVOD_ELASTIC_TIMEOUT",
        contract.ENV_START_TIMEOUT,
        _seconds,
        "read by the command, where `HOROVOD_START_TIMEOUT` is not set",
    ),
)


def with_counterparts(env: Mapping[str, str]) -> dict[str, str]:
    """`env` with our variables where only Horovod's are set. ConfigurationError names one with a bad value."""
    found = dict(env)
    for row in COUNTERPARTS:
        if env.get(row.horovod) and not found.get(row.ours):
            value = row.translate(row.horovod, env[row.horovod])
            if value:
                found[row.ours] = value
    return found
