"""Conversion of dataclasses to protobuf and back: a dataclass and its message have fields of the same names."""

import functools
import typing
from collections.abc import Callable
from dataclasses import is_dataclass
from enum import Enum
from types import NoneType
from typing import Any, TypeVar

T = TypeVar("T")


def message_fields(value: Any) -> Any:
    """Return the dataclass `value` as keyword arguments of its message. Fields that are None are omitted."""
    if isinstance(value, str):  # a program's name may contain invalid bytes (lone surrogates in Python)
        return value if value.isascii() else value.encode("utf-8", "replace").decode()
    if isinstance(value, tuple):
        return [message_fields(item) for item in value]
    return {name: message_fields(item) for name, item in vars(value).items()} if is_dataclass(value) else value


def from_message(kind: Callable[..., T], message: Any) -> T:
    """Return the dataclass `kind` in `message`. Raises ValueError for an unknown enum value, such as of a phase."""
    return kind(*[read(message) for read in _readers(kind)])


@functools.cache  # used for every heartbeat of every worker
def _readers(kind: Any) -> list[Callable[[Any], Any]]:
    """Return a reader for each field of the dataclass `kind`."""
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
