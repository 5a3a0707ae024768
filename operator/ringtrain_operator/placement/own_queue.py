"""Order of jobs that wait for all their pods to be placed, and the devices that they compete for."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property

# Devices by node and name.
NodeDevices = Mapping[str, Mapping[str, int]]

# Resources that every pod uses: CPU, memory, ports, pod slots.
ROOM = "room"
# kube-scheduler's messages (pkg/scheduler/framework/plugins) about shortages that the end of another pod can resolve,
# and the message if it resolves none, for all nodes: "preemption: 0/2 nodes are available: 2 Preemption is not helpful
# for scheduling".
_LACKS = re.compile(r"Insufficient ([\w./-]*\w)")
_LACKS_ROOM = re.compile(
    r"Too many pods|free ports|anti-affinity|existing pods|spread constraints|volume count|disk conflict"
)
_HELPLESS = re.compile(r"preemption: 0/(\d+) nodes are available: \1 Preemption is not helpful")


@dataclass(frozen=True, order=True)
class PlacementContender:
    """A job's entry in the queue of jobs that wait for all their pods to be placed. Entries sort by `since`.

    `wants`: resources that it competes for: each worker's devices by name, and ROOM. `workers`: number that it needs to
    start. `tries_at`: time at which it may try to start although others are ahead; None if it has pods. `reserves`:
    whether jobs behind it must not try.
    """

    since: datetime
    uid: str
    job: str = field(default="", compare=False)
    wants: Mapping[str, int] = field(default_factory=dict, compare=False)
    workers: int = field(default=0, compare=False)
    tries_at: datetime | None = field(default=None, compare=False)
    reserves: bool = field(default=False, compare=False)

    def competes_with(self, other: "PlacementContender") -> bool:
        """Return whether one of the two jobs could use resources that the other one releases."""
        return other.uid != self.uid and not self.wants.keys().isdisjoint(other.wants)

    def fits(self, nodes: NodeDevices | None, used: NodeDevices) -> bool:
        """Return whether nodes have enough unused devices for all workers of the job; true if `nodes` is unknown."""
        devices = {name: amount for name, amount in self.wants.items() if amount}
        if nodes is None or not devices:
            return True
        left = ({d: n - used.get(node, {}).get(d, 0) for d, n in room.items()} for node, room in nodes.items())
        return sum(min(max(room.get(d, 0), 0) // n for d, n in devices.items()) for room in left) >= self.workers


@dataclass(frozen=True)
class PlacementContention:
    """The queue of all jobs of this operator that wait for all their pods to be placed.

    `used`: devices of nodes that its jobs use. `freed_at`: time at which one of them last released devices.
    """

    order: tuple[PlacementContender, ...] = ()
    used: NodeDevices = field(default_factory=dict)
    freed_at: datetime | None = None

    def rivals(self, me: PlacementContender) -> tuple[PlacementContender, ...]:
        """Return the jobs in the queue that compete with `me` for resources, in order."""
        return tuple(one for one in self.order if one.competes_with(me))

    def ahead_of(self, me: PlacementContender) -> tuple[PlacementContender, ...]:
        """Return the competing jobs that come before `me` in the queue."""
        return tuple(one for one in self.rivals(me) if one < me)

    def is_held_up(self, me: PlacementContender) -> bool:
        """Return whether `me` must wait, because a job ahead reserves its resources or a competitor is being placed."""
        return any(
            (one.reserves and one < me) or (one.tries_at is None and one.uid in self._behind_others)
            for one in self.rivals(me)
        )

    @cached_property
    def _behind_others(self) -> frozenset[str]:
        return frozenset(one.uid for one in self.order if one.tries_at is None and self.ahead_of(one))


def lacking_devices(words: str, devices: Iterable[str]) -> frozenset[str]:
    """Return the devices that a pod lacks and that other pods could free; ROOM stands for all other resources.

    `words`: message about the unschedulable pod. `devices`: devices that the pod requests. The result is empty if no
    other pod's end would help, for example if no node has the labels that the pod requires. If the message is not
    kube-scheduler's, the result has all `devices` and ROOM.
    """
    if "nodes are available" not in words:
        return frozenset({*devices, ROOM})
    if _HELPLESS.search(words):
        return frozenset()
    shortages = words.partition("preemption:")[0]
    found = {name if "/" in name else ROOM for name in _LACKS.findall(shortages)}
    return frozenset(found | {ROOM} if _LACKS_ROOM.search(shortages) else found)
