"""Faults in an elastic job under test: worlds and faults derived from seeds."""

import random
from dataclasses import dataclass
from typing import Any

from support.elastic_training import WINDOW

# Ten seeds, one after the other, have one job. Each of them can be played alone, in a job like that.
BLOCK = 10


@dataclass(frozen=True)
class Fault:
    """One thing that happens. `on`, `number`, `delay_s`: when, as `support.elastic_training` says.

    `nth`: not the first time that this process comes to the point, but the nth. `follows`: only after the seed's
    first fault. `act`: `kill`; `stop`, until it is killed; `pulse`, stopped for `more_s`, which nobody shall
    notice; `wake`, let go on `more_s` after the others have noticed; `launcher`, whose process is killed; `pod`,
    whose agent is killed with its ranks; `freeze`, all of the pod is stopped for `more_s`; `leave`, the pod is
    asked to stop.
    """

    slot: int
    on: str
    act: str
    delay_s: float
    number: int = 0
    more_s: float = 0.0
    nth: int = 1
    follows: bool = False


@dataclass(frozen=True)
class Shape:
    """The job of a block. `patient`: a silent process is not lost before a minute; else after `timeout_s`.
    `copies`: of each shard, beside its owner's."""

    pods: int
    slots: int
    transport: str
    on_loss: str
    sharded: bool
    patient: bool
    copies: int = 1

    @property
    def ranks(self) -> int:
        return self.pods * self.slots

    @property
    def timeout_s(self) -> float:
        return 60.0 if self.patient else 6.0


_PATIENT = (
    *((1, ranks, transport) for ranks in (2, 3, 4, 5, 6) for transport in ("grpc", "shm")),
    *((2, 1, "grpc"), (3, 1, "grpc"), (2, 2, "auto"), (3, 2, "auto"), (2, 3, "auto")),
)
_SILENT = (
    (1, 3, "grpc"),
    (1, 4, "shm"),
    (2, 1, "grpc"),
    (3, 1, "grpc"),
    (2, 2, "auto"),
    (3, 2, "auto"),
    (2, 3, "auto"),
)


def shape_of(block: int) -> Shape:
    """The job of a block of seeds."""
    chance = random.Random(f"shape {block}")
    patient = chance.random() < 0.75
    pods, slots, transport = chance.choice(_PATIENT if patient else _SILENT)
    on_loss, sharded = chance.choice(["Replace", "Shrink"]), chance.random() < 0.8
    copies = 2 if sharded and random.Random(f"copies {block}").random() < 0.4 else 1
    return Shape(pods, slots, transport, on_loss, sharded, patient, copies)


def faults_of(seed: int, shape: Shape) -> tuple[Fault, ...]:
    """Return the faults of a seed in a job of that shape; `number` counts from the window's first step, 1."""
    chance = random.Random(f"faults {seed}")
    slot = chance.randrange(shape.ranks)
    other = (slot + 1 + chance.randrange(shape.ranks - 1)) % shape.ranks
    # A step takes some 10 ms, its commit one or two.
    on, longest_s = chance.choice([("step", 0.012), ("step", 0.012), ("commit", 0.003)])
    begin: dict[str, Any] = {
        "slot": slot, "on": on, "number": chance.randint(1, WINDOW), "delay_s": chance.uniform(0, longest_s),
    }  # fmt: skip
    kind = chance.choice(_kinds(shape))
    if kind in ("kill", "stop", "leave", "pod", "launcher"):
        return (Fault(act=kind, **begin),)
    if kind == "pulse":
        return (Fault(act=kind, more_s=chance.uniform(0.02, 0.8), **begin),)
    if kind == "wake":
        return (Fault(act=kind, more_s=chance.uniform(0, 1.5), **begin),)
    if kind == "freeze":
        return (Fault(act=kind, more_s=chance.uniform(0.2, 5), **begin),)
    first = Fault(act="kill", **begin)
    if kind == "both":
        return (first, Fault(**{**begin, "slot": other, "delay_s": chance.uniform(0, longest_s)}, act="kill"))
    act = kind.removeprefix("second ")
    if kind != "third kill":
        return (first, _later(chance, shape, slot, chance.choice([slot, other]), act))
    others = chance.sample(sorted(set(range(shape.ranks)) - {slot}), min(2, shape.ranks - 1))
    return (first, *(_later(chance, shape, slot, one, "kill") for one in others))


def _later(chance: random.Random, shape: Shape, lost: int, slot: int, act: str) -> Fault:
    """Something that happens in `slot` while the world is made again after a loss in the slot `lost`."""
    on = chance.choice(["join", "meet", "transfer"] if slot == lost else ["park", "meet", "transfer"])
    # A park lasts until the newcomer is here, a meeting and a transfer some milliseconds.
    delay_s = chance.uniform(0, 0.6 if on in ("park", "join") else chance.choice([0.003, 0.02, 0.06]))
    # Where the others have gone on at once, the newcomer comes with a second change of the world.
    nth = 2 if slot != lost and on != "park" and shape.on_loss == "Shrink" and chance.random() < 0.5 else 1
    more_s = chance.uniform(0.02, 0.8) if act == "pulse" else 0.0
    return Fault(slot, on, act, delay_s, more_s=more_s, nth=nth, follows=True)


def _kinds(shape: Shape) -> list[str]:
    if shape.patient:
        seconds = [*["second kill"] * 5, "third kill", "second pulse", "second launcher"]
        return ["kill", "kill", "kill", "pulse", "both", "launcher", *seconds]
    pods = ["pod", "freeze", "freeze", "leave"] if shape.pods > 1 else []
    # No launcher is killed here: on a busy machine it is not started again within so short a timeout.
    return ["stop", "wake", "wake", "second stop", "second stop", *pods]
