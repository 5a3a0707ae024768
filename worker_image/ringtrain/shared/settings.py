"""Declaration of settings as dataclass fields, each with its environment variable, type and default.

    @dataclass(frozen=True, kw_only=True)
    class AgentPorts(Settings):
        agent: int = tcp_port(contract.ENV_AGENT_PORT, contract.PORT_AGENT)

`AgentPorts.from_env(os.environ)` reads them in order of declaration. A ConfigurationError names the first variable that
is missing or wrong, its value and what was expected.
"""

from collections.abc import Callable, Mapping
from dataclasses import MISSING, dataclass, field, fields
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final, Self

from ringtrain.shared.environment import HIGHEST, EnvironmentVariables

# Default of a variable that must be set.
REQUIRED: Final = MISSING
# Computes a default from the settings that are declared before it.
Derived = Callable[[Any], Any]


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Base class of frozen dataclasses whose fields are read from environment variables."""

    @classmethod
    def from_env(cls, env: Mapping[str, str], **known: Any) -> Self:
        """Return the settings read from `env`. Raises ConfigurationError if a setting is invalid.

        `known`: values, by field name, from which defaults are computed.
        """
        return cls.read(EnvironmentVariables(env), **known)

    @classmethod
    def read(cls, env: EnvironmentVariables, **known: Any) -> Self:
        """Return the settings read from `env`. `known`: values, by field name, from which defaults are computed."""
        seen, values = SimpleNamespace(**known), dict[str, Any]()
        for declared in fields(cls):
            if (read := declared.metadata.get("read")) is not None:
                values[declared.name] = read(env, seen)
                setattr(seen, declared.name, values[declared.name])
        settings = cls(**values)
        settings.check()
        return settings

    def check(self) -> None:
        """Raise ConfigurationError if settings that are valid one by one contradict each other."""


def setting(
    read: Callable[[EnvironmentVariables, Any], Any], default: Any = REQUIRED, *, is_secret: bool = False
) -> Any:
    """Declare a field whose value is `read(variables, settings declared before it)`.

    `default`: default of the constructor. `is_secret`: whether the repr omits it.
    """
    return field(default=default, repr=not is_secret, metadata={"read": read})


def part(kind: type[Settings]) -> Any:
    """Declare a field that is itself a group of settings, of class `kind`."""
    return field(default_factory=kind, metadata={"read": lambda env, _: kind.read(env)})


def text(
    name: str, default: Any = REQUIRED, derived: Derived | None = None, *, made: Callable[[str], Any] = str
) -> Any:
    """Declare a text variable. `made`: converts its value, and may raise ConfigurationError."""
    return _variable(name, lambda env, _: made(env.text(name)), default, derived)


def path(name: str, default: Path | None = None) -> Any:
    return text(name, default, made=Path)


def choice(name: str, allowed: tuple[str, ...], default: Any = REQUIRED, made: Callable[[str], Any] = str) -> Any:
    """Declare a variable whose value must be one of `allowed`. `made`: converts the value."""
    return _variable(name, lambda env, _: made(env.choice(name, allowed)), default)


def flag(name: str, default: bool | None = False) -> Any:
    """Declare a boolean variable, whose value must be 0 or 1."""
    return _variable(name, lambda env, _: env.choice(name, ("0", "1")) == "1", default)


def switch(name: str) -> Any:
    """Declare a boolean variable that is True for the value 1 and False for any other value."""
    return _variable(name, lambda env, _: env.text(name) == "1", False)


def integer(
    name: str,
    default: Any = REQUIRED,
    derived: Derived | None = None,
    *,
    low: int | Derived,
    high: int | Derived = HIGHEST,
) -> Any:
    """Declare an integer variable from `low` to `high`. `derived`: computes the default."""

    def read(env: EnvironmentVariables, seen: Any) -> int:
        lowest, highest = (bound(seen) if callable(bound) else bound for bound in (low, high))
        return env.integer(name, low=lowest, high=highest)

    return _variable(name, read, default, derived)


def tcp_port(name: str, default: int) -> Any:
    """Declare a variable with a TCP port; 0 means any free port."""
    return integer(name, default, low=0, high=65535)


def seconds(name: str, default: float, derived: Derived | None = None, *, zero: bool = False) -> Any:
    """Declare a variable with seconds above 0. `zero`: whether 0 is allowed. `derived`: computes the default."""
    return _variable(name, lambda env, _: env.seconds(name, zero=zero), default, derived)


def address(name: str, default: Any = REQUIRED) -> Any:
    return _variable(name, lambda env, _: env.address(name), default)


def _variable(
    name: str, parse: Callable[[EnvironmentVariables, Any], Any], default: Any, derived: Derived | None = None
) -> Any:
    """Declare a field that `parse` reads from the variable `name`. `derived`: computes the default."""

    def read(env: EnvironmentVariables, seen: Any) -> Any:
        unset = default if derived is None else derived(seen)
        return unset if env.optional(name) is None and unset is not REQUIRED else parse(env, seen)

    return setting(read, default)
