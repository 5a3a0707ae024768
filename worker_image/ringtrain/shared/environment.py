"""Reading settings from the environment, with errors that name variable, value and what was expected."""

from collections.abc import Callable, Mapping
from typing import Final

from ringtrain.errors import ConfigurationError, quoted

# Eleven days. gRPC counts milliseconds in 32 bits.
LONGEST_TIMEOUT_S: Final = 1e6
# More ranks than any world has; sizes, generations and attempts travel in 32 bits.
HIGHEST: Final = 2**31 - 1


def without_empty(env: Mapping[str, str]) -> dict[str, str]:
    """The variables of `env` that have a value: an empty variable is one that is not set."""
    return {name: value for name, value in env.items() if value}


class EnvironmentVariables:
    """Typed reads of `env`, in which an empty variable is one that is not set."""

    def __init__(self, env: Mapping[str, str]) -> None:
        self._env = env

    def optional(self, name: str) -> str | None:
        """The variable's value, or None."""
        return self._env.get(name) or None

    def text(self, name: str, default: str | None = None) -> str:
        """The variable's value, else `default`; ConfigurationError when there is neither."""
        value = self.optional(name) or default
        if value is None:
            raise ConfigurationError(f"{name} is not set; the operator and `dtj local` set it on every pod")
        return value

    def choice(self, name: str, allowed: tuple[str, ...], default: str | None = None) -> str:
        """The variable's value, which must be one of `allowed`."""
        value = self.text(name, default)
        if value not in allowed:
            raise ConfigurationError(f"{name}={quoted(value)}: expected one of {', '.join(allowed)}")
        return value

    def flag(self, name: str, default: str) -> bool:
        """The variable, which must be `0` or `1`."""
        return self.choice(name, ("0", "1"), default) == "1"

    def optional_flag(self, name: str) -> bool | None:
        """The same, or None if it is not set."""
        return None if self.optional(name) is None else self.flag(name, "0")

    def integer(self, name: str, default: int | None = None, *, low: int, high: int = HIGHEST) -> int:
        """The variable as an integer in `low`..`high`."""
        value = self.text(name, None if default is None else str(default))
        try:
            number = int(value)
        except ValueError as exc:
            raise ConfigurationError(f"{name}={quoted(value)}: expected an integer from {low} to {high}") from exc
        if not low <= number <= high:
            raise ConfigurationError(f"{name}={quoted(value)}: expected an integer from {low} to {high}")
        return number

    def port(self, name: str, default: int) -> int:
        """The variable as a TCP port; 0 stands for any free port."""
        return self.integer(name, default, low=0, high=65535)

    def seconds(self, name: str, default: float) -> float:
        """The variable as a positive number of seconds, at most `LONGEST_TIMEOUT_S`."""
        return self._seconds(name, default, "above 0 and at most", lambda number: number > 0)

    def delay(self, name: str, default: float) -> float:
        """The variable as a number of seconds, which may be 0, at most `LONGEST_TIMEOUT_S`."""
        return self._seconds(name, default, "from 0 to", lambda number: number >= 0)

    def _seconds(self, name: str, default: float, limits: str, allowed: Callable[[float], bool]) -> float:
        value = self.text(name, str(default))
        try:
            number = float(value)
        except ValueError as exc:
            raise ConfigurationError(f"{name}={quoted(value)}: expected a number of seconds") from exc
        if not (allowed(number) and number <= LONGEST_TIMEOUT_S):
            raise ConfigurationError(f"{name}={quoted(value)}: expected seconds {limits} {LONGEST_TIMEOUT_S:.0f}")
        return number

    def address(self, name: str) -> str:
        """The variable as `host:port` (`[host]:port` for IPv6)."""
        value = self.text(name)
        host, _, port = value.rpartition(":")
        if not host or not port.isdecimal() or len(port) > 5 or not 0 < int(port) <= 65535:
            raise ConfigurationError(f"{name}={quoted(value)}: expected host:port, for example 10.0.0.7:7350")
        return value
