"""Error messages for ranks that make different updates, in the words of the training script."""

import re
from typing import Final

from ringtrain._core.negotiation.queues import JOIN
from ringtrain.errors import MismatchError

GRADIENTS_READ: Final = "gradients read before step()"
# Action of a rank, by the collective that it called.
_DONE: Final = {
    "reduce_scatter": "made gradients of another backward pass",
    "all_gather": "called step()",
    GRADIENTS_READ: "read or changed gradients, weights or groups before step()",
    JOIN: "called join()",
}
_CALLED: Final = re.compile(r"collective #\d+: rank (\d+) called (.+) and rank (\d+) called (.+); every rank must .*")


def describe_update_mismatch(error: MismatchError) -> MismatchError:
    """Return an error that names what each rank did between two updates; `error` itself if that is unknown."""
    found = _CALLED.fullmatch(str(error))
    if found is None or not {found[2], found[4]} <= _DONE.keys():
        return error
    way_out = "every rank must call backward(), zero_grad() and step() equally often, and read gradients equally often"
    if JOIN in (found[2], found[4]):
        way_out = (
            "join() is not supported with a HostOptimizer, which needs equal numbers of steps: give all ranks equal "
            "numbers of batches (drop_last, ringtrain.data.shard), or use DistributedOptimizer"
        )
    return MismatchError(f"rank {found[1]} {_DONE[found[2]]} and rank {found[3]} {_DONE[found[4]]}; {way_out}")
