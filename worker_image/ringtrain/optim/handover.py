"""Transfer of shards from ranks that leave in a planned change to ranks that stay, before their world ends.

A shard is on its owner and on the ranks with its replicas. If all of these leave, the owner sends it to a rank that
stays, which brings it into the next world like a replica.
"""

from collections.abc import Collection, Mapping, Sequence

import numpy as np

from ringtrain._core.process_groups.group import Flat
from ringtrain.optim.layout import Bucket
from ringtrain.optim.mirror import KeptShard
from ringtrain.optim.update_context import UpdateContext


def assign_receivers(size: int, replica_ranks: Sequence[Sequence[int]], leaving: Collection[int]) -> dict[int, int]:
    """Return, for each leaving rank whose shard no staying rank has, the staying rank that receives it; receivers are
    chosen round-robin.

    `replica_ranks[k][owner]`: the rank that stores replica `k` of the shard of `owner`.
    """
    staying = [rank for rank in range(size) if rank not in leaving]
    orphans = [rank for rank in leaving if all(copy[rank] in leaving for copy in replica_ranks)]
    return {rank: staying[place % len(staying)] for place, rank in enumerate(orphans)} if staying else {}


def hand_over_shards(context: UpdateContext, updates: int, leaving: Collection[int]) -> None:
    """Send each shard that only `leaving` ranks have to a rank that stays. Collective, after the same update."""
    group, replica_ranks = context.group, [mirror.replica_ranks for mirror in context.copies.mirrors]
    if not replica_ranks or not (receivers := assign_receivers(group.size, replica_ranks, sorted(leaving))):
        return
    own = [owner for owner, taker in receivers.items() if taker == group.rank]
    missed = group.allgather_object({name: n for name, n in context.shard.missed.counts.items() if n}, "missed")
    kept = {owner: KeptShard(updates, {}, missed[owner]) for owner in own}
    for bucket in context.copies.mirrors[0].buckets:
        slots = context.slots(bucket)
        message = np.concatenate([np.empty(0, np.uint8), *(slots[name].view(np.uint8) for name in slots)])
        nothing = np.empty(0, np.uint8)
        parts = [message if receivers.get(group.rank) == taker else nothing for taker in range(group.size)]
        # The message is empty for a rule without state, or a shard without an element of this bucket.
        origins = [owner for owner in own if slots and bucket.bounds[owner] < bucket.bounds[owner + 1]]
        received = group.all_to_all(parts, origins).wait()
        for owner in own:
            kept[owner].values[bucket.index] = _unpacked_bucket(bucket, owner, slots, received[owner])
    context.copies.kept.clear()
    context.copies.kept.update(kept)


def _unpacked_bucket(bucket: Bucket, owner: int, like: Mapping[str, Flat], received: Flat) -> dict[str, Flat]:
    """Split `received`, the bytes of the shard of `owner`, into arrays with the names and dtypes of `like`."""
    length = bucket.bounds[owner + 1] - bucket.bounds[owner]
    values, start = {}, 0
    for name, own in like.items():
        values[name] = np.empty(length, own.dtype)
        end = start + values[name].nbytes
        values[name].view(np.uint8)[:] = received[start:end]
        start = end
    return values
