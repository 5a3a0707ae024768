"""What compression still owes, in a checkpoint: error feedback is part of the state of a training.

Each rank owes what rounding took from its own gradients (`lost`, as long as the weights on every rank), and the
owner of a shard what it took from the shard's last change (`lost_change`).
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

from ringtrain.errors import ConfigurationError
from ringtrain.optim.layout import Bucket
from ringtrain.optim.pipeline import UpdateContext
from ringtrain.optim.wire import Wire
from ringtrain.process_groups.group import Flat

KEY = "error_feedback"
LOST, LOST_CHANGE = "lost", "lost_change"


def gather_feedback(context: UpdateContext, keep: bool) -> dict[str, dict[str, Flat]]:
    """Return `{"lost": {name: stacked by rank}, "lost_change": {name: array}}` of all ranks; {} where nothing is
    compressed, or with `keep` false. Collective.
    """
    found: dict[str, dict[str, Flat]] = {}
    wire = context.wire
    for bucket in compressed(context):
        assert wire is not None
        size, rank, ranks = bucket.size, context.group.rank, context.group.size
        rows = np.empty((ranks, size), np.float32)
        rows[rank] = wire.lost(bucket)
        context.group.all_gather(rows.reshape(-1), [place * size for place in range(ranks + 1)]).wait()
        change = np.empty(size, np.float32)
        change[bucket.shard(rank)] = wire.lost_change(bucket)
        context.group.all_gather(change, bucket.bounds).wait()
        if keep:
            for location in bucket.locations:
                name, shape, cut = location.spec.name, location.spec.shape, slice(location.start, location.stop)
                found.setdefault(LOST, {})[name] = rows[:, cut].reshape(ranks, *shape)
                found.setdefault(LOST_CHANGE, {})[name] = change[cut].reshape(shape)
    return found


def restore_feedback(context: UpdateContext, saved: Mapping[str, Any]) -> None:
    """Owe what was owed when `saved` was made; nothing where it holds none.

    In a world of another size each rank owes the mean of what the ranks owed, so that the mean over ranks, which
    weights are updated with, is the same.
    """
    feedback = saved.get(KEY, {})
    wire, rank, ranks = context.wire, context.group.rank, context.group.size
    for bucket in compressed(context):
        assert wire is not None
        lost, change = wire.lost(bucket), np.zeros(bucket.size, np.float32)
        lost[:] = 0
        for location in bucket.locations:
            if location.spec.name in feedback.get(LOST, {}):
                rows = feedback[LOST][location.spec.name]
                own = rows[rank] if len(rows) == ranks else rows.mean(axis=0, dtype=np.float64)
                lost[location.start : location.stop] = own.reshape(-1)
                change[location.start : location.stop] = feedback[LOST_CHANGE][location.spec.name].reshape(-1)
        wire.lost_change(bucket)[:] = change[bucket.shard(rank)]


def check_feedback(context: UpdateContext, saved: Mapping[str, Any]) -> None:
    """Raise ConfigurationError for error feedback that does not fit the model."""
    feedback = saved.get(KEY, {})
    for bucket in compressed(context):
        for location in bucket.locations:
            name, shape = location.spec.name, location.spec.shape
            for slot, expected in ((LOST, (saved["size"], *shape)), (LOST_CHANGE, shape)):
                array = feedback.get(slot, {}).get(name)
                if feedback and (array is None or array.shape != expected):
                    raise ConfigurationError(
                        f'the saved error feedback "{slot}" of parameter "{name}" is '
                        f"{'missing' if array is None else array.shape}; expected {expected}: load the state that "
                        f"state_dict() gave, or leave out its {KEY!r}"
                    )


def compressed(context: UpdateContext) -> list[Bucket]:
    """The buckets that travel in fewer bytes."""
    wire: Wire | None = context.wire
    if wire is None or context.group.size == 1:
        return []
    return [bucket for bucket in context.layout.buckets if wire.carries(bucket)]
