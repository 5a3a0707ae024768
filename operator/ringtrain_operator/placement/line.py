"""The line of jobs that wait to be placed whole: what each competes for, who is ahead of whom, what is free."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property

# Devices by node and name.
NodeDevices = Mapping[str, Mapping[str, int]]

# What every pod takes of a node: processors, memory, ports, a place among pods.
ROOM = "room"
# kube-scheduler's words for what another pod's end can change (pkg/scheduler/framework/plugins), and, of all
# nodes, for what it can't: "preemption: 0/2 nodes are available: 2 Preemption is not helpful for scheduling".
_LACKS = re.compile(r"Insufficient ([\w./-]*\w)")
_LACKS_ROOM = re.compile(
    r"Too many pods|free ports|anti-affinity|existing pods|spread constraints|volume count|disk conflict"
)
_HELPLESS = re.compile(r"preemption: 0/(\d+) nodes are available: \1 Preemption is not helpful")


@dataclass(frozen=True, order=True)
class PlacementContender:
    """A job that waits to be placed whole; who is less comes first. `job`: namespace and name.

    `wants`: what it competes for: each worker's devices by name, and ROOM. `workers`: without which it can't
    begin. `tries_at`: when it may try to find room although others are ahead; None: it has pods. `reserves`:
    nobody behind it may.
    """

    since: datetime
    uid: str
    job: str = field(default="", compare=False)
    wants: Mapping[str, int] = field(default_factory=dict, compare=False)
    workers: int = field(default=0, compare=False)
    tries_at: datetime | None = field(default=None, compare=False)
    reserves: bool = field(default=False, compare=False)

    def competes_with(self, other: "PlacementContender") -> bool:
        """Whether what one of both gives back may be what the other lacks."""
        return other.uid != self.uid and not self.wants.keys().isdisjoint(other.wants)

    def fits(self, nodes: NodeDevices | None, used: NodeDevices) -> bool:
        """Whether nodes have its workers' devices beside those `used`, as far as both are known."""
        devices = {name: amount for name, amount in self.wants.items() if amount}
        if nodes is None or not devices:
            return True
        left = ({d: n - used.get(node, {}).get(d, 0) for d, n in room.items()} for node, room in nodes.items())
        return sum(min(max(room.get(d, 0), 0) // n for d, n in devices.items()) for room in left) >= self.workers


@dataclass(frozen=True)
class PlacementContention:
    """All jobs of this operator that wait to be placed whole, the first first.

    `used`: what its jobs have of nodes. `freed_at`: when one of them last gave devices back.
    """

    order: tuple[PlacementContender, ...] = ()
    used: NodeDevices = field(default_factory=dict)
    freed_at: datetime | None = None

    def rivals(self, me: PlacementContender) -> tuple[PlacementContender, ...]:
        """Those who compete with it, the first first."""
        return tuple(one for one in self.order if one.competes_with(me))

    def ahead_of(self, me: PlacementContender) -> tuple[PlacementContender, ...]:
        """Those of its rivals that come before it."""
        return tuple(one for one in self.rivals(me) if one < me)

    def is_held_up(self, me: PlacementContender) -> bool:
        """Whether it may not try now: a rival ahead reserves what it waits for, or another one tries."""
        return any(
            (one.reserves and one < me) or (one.tries_at is None and one.uid in self._behind_others)
            for one in self.rivals(me)
        )

    @cached_property
    def _behind_others(self) -> frozenset[str]:
        return frozenset(one.uid for one in self.order if one.tries_at is None and self.ahead_of(one))


def lacking_devices(words: str, devices: Iterable[str]) -> frozenset[str]:
    """What a pod lacks that others have, as the scheduler says it: names of devices, and ROOM.

    Empty: no other pod's end would help it, as where no node has its labels. Where another scheduler says it in
    words of its own, all `devices` and ROOM.
    """
    if "nodes are available" not in words:
        return frozenset({*devices, ROOM})
    if _HELPLESS.search(words):
        return frozenset()
    said = words.partition("preemption:")[0]
    found = {name if "/" in name else ROOM for name in _LACKS.findall(said)}
    return frozenset(found | {ROOM} if _LACKS_ROOM.search(said) else found)
