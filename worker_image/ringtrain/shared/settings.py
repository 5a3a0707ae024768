"""Settings as fields that say which variable they are, how it is read, and what counts where it is not set.

    @dataclass(frozen=True, kw_only=True)
    class AgentPorts(Settings):
        agent: int = tcp_port(contract.ENV_AGENT_PORT, contract.PORT_AGENT)

`AgentPorts.from_env(os.environ)` reads them in this order. A ConfigurationError names the first variable that is
missing or wrong, its value and what was expected.
"""

from collections.abc import Callable, Mapping
from dataclasses import MISSING, dataclass, field, fields
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final, Self

from ringtrain.shared.environment import HIGHEST, EnvironmentVariables

# As a default: the variable must be set.
REQUIRED: Final = MISSING
# Makes a value of the settings that are declared before it.
Derived = Callable[[Any], Any]


@dataclass(frozen=True, kw_only=True)
class Settings:
    """The base of frozen dataclasses whose fields are variables. A field that is declared as no variable has its
    default."""

    @classmethod
    def from_env(cls, env: Mapping[str, str], **known: Any) -> Self:
        """Read the variables in `env`. `known`: what fields are derived from besides. Raises ConfigurationError."""
        return cls.read(EnvironmentVariables(env), **known)

    @classmethod
    def read(cls, env: EnvironmentVariables, **known: Any) -> Self:
        """As `from_env`."""
        seen, values = SimpleNamespace(**known), dict[str, Any]()
        for declared in fields(cls):
            if (read := declared.metadata.get("read")) is not None:
                values[declared.name] = read(env, seen)
                setattr(seen, declared.name, values[declared.name])
        settings = cls(**values)
        settings.check()
        return settings

    def check(self) -> None:
        """Raise ConfigurationError where values that are right alone do not go together."""


def setting(
    read: Callable[[EnvironmentVariables, Any], Any], default: Any = REQUIRED, *, is_secret: bool = False
) -> Any:
    """A field of what `read` makes of all variables and the settings before it. `default`: of the constructor.
    `is_secret`: it is not shown."""
    return field(default=default, repr=not is_secret, metadata={"read": read})


def part(kind: type[Settings]) -> Any:
    """A field that is a group of settings."""
    return field(default_factory=kind, metadata={"read": lambda env, _: kind.read(env)})


def text(
    name: str, default: Any = REQUIRED, derived: Derived | None = None, *, made: Callable[[str], Any] = str
) -> Any:
    """A text; what is read is passed through `made`, which may raise ConfigurationError."""
    return _variable(name, lambda env, _: made(env.text(name)), default, derived)


def path(name: str, default: Path | None = None) -> Any:
    return text(name, default, made=Path)


def choice(name: str, allowed: tuple[str, ...], default: Any = REQUIRED, made: Callable[[str], Any] = str) -> Any:
    """One of `allowed`; what is read is passed through `made`."""
    return _variable(name, lambda env, _: made(env.choice(name, allowed)), default)


def flag(name: str, default: bool | None = False) -> Any:
    """The variable must be 0 or 1."""
    return _variable(name, lambda env, _: env.choice(name, ("0", "1")) == "1", default)


def switch(name: str) -> Any:
    """On where the variable is 1; whatever else it is means off."""
    return _variable(name, lambda env, _: env.text(name) == "1", False)


def integer(
    name: str,
    default: Any = REQUIRED,
    derived: Derived | None = None,
    *,
    low: int | Derived,
    high: int | Derived = HIGHEST,
) -> Any:
    """An integer in `low`..`high`."""

    def read(env: EnvironmentVariables, seen: Any) -> int:
        lowest, highest = (bound(seen) if callable(bound) else bound for bound in (low, high))
        return env.integer(name, low=lowest, high=highest)

    return _variable(name, read, default, derived)


def tcp_port(name: str, default: int) -> Any:
    """A TCP port; 0 stands for any free port."""
    return integer(name, default, low=0, high=65535)


def seconds(name: str, default: float, derived: Derived | None = None, *, zero: bool = False) -> Any:
    """Seconds above 0; `zero`: or 0."""
    return _variable(name, lambda env, _: env.seconds(name, zero=zero), default, derived)


def address(name: str, default: Any = REQUIRED) -> Any:
    return _variable(name, lambda env, _: env.address(name), default)


def _variable(
    name: str, parse: Callable[[EnvironmentVariables, Any], Any], default: Any, derived: Derived | None = None
) -> Any:
    """A field; `derived` in the place of `default` where it is read, and not set."""

    def read(env: EnvironmentVariables, seen: Any) -> Any:
        unset = default if derived is None else derived(seen)
        return unset if env.optional(name) is None and unset is not REQUIRED else parse(env, seen)

    return setting(read, default)
