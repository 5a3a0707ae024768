"""Change of a host optimizer's world: undo an update, and continue with other ranks."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import numpy as np

from ringtrain._core.process_groups.group import CollectiveGroup, Flat
from ringtrain.errors import ConfigurationError, RingtrainError
from ringtrain.optim.host_state import SavedHostOptimizer
from ringtrain.optim.layout import Bucket
from ringtrain.optim.mirror import KeptShard
from ringtrain.optim.reform import OwnOptimizerShard, move_into_optimizer_cut
from ringtrain.optim.rules import Rule
from ringtrain.optim.update_context import UpdateContext


class ElasticHostOptimizer(SavedHostOptimizer):
    """Part of `HostOptimizer` that undoes updates and moves to another world."""

    _committed: tuple[Rule, ...]
    _prepared: OwnOptimizerShard | None
    _closed: bool

    def commit(self) -> None:
        """Record the current rules as those that `rollback` restores."""
        self._committed = self._rules

    def rollback(self, to: int | None = None) -> int:
        """Undo the update in progress, and restore this rank's part of weights and state as of update `to`.

        Return `to`.

        Local; needs `elastic`. `to`: number of completed updates, `updates`, which is also the default; pass `updates -
        1` if another rank did not finish the last update. Discards gradients and micro-steps submitted since, and the
        error of a step. If an update had begun to change weights, the weights of other ranks' shards are valid again
        only after `reform`.
        Waits for an update whose step() was called: its world must have failed, or have all its ranks.
        """
        undo = self._cut.context.shard.undo
        if undo is None:
            raise ConfigurationError("rollback() needs HostOptimizer(elastic=True), which stores undo copies")
        if self._closed:
            raise RingtrainError("the optimizer was closed")
        if not self._ending:
            self._give_up()
        if self._thread is not None:
            self._thread.join()
        done = self.updates
        chosen = done if to is None else to
        if chosen not in (done, done - 1) or chosen < 0:
            raise ConfigurationError(f"rollback: to={to}; expected {done} (the number of updates) or one less")
        restored = undo.restore(chosen)
        self._cut.context.shard.missed.undo(chosen)
        for mirror in self._cut.context.copies.mirrors:
            if chosen < done:
                mirror.settle(chosen)
            else:  # other ranks may not have done that update; it may have to be undone too
                mirror.forget_after(chosen)
        for index in restored:
            bucket = self._cut.context.layout.buckets[index]
            self._cut.context.arenas.round_master(bucket)
            if self._model.sharded and not self._cut.context.stays_here(bucket):
                self._torn |= {index}
        self._updates, self._thread, self._update, self._ending = chosen, None, None, False
        self._error = self._norm = None
        self._rules = self._committed
        self._cut.inbox.begin_update()
        return chosen

    def hand_over(self, leaving: Collection[int]) -> None:
        """Send state that only the `leaving` ranks have to ranks that stay, which use it in the next `prepare`.

        Collective, after the same update on all ranks; needs `elastic`.
        """
        self._require_idle("hand_over")
        hand_over_shards(self._cut.context, self._updates, leaving)

    def reform(self, group: CollectiveGroup, former: Sequence[int | None]) -> None:
        """Continue in the world of `group`, by `prepare` and `adopt`. Collective."""
        self.prepare(group, former)
        self.adopt()

    def prepare(self, group: CollectiveGroup, former: Sequence[int | None]) -> None:
        """Reshard weights and state for `group`. The copy for the old world stays in use until `adopt()`.

        Collective; needs `elastic`.

        `former`: for each rank of `group`, its rank in the former world, from which the state comes; None for a new
        process. Before this call, all survivors must call `rollback` to the same update. Only missing data is sent. The
        copy for the old world does not change: if a rank is lost during this call (PeerLost), call `prepare` again in
        the next world. Raises StateLost, on every rank, if no rank has a shard; MismatchError if survivors are at
        different updates, or a new process has another model.
        """
        if self._cut.context.shard.undo is None:
            raise ConfigurationError("reform() needs HostOptimizer(elastic=True)")
        self._require_idle("reform")
        self._prepared = None
        own = OwnOptimizerShard(self._cut, self._updates, self._torn)
        self._prepared = move_into_optimizer_cut(self._model, group, former, own)

    def adopt(self) -> None:
        """Switch to the state that `prepare` received. Afterwards `weights` returns other arrays. Not collective."""
        if self._prepared is None:
            raise ConfigurationError("adopt() was called, but nothing is prepared; call prepare() on all ranks")
        self._cut, self._updates, self._torn = self._prepared.cut, self._prepared.updates, self._prepared.torn
        self._views.update(self._cut.views)
        self._prepared = None

    def discard(self) -> None:
        """Discard the state that `prepare` received. Not collective."""
        self._prepared = None


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
