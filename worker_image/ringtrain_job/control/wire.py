"""Conversion of orders between Python and protobuf. Orders with many hosts are compressed."""

import zlib
from collections.abc import Iterator
from itertools import groupby
from typing import Any, Final

from ringtrain.shared.gen import coordinator_pb2 as pb
from ringtrain.shared.messages import from_message, message_fields
from ringtrain_job.control.model import Form, Order, Prepare, Release, Start, Stop, Verdict, World

COORDINATOR: Final = pb.DESCRIPTOR.services_by_name["Coordinator"]


def order_to_message(order: Order) -> Any:
    """Return `order` as a message."""
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


def deflated_order(order: Any) -> Any:
    """Return the protobuf order `order`, compressed with zlib after repeated host names are removed."""
    small = pb.Order.FromString(order.SerializeToString())
    for world in _worlds_in(small):
        world.places.extend(_world_places(world))
        del world.ring_addresses[:], world.tf_addresses[:]
    return pb.Order(deflated=zlib.compress(small.SerializeToString()))


def _inflated(order: Any) -> Any:
    order = pb.Order.FromString(zlib.decompress(order.deflated))
    for world in _worlds_in(order):
        for place in world.places:
            world.ring_addresses.extend(f"{place.host}:{port}" for port in place.ring_ports)
            world.tf_addresses.extend(f"{place.host}:{port}" for port in place.tf_ports)
    return order


def _worlds_in(order: Any) -> list[Any]:
    """Return the world in a protobuf order as a list of one; empty if the order has none."""
    kind = order.WhichOneof("order")
    return [order.start] if kind == "start" else [order.form.world] if kind == "form" else []


def _world_places(world: Any) -> Iterator[Any]:
    """Yield the hosts and ports of a world's ranks. Consecutive ranks of one host form one entry.

    If ring and TensorFlow addresses have different host names, each of the two names has an entry.
    """
    ranks = zip(world.ring_addresses, world.tf_addresses, strict=True)
    split = ((ring.rpartition(":"), tf.rpartition(":")) for ring, tf in ranks)
    for (ring_host, tf_host), places in groupby(split, lambda rank: (rank[0][0], rank[1][0])):
        ring_ports, tf_ports = zip(*((int(ring[2]), int(tf[2])) for ring, tf in places), strict=True)
        if ring_host == tf_host:
            yield pb.Place(host=ring_host, ring_ports=ring_ports, tf_ports=tf_ports)
        else:
            yield pb.Place(host=ring_host, ring_ports=ring_ports)
            yield pb.Place(host=tf_host, tf_ports=tf_ports)


def order_from_message(message: Any) -> Order:
    """Return the order in a protobuf message, which may be compressed."""
    if message.WhichOneof("order") == "deflated":
        message = _inflated(message)
    kind = message.WhichOneof("order")
    if kind == "start":
        return Start(from_message(World, message.start))
    if kind == "prepare":
        return from_message(Prepare, message.prepare)
    if kind == "form":
        return from_message(Form, message.form)
    verdict = from_message(Verdict, getattr(message, kind))
    return Stop(verdict) if kind == "stop" else Release(verdict)
