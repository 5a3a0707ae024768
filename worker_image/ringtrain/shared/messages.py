"""Conversion between dataclasses and protobuf messages that have fields of the same names."""

import functools
import typing
from collections.abc import Callable
from dataclasses import is_dataclass
from enum import Enum
from types import NoneType
from typing import Any, TypeVar

T = TypeVar("T")


def message_fields(value: Any) -> Any:
    """Return a dataclass as the keyword arguments that construct its protobuf message."""
    if isinstance(value, str):  # a program's name may contain invalid bytes (lone surrogates in Python)
        return value if value.isascii() else value.encode("utf-8", "replace").decode()
    if isinstance(value, tuple):
        return [message_fields(item) for item in value]
    return {name: message_fields(item) for name, item in vars(value).items()} if is_dataclass(value) else value


def from_message(kind: Callable[..., T], message: Any) -> T:
    """Return a protobuf message as the dataclass `kind`. Raises ValueError for an unknown enum value."""
    return kind(*[read(message) for read in _readers(kind)])


@functools.cache  # used for every heartbeat of every worker
def _readers(kind: Any) -> list[Callable[[Any], Any]]:
    """Return, for each field of the dataclass `kind`, a function that reads it from a protobuf message."""
    return [_reader(name, hint) for name, hint in typing.get_type_hints(kind).items()]


def _reader(name: str, hint: Any) -> Callable[[Any], Any]:
    inner = next(iter(typing.get_args(hint)), hint)
    make = functools.partial(from_message, typing.cast(Any, inner)) if is_dataclass(inner) else inner
    if typing.get_origin(hint) is tuple:
        return lambda message: tuple(map(make, getattr(message, name)))
    if NoneType not in typing.get_args(hint):
        return lambda message: make(getattr(message, name))
    if issubclass(inner, Enum):  # None is the empty string
        return lambda message: make(getattr(message, name)) if getattr(message, name) else None
    return lambda message: make(getattr(message, name)) if message.HasField(name) else None
