"""Values to protobuf and back: a dataclass and its message have fields of the same names."""

import functools
import typing
import zlib
from collections.abc import Callable
from dataclasses import is_dataclass
from enum import Enum
from types import NoneType
from typing import Any, TypeVar

from ringtrain.control.model import Form, Order, Prepare, Release, Start, Stop, Verdict, World
from ringtrain.gen import coordinator_pb2 as pb

T = TypeVar("T")


def message_fields(value: Any) -> Any:
    """The dataclass `value` as keyword arguments of its message. What is None stays absent there."""
    if isinstance(value, str):  # a program's name may hold bytes that are no text (lone surrogates here)
        return value if value.isascii() else value.encode("utf-8", "replace").decode()
    if isinstance(value, tuple):
        return [message_fields(item) for item in value]
    return {name: message_fields(item) for name, item in vars(value).items()} if is_dataclass(value) else value


def from_message(kind: Callable[..., T], message: Any) -> T:
    """The `kind` of dataclass that is in `message`. ValueError for a word that does not exist, as of a phase."""
    return kind(*[read(message) for read in _readers(kind)])


def order_to_message(order: Order) -> Any:
    """`order` as a message."""
    match order:
        case Start(world):
            return pb.Order(start=message_fields(world))
        case Prepare():
            return pb.Order(prepare=message_fields(order))
        case Form():
            return pb.Order(form=message_fields(order))
        case Stop(verdict):
            return pb.Order(stop=message_fields(verdict))
        case Release(verdict):
            return pb.Order(release=message_fields(verdict))


def deflated(order: Any) -> Any:
    """The message `order` compressed, as a message that is an order, too."""
    return pb.Order(deflated=zlib.compress(order.SerializeToString()))


def order_from_message(message: Any) -> Order:
    """The order in `message`."""
    if message.WhichOneof("order") == "deflated":
        message = pb.Order.FromString(zlib.decompress(message.deflated))
    kind = message.WhichOneof("order")
    if kind == "start":
        return Start(from_message(World, message.start))
    if kind == "prepare":
        return from_message(Prepare, message.prepare)
    if kind == "form":
        return from_message(Form, message.form)
    verdict = from_message(Verdict, getattr(message, kind))
    return Stop(verdict) if kind == "stop" else Release(verdict)


@functools.cache  # every heartbeat of every worker is read
def _readers(kind: Any) -> list[Callable[[Any], Any]]:
    """What reads each field of the dataclass `kind` from its message."""
    return [_reader(name, hint) for name, hint in typing.get_type_hints(kind).items()]


def _reader(name: str, hint: Any) -> Callable[[Any], Any]:
    inner = next(iter(typing.get_args(hint)), hint)
    make = functools.partial(from_message, typing.cast(Any, inner)) if is_dataclass(inner) else inner
    if typing.get_origin(hint) is tuple:
        return lambda message: tuple(map(make, getattr(message, name)))
    if NoneType not in typing.get_args(hint):
        return lambda message: make(getattr(message, name))
    if issubclass(inner, Enum):  # no word is the empty one
        return lambda message: make(getattr(message, name)) if getattr(message, name) else None
    return lambda message: make(getattr(message, name)) if message.HasField(name) else None
