"""Values of environment variables. What is wrong with one raises ConfigurationError: its name, value and range."""

from collections.abc import Mapping
from typing import Final

from ringtrain.errors import ConfigurationError, shown

# Eleven days. gRPC counts milliseconds in 32 bits.
LONGEST_TIMEOUT_S: Final = 1e6
# More ranks than any world has; sizes, generations and attempts travel in 32 bits.
HIGHEST: Final = 2**31 - 1


def integer(
    env: Mapping[str, str], name: str, default: int = 0, *, lowest: int | None = None, highest: int = HIGHEST
) -> int:
    """The value of `name`; `default` where it is not set."""
    text = env.get(name)
    if text is None:
        return default
    limits = f"at most {highest}" if lowest is None else f"{lowest} to {highest}"
    try:
        value = int(text)
    except ValueError:
        raise ConfigurationError(f'{name} is "{shown(text)}"; expected an integer, {limits}') from None
    if (lowest is not None and value < lowest) or value > highest:
        raise ConfigurationError(f"{name} is {shown(text)}; expected {limits}")
    return value


def seconds(env: Mapping[str, str], name: str, default: float) -> float:
    """The value of `name`; `default` where it is not set."""
    text = env.get(name)
    if text is None:
        return default
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value <= LONGEST_TIMEOUT_S:
        raise ConfigurationError(
            f'{name} is "{shown(text)}"; expected seconds, more than 0 and at most {LONGEST_TIMEOUT_S:g}'
        )
    return value


def one_of(env: Mapping[str, str], name: str, allowed: tuple[str, ...]) -> str:
    """The value of `name`, by default the first that is allowed."""
    value = env.get(name) or allowed[0]
    if value not in allowed:
        raise ConfigurationError(f'{name} is "{shown(value)}"; expected one of {", ".join(allowed)}')
    return value
