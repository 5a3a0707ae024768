"""What compression still owes, in a checkpoint: error feedback is part of the state of a training.

Each rank owes what rounding took from its own gradients (`lost`, as long as the weights on every rank), and the
owner of a shard what it took from the shard's last change (`lost_change`).
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

from ringtrain.errors import ConfigurationError
from ringtrain.optim.layout import Bucket
from ringtrain.optim.pipeline import Machine
from ringtrain.optim.wire import Wire
from ringtrain.process_groups.group import Flat

KEY = "error_feedback"
LOST, LOST_CHANGE = "lost", "lost_change"


def gather_feedback(machine: Machine, keep: bool) -> dict[str, dict[str, Flat]]:
    """Return `{"lost": {name: stacked by rank}, "lost_change": {name: array}}` of all ranks; {} where nothing is
    compressed, or with `keep` false. Collective.
    """
    found: dict[str, dict[str, Flat]] = {}
    wire = machine.wire
    for bucket in compressed(machine):
        assert wire is not None
        size, rank, ranks = bucket.size, machine.group.rank, machine.group.size
        rows = np.empty((ranks, size), np.float32)
        rows[rank] = wire.lost(bucket)
        machine.group.all_gather(rows.reshape(-1), [place * size for place in range(ranks + 1)]).wait()
        change = np.empty(size, np.float32)
        change[bucket.shard(rank)] = wire.lost_change(bucket)
        machine.group.all_gather(change, bucket.bounds).wait()
        if keep:
            for place in bucket.places:
                name, shape, cut = place.spec.name, place.spec.shape, slice(place.start, place.stop)
                found.setdefault(LOST, {})[name] = rows[:, cut].reshape(ranks, *shape)
                found.setdefault(LOST_CHANGE, {})[name] = change[cut].reshape(shape)
    return found


def restore_feedback(machine: Machine, saved: Mapping[str, Any]) -> None:
    """Owe what was owed when `saved` was made; nothing where it holds none.

    In a world of another size each rank owes the mean of what the ranks owed, so that the mean over ranks, which
    weights are updated with, is the same.
    """
    feedback = saved.get(KEY, {})
    wire, rank, ranks = machine.wire, machine.group.rank, machine.group.size
    for bucket in compressed(machine):
        assert wire is not None
        lost, change = wire.lost(bucket), np.zeros(bucket.size, np.float32)
        lost[:] = 0
        for place in bucket.places:
            if place.spec.name in feedback.get(LOST, {}):
                rows = feedback[LOST][place.spec.name]
                own = rows[rank] if len(rows) == ranks else rows.mean(axis=0, dtype=np.float64)
                lost[place.start : place.stop] = own.reshape(-1)
                change[place.start : place.stop] = feedback[LOST_CHANGE][place.spec.name].reshape(-1)
        wire.lost_change(bucket)[:] = change[bucket.shard(rank)]


def check_feedback(machine: Machine, saved: Mapping[str, Any]) -> None:
    """Raise ConfigurationError for error feedback that does not fit the model."""
    feedback = saved.get(KEY, {})
    for bucket in compressed(machine):
        for place in bucket.places:
            name, shape = place.spec.name, place.spec.shape
            for slot, expected in ((LOST, (saved["size"], *shape)), (LOST_CHANGE, shape)):
                array = feedback.get(slot, {}).get(name)
                if feedback and (array is None or array.shape != expected):
                    raise ConfigurationError(
                        f'the saved error feedback "{slot}" of parameter "{name}" is '
                        f"{'missing' if array is None else array.shape}; expected {expected}: load the state that "
                        f"state_dict() gave, or leave out its {KEY!r}"
                    )


def compressed(machine: Machine) -> list[Bucket]:
    """The buckets that travel in fewer bytes."""
    wire: Wire | None = machine.wire
    if wire is None or machine.group.size == 1:
        return []
    return [bucket for bucket in machine.layout.buckets if wire.carries(bucket)]
