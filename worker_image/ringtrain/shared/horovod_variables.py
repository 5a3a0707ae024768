"""Table of Horovod's environment variables with a counterpart in ringtrain."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from ringtrain.errors import ConfigurationError, shown
from ringtrain.shared import contract
from ringtrain.shared.environment import LONGEST_TIMEOUT_S

# Horovod's log levels, in lower case, and Python's. Levels with the same name are omitted.
LOG_LEVELS: Final = {"trace": "debug", "fatal": "critical"}
OUR_LOG_LEVELS: Final = ("debug", "info", "warning", "error", "critical")

# Longest supported wait.
NEVER: Final = f"{LONGEST_TIMEOUT_S:.0f}"


@dataclass(frozen=True)
class HorovodVariable:
    """Pair of variables: `horovod` is read if `ours` is unset.

    `translate(name, value)` returns ringtrain's value; empty: unset.
    """

    horovod: str
    ours: str
    translate: Callable[[str, str], str]
    note: str = ""


def log_level(name: str, value: str) -> str:
    """Return Python's name of the level `value`, in either spelling. Raises ConfigurationError that names `name`."""
    level = LOG_LEVELS.get(value.lower(), value.lower())
    if level not in OUR_LOG_LEVELS:
        expected = ", ".join((*OUR_LOG_LEVELS, *LOG_LEVELS))
        raise ConfigurationError(f'{name} is "{shown(value)}"; expected one of {expected}')
    return level


def _horovod_file(_: str, value: str) -> str:
    # With DYNAMIC Horovod waits for start_timeline(), which needs no preparation in ringtrain.
    return "" if value == "DYNAMIC" else value


def _never_if_0(name: str, value: str) -> str:
    return _horovod_seconds(name, value) or NEVER


def _never_if_disabled(name: str, value: str) -> str:
    if value.lower() in ("0", "false", "no", ""):
        return ""
    if value.lower() in ("1", "true", "yes"):
        return NEVER
    raise ConfigurationError(f'{name} is "{shown(value)}"; expected 0 or 1')


def _horovod_seconds(name: str, value: str) -> str:
    try:
        number = float(value)
    except ValueError:
        raise ConfigurationError(f'{name} is "{shown(value)}"; expected a number of seconds') from None
    return f"{number:g}" if number else ""


COUNTERPARTS: Final = (
    HorovodVariable("HOROVOD_TIMELINE", contract.ENV_TIMELINE, _horovod_file, "`DYNAMIC` counts as not set"),
    HorovodVariable(
        "HOROVOD_LOG_LEVEL", contract.ENV_LOG_LEVEL, log_level, "`TRACE` is `debug`, `FATAL` is `critical`"
    ),
    HorovodVariable(
        "HOROVOD_STALL_CHECK_DISABLE",
        contract.ENV_STALL_TIMEOUT,
        _never_if_disabled,
        f"`1` is {NEVER}, eleven days",
    ),
    HorovodVariable(
        "HOROVOD_STALL_CHECK_DISABLE", contract.ENV_STALL_WARNING, _never_if_disabled, "`1`: no rank is named"
    ),
    HorovodVariable(
        "HOROVOD_STALL_SHUTDOWN_TIME_SECONDS",
        contract.ENV_STALL_TIMEOUT,
        _never_if_0,
        f"`0`, for ever in Horovod, is {NEVER}, eleven days",
    ),
    HorovodVariable(
        "HOROVOD_STALL_CHECK_TIME_SECONDS",
        contract.ENV_STALL_WARNING,
        _never_if_0,
        "time after which late ranks are logged",
    ),
    HorovodVariable("HOROVOD_START_TIMEOUT", contract.ENV_START_TIMEOUT, _horovod_seconds, "read by the command"),
    HorovodVariable(
        "HOROVOD_ELASTIC_TIMEOUT",
        contract.ENV_START_TIMEOUT,
        _horovod_seconds,
        "read by the command if `HOROVOD_START_TIMEOUT` is not set",
    ),
)


def with_counterparts(env: Mapping[str, str]) -> dict[str, str]:
    """Return `env` with ringtrain's variables where only Horovod's are set.

    Raises ConfigurationError for a bad value.
    """
    found = dict(env)
    for row in COUNTERPARTS:
        if env.get(row.horovod) and not found.get(row.ours):
            value = row.translate(row.horovod, env[row.horovod])
            if value:
                found[row.ours] = value
    return found
