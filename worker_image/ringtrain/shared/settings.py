"""Settings as dataclass fields that name their variable, its type, and its default.

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
    """Base of frozen dataclasses whose fields are variables. A field without a variable has its default."""

    @classmethod
    def from_env(cls, env: Mapping[str, str], **known: Any) -> Self:
        """Read the variables in `env`. `known`: further values for derived defaults. Raises ConfigurationError."""
        return cls.read(EnvironmentVariables(env), **known)

    @classmethod
    def read(cls, env: EnvironmentVariables, **known: Any) -> Self:
        """Read the variables, as `from_env` does."""
        seen, values = SimpleNamespace(**known), dict[str, Any]()
        for declared in fields(cls):
            if (read := declared.metadata.get("read")) is not None:
                values[declared.name] = read(env, seen)
                setattr(seen, declared.name, values[declared.name])
        settings = cls(**values)
        settings.check()
        return settings

    def check(self) -> None:
        """Raise ConfigurationError if valid values contradict each other."""


def setting(
    read: Callable[[EnvironmentVariables, Any], Any], default: Any = REQUIRED, *, is_secret: bool = False
) -> Any:
    """Declare a field with the value of `read(variables, earlier settings)`.

    `default`: default of the constructor. `is_secret`: whether the repr omits it.
    """
    return field(default=default, repr=not is_secret, metadata={"read": read})


def part(kind: type[Settings]) -> Any:
    """Declare a field that is a group of settings."""
    return field(default_factory=kind, metadata={"read": lambda env, _: kind.read(env)})


def text(
    name: str, default: Any = REQUIRED, derived: Derived | None = None, *, made: Callable[[str], Any] = str
) -> Any:
    """Declare a text; `made` converts the value, and may raise ConfigurationError."""
    return _variable(name, lambda env, _: made(env.text(name)), default, derived)


def path(name: str, default: Path | None = None) -> Any:
    return text(name, default, made=Path)


def choice(name: str, allowed: tuple[str, ...], default: Any = REQUIRED, made: Callable[[str], Any] = str) -> Any:
    """Declare one of `allowed`; `made` converts the value."""
    return _variable(name, lambda env, _: made(env.choice(name, allowed)), default)


def flag(name: str, default: bool | None = False) -> Any:
    """Declare a boolean variable, which must be 0 or 1."""
    return _variable(name, lambda env, _: env.choice(name, ("0", "1")) == "1", default)


def switch(name: str) -> Any:
    """Declare a boolean that is True if the variable is 1, and False otherwise."""
    return _variable(name, lambda env, _: env.text(name) == "1", False)


def integer(
    name: str,
    default: Any = REQUIRED,
    derived: Derived | None = None,
    *,
    low: int | Derived,
    high: int | Derived = HIGHEST,
) -> Any:
    """Declare an integer in `low`..`high`."""

    def read(env: EnvironmentVariables, seen: Any) -> int:
        lowest, highest = (bound(seen) if callable(bound) else bound for bound in (low, high))
        return env.integer(name, low=lowest, high=highest)

    return _variable(name, read, default, derived)


def tcp_port(name: str, default: int) -> Any:
    """Declare a TCP port; 0 stands for any free port."""
    return integer(name, default, low=0, high=65535)


def seconds(name: str, default: float, derived: Derived | None = None, *, zero: bool = False) -> Any:
    """Declare seconds above 0; `zero`: 0 is allowed."""
    return _variable(name, lambda env, _: env.seconds(name, zero=zero), default, derived)


def address(name: str, default: Any = REQUIRED) -> Any:
    return _variable(name, lambda env, _: env.address(name), default)


def _variable(
    name: str, parse: Callable[[EnvironmentVariables, Any], Any], default: Any, derived: Derived | None = None
) -> Any:
    """Declare a field. If the variable is not set when it is read, `derived` computes the default."""

    def read(env: EnvironmentVariables, seen: Any) -> Any:
        unset = default if derived is None else derived(seen)
        return unset if env.optional(name) is None and unset is not REQUIRED else parse(env, seen)

    return setting(read, default)
