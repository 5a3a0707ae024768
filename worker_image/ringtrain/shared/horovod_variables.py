"""Environment variables of Horovod that ringtrain reads in place of its own."""

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
    """Variable `horovod` of Horovod that is used if ringtrain's variable `ours` is unset.

    `translate(name, value)` returns ringtrain's value; if it is empty, `ours` stays unset.
    """

    horovod: str
    ours: str
    translate: Callable[[str, str], str]
    note: str = ""


def log_level(name: str, value: str) -> str:
    """Return Python's log level for a level in Horovod's or Python's spelling. Raises ConfigurationError for any other
    value."""
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
    HorovodVariable("HOROVOD_TIMELINE", contract.ENV_TIMELINE, _horovod_file, "the value `DYNAMIC` counts as not set"),
    HorovodVariable(
        "HOROVOD_LOG_LEVEL", contract.ENV_LOG_LEVEL, log_level, "`TRACE` counts as `debug`, `FATAL` as `critical`"
    ),
    HorovodVariable(
        "HOROVOD_STALL_CHECK_DISABLE",
        contract.ENV_STALL_TIMEOUT,
        _never_if_disabled,
        f"the value `1` sets a timeout of {NEVER} s (eleven days)",
    ),
    HorovodVariable(
        "HOROVOD_STALL_CHECK_DISABLE",
        contract.ENV_STALL_WARNING,
        _never_if_disabled,
        "with the value `1`, no late rank is logged",
    ),
    HorovodVariable(
        "HOROVOD_STALL_SHUTDOWN_TIME_SECONDS",
        contract.ENV_STALL_TIMEOUT,
        _never_if_0,
        f"the value `0` means no limit in Horovod, and {NEVER} s (eleven days) in Ringtrain",
    ),
    HorovodVariable(
        "HOROVOD_STALL_CHECK_TIME_SECONDS",
        contract.ENV_STALL_WARNING,
        _never_if_0,
        "seconds after which late ranks are logged",
    ),
    HorovodVariable("HOROVOD_START_TIMEOUT", contract.ENV_START_TIMEOUT, _horovod_seconds, "only the command reads it"),
    HorovodVariable(
        "HOROVOD_ELASTIC_TIMEOUT",
        contract.ENV_START_TIMEOUT,
        _horovod_seconds,
        "only the command reads it, if `HOROVOD_START_TIMEOUT` is not set",
    ),
)


def with_counterparts(env: Mapping[str, str]) -> dict[str, str]:
    """Return `env` with ringtrain's variables added where only Horovod's counterparts are set.

    Raises ConfigurationError for a bad value.
    """
    found = dict(env)
    for row in COUNTERPARTS:
        if env.get(row.horovod) and not found.get(row.ours):
            value = row.translate(row.horovod, env[row.horovod])
            if value:
                found[row.ours] = value
    return found
