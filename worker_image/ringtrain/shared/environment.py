"""Typed reads of environment variables. Errors name the variable, its value and what was expected."""

from collections.abc import Mapping
from typing import Final

from ringtrain.errors import ConfigurationError, quoted

# Eleven days. gRPC counts milliseconds in 32 bits.
LONGEST_TIMEOUT_S: Final = 1e6
# More ranks than in any world; sizes, generations and attempts have 32 bits on the wire.
HIGHEST: Final = 2**31 - 1


def without_empty(env: Mapping[str, str]) -> dict[str, str]:
    """Return `env` without empty variables, which count as unset."""
    return {name: value for name, value in env.items() if value}


class EnvironmentVariables:
    """Typed reads of the environment `env`. An empty variable counts as unset."""

    def __init__(self, env: Mapping[str, str]) -> None:
        self._env = env

    def optional(self, name: str) -> str | None:
        """Return the variable's value; None if it is unset or empty."""
        return self._env.get(name) or None

    def unchanged(self, name: str) -> str | None:
        """Return the variable's value, which may be empty; None if it is unset."""
        return self._env.get(name)

    def text(self, name: str) -> str:
        """Return the variable's value. Raises ConfigurationError if it is unset or empty."""
        value = self.optional(name)
        if value is None:
            raise ConfigurationError(f"{name} is not set; the operator and `dtj local` set it on every pod")
        return value

    def choice(self, name: str, allowed: tuple[str, ...]) -> str:
        """Return the variable's value. Raises ConfigurationError unless it is one of `allowed`."""
        value = self.text(name)
        if value not in allowed:
            raise ConfigurationError(f"{name}={quoted(value)}: expected one of {', '.join(allowed)}")
        return value

    def integer(self, name: str, *, low: int, high: int = HIGHEST) -> int:
        """Return the variable as an integer from `low` to `high`. Raises ConfigurationError for other values."""
        value = self.text(name)
        try:
            number = int(value)
        except ValueError as exc:
            raise ConfigurationError(f"{name}={quoted(value)}: expected an integer from {low} to {high}") from exc
        if not low <= number <= high:
            raise ConfigurationError(f"{name}={quoted(value)}: expected an integer from {low} to {high}")
        return number

    def seconds(self, name: str, *, zero: bool = False) -> float:
        """Return the variable as seconds above 0 and up to `LONGEST_TIMEOUT_S`; `zero`: whether 0 is allowed."""
        value = self.text(name)
        try:
            number = float(value)
        except ValueError as exc:
            raise ConfigurationError(f"{name}={quoted(value)}: expected a number of seconds") from exc
        if not 0 <= number <= LONGEST_TIMEOUT_S or (number == 0 and not zero):
            limits = "from 0 to" if zero else "above 0 and at most"
            raise ConfigurationError(f"{name}={quoted(value)}: expected seconds {limits} {LONGEST_TIMEOUT_S:.0f}")
        return number

    def address(self, name: str) -> str:
        """Return the variable, which must have the form `host:port` (`[host]:port` for IPv6)."""
        value = self.text(name)
        host, _, port = value.rpartition(":")
        if not host or not port.isdecimal() or len(port) > 5 or not 0 < int(port) <= 65535:
            raise ConfigurationError(f"{name}={quoted(value)}: expected host:port, for example 10.0.0.7:7350")
        return value

    def words(self, name: str) -> tuple[str, ...]:
        """Return the comma-separated values in the variable; empty if it is unset."""
        return tuple(filter(None, (word.strip() for word in (self.optional(name) or "").split(","))))
