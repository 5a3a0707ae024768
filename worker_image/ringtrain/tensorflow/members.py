"""The ranks of a process set as graphs see them.

A graph of an elastic job outlives the world that it was built in. What depends on the number of ranks is looked up
when such a graph runs; elsewhere it is part of the graph.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf

from ringtrain._core.process_groups.formations import own_agent
from ringtrain._core.process_groups.process_sets import ProcessSet, members, trains_alone
from ringtrain.tensorflow.calls import host_call


def stays_alone(process_set: ProcessSet) -> bool:
    """Whether what is built now can do without a reduction: this rank shares gradients with no other of
    `process_set`, and will not do so in any later world.
    """
    return trains_alone(process_set) and not outlives_the_world()


def members_as(process_set: ProcessSet, dtype: Any) -> Any:
    """Return the number of ranks in `process_set` as a tensor of `dtype`."""
    if not outlives_the_world():
        return tf.cast(members(process_set), dtype)

    def count() -> list[Any]:
        return [np.asarray(1 if trains_alone(process_set) else members(process_set), np.int32)]

    return tf.cast(host_call(count, [], [tf.int32], [[]])[0], dtype)


def outlives_the_world() -> bool:
    """Whether what is built now may run in a later world of an elastic job."""
    return own_agent() is not None and not tf.executing_eagerly()
