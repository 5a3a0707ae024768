"""Errors of ranks that make different updates, in the words of a training script."""

import re
from typing import Final

from ringtrain._core.negotiation.queues import JOIN
from ringtrain.errors import MismatchError

GRADIENTS_READ: Final = "gradients read before step()"
# What a rank did, by the collective that it made.
_DONE: Final = {
    "reduce_scatter": "made gradients of another backward pass",
    "all_gather": "called step()",
    GRADIENTS_READ: "read or changed gradients, weights or groups before step()",
    JOIN: "called join()",
}
_CALLED: Final = re.compile(r"collective #\d+: rank (\d+) called (.+) and rank (\d+) called (.+); every rank must .*")


def in_words_of_updates(error: MismatchError) -> MismatchError:
    """Return an error that says what each rank did between two updates; `error` itself where that is not known."""
    found = _CALLED.fullmatch(str(error))
    if found is None or not {found[2], found[4]} <= _DONE.keys():
        return error
    way_out = "every rank must call backward(), zero_grad() and step() equally often, and read gradients alike"
    if JOIN in (found[2], found[4]):
        way_out = (
            "join() does not help with a HostOptimizer, which needs as many steps on every rank: give all ranks as "
            "many batches (drop_last, ringtrain.data.shard), or take DistributedOptimizer"
        )
    return MismatchError(f"rank {found[1]} {_DONE[found[2]]} and rank {found[3]} {_DONE[found[4]]}; {way_out}")
