"""Transfer of weights and state to the ranks of the new world, after ranks were lost or added.

Every rank computes senders and receivers from both cuts and the list of survivors, with the same result. A bucket is
one exchange; elements that a rank already has are not sent.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from ringtrain._core.process_groups.group import CollectiveGroup, Flat
from ringtrain.errors import ConfigurationError, MismatchError, StateLost, counted
from ringtrain.optim.cut import OptimizedModel, OptimizerCut, UnjoinedOptimizerGroup, make_cut
from ringtrain.optim.layout import Bucket
from ringtrain.optim.mirror import OptimizerShardMirror
from ringtrain.optim.slots import MASTER, WEIGHTS
from ringtrain.optim.state import merged_missed_steps
from ringtrain.optim.update_context import UpdateContext


@dataclass(frozen=True)
class OwnOptimizerShard:
    """Weights and state of one rank before a reshard. `torn`: buckets that an unfinished update partly changed."""

    cut: OptimizerCut
    updates: int
    torn: frozenset[int]

    @property
    def joined(self) -> bool:
        """Return whether this rank has been in a world before."""
        return not isinstance(self.cut.context.group, UnjoinedOptimizerGroup)


@dataclass(frozen=True)
class OptimizerShardMembers:
    """Ranks of the new world, each with its rank in the former world and with the shards that it has.

    `former`: the rank that each process had in the former world, or None for a new process. `size`: size of the former
    world. `replica_ranks[k][owner]`: the former rank that stored replica `k` of the shard of `owner`. `kept_shards`:
    for each rank, the former ranks whose shards it received from leaving ranks. `torn`: for each rank, the buckets
    whose weights are only partly updated. `updates`: number of updates done.
    """

    former: tuple[int | None, ...]
    size: int
    replica_ranks: tuple[tuple[int, ...], ...]
    kept_shards: tuple[tuple[int, ...], ...]
    torn: tuple[frozenset[int], ...]
    updates: int

    @property
    def survivors(self) -> list[int]:
        """Return the ranks that have state."""
        return [rank for rank, former in enumerate(self.former) if former is not None]

    @property
    def lost(self) -> list[int]:
        """Return the ranks of the former world that are not in the new one."""
        return [rank for rank in range(self.size) if rank not in self.former]

    def lacks(self, rank: int, bucket: Bucket) -> bool:
        """Return whether `rank` needs all weights of `bucket`: it is new, or its weights are partly updated."""
        return self.former[rank] is None or bucket.index in self.torn[rank]


@dataclass(frozen=True)
class HeldShardElements:
    """Range `start:stop` of a bucket's elements that rank `rank` of the new world has."""

    rank: int
    start: int
    stop: int


@dataclass(frozen=True)
class ShardMove:
    """Transfer of the elements `start:stop` of a bucket from rank `giver`, which may be the receiver itself."""

    giver: int
    start: int
    stop: int


def route_shards(held: Sequence[HeldShardElements], taker: int, start: int, stop: int) -> list[ShardMove]:
    """Return the transfers that bring the elements `start:stop` to rank `taker`.

    `held`: ranges of elements, with the rank that has them. An element comes from `taker` itself if it has the element,
    otherwise from the first entry in `held` that contains it.
    """
    edges = {start, stop, *(edge for h in held for edge in (h.start, h.stop) if start < edge < stop)}
    moves = []
    for begin, end in pairwise(sorted(edges)):
        ranks = [h.rank for h in held if h.start <= begin and end <= h.stop]
        moves.append(ShardMove(taker if taker in ranks else ranks[0], begin, end))
    return moves


def move_into_optimizer_cut(
    model: OptimizedModel, group: CollectiveGroup, former: Sequence[int | None], own: OwnOptimizerShard
) -> OwnOptimizerShard:
    """Reshard weights and state for the ranks of `group`; return this rank's new part. Collective.

    `own.cut` does not change. Raises StateLost on every rank if no rank has a part of the state, MismatchError if ranks
    are at different updates or have other models.
    """
    members = _exchange_members(group, former, own)
    if members.former[group.rank] is not None:
        for mirror in own.cut.context.copies.mirrors:
            mirror.settle(own.updates)
    missed = _missed_of_members(group, members, own)
    new = make_cut(model, group)
    _check_no_shard_lost(model, members)
    for bucket in new.context.layout.buckets:
        transfer = _OptimizerStateTransfer(model, members, own.cut, new, bucket)
        if bucket.local:
            transfer.stay()
        elif bucket.size:
            transfer.run()
    if not members.updates:
        new.context.arenas.refresh_masters(new.context.layout.buckets)
    for mirror in new.context.copies.mirrors:
        mirror.take_weights(new.context.arenas, masters=not members.updates)
    new.begin_at(members.updates, missed)
    return OwnOptimizerShard(new, members.updates, frozenset())


def _exchange_members(
    group: CollectiveGroup, former: Sequence[int | None], own: OwnOptimizerShard
) -> OptimizerShardMembers:
    """Return which shards and replicas each rank has, after an exchange between all ranks. Raises an error unless all
    reports are consistent."""
    context = own.cut.context
    brought = {
        "updates": own.updates, "size": context.group.size, "rank": context.group.rank, "joined": own.joined,
        "torn": sorted(own.torn), "former": list(former),
        "replica_ranks": [list(mirror.replica_ranks) for mirror in context.copies.mirrors],
        "kept": context.copies.kept_after(own.updates),
    }  # fmt: skip
    reported = group.allgather_object(brought, "reform")
    if len(former) != group.size:
        raise ConfigurationError(
            f"reform: former is {list(former)}; expected one entry for each of {counted(group.size, 'rank')}"
        )
    if all(rank is None for rank in former) and not any(other["joined"] for other in reported):
        former = [0, *former[1:]]  # nobody was in a world: rank 0's state is used, as in the first world
    survivors = [rank for rank, before in enumerate(former) if before is not None]
    if not survivors:
        raise ConfigurationError(
            f"reform: former is {list(former)}; expected the earlier number of at least one rank, which sends its state"
        )
    first = survivors[0]
    for rank in survivors:
        _compare_optimizers(rank, reported[rank], first, reported[first], former)
    torn = tuple(frozenset(other["torn"]) for other in reported)
    kept = tuple(() if before is None else tuple(other["kept"]) for before, other in zip(former, reported, strict=True))
    there = reported[first]
    return OptimizerShardMembers(
        tuple(former), there["size"], tuple(map(tuple, there["replica_ranks"])), kept, torn, there["updates"]
    )


def _missed_of_members(
    group: CollectiveGroup, members: OptimizerShardMembers, own: OwnOptimizerShard
) -> dict[str, int]:
    """Return, for each parameter, the number of updates without a gradient, as its ranks have counted."""
    context = own.cut.context
    known = [context.shard.missed.counts, *(mirror.missed.counts for mirror in context.copies.mirrors)]
    known += [context.copies.kept[rank].missed for rank in context.copies.kept_after(own.updates)]
    reported = group.allgather_object({name: n for name, n in merged_missed_steps(known).items() if n}, "reform missed")
    return merged_missed_steps(reported[rank] for rank in members.survivors)


def _compare_optimizers(
    rank: int, there: dict[str, object], first: int, expected: dict[str, object], former: Sequence[int | None]
) -> None:
    for what in ("former", "size", "replica_ranks", "updates"):
        if there[what] != expected[what]:
            raise MismatchError(
                f"reform: {what} is {expected[what]} on rank {first} and {there[what]} on rank {rank}; all "
                "ranks must come from the same world, and have called rollback() to the same update"
            )
    if there["rank"] != former[rank]:
        raise MismatchError(
            f"reform: former[{rank}] is {former[rank]}, but that rank had number {there['rank']} in its former world"
        )


def _check_no_shard_lost(model: OptimizedModel, members: OptimizerShardMembers) -> None:
    """Raise StateLost if no rank has a part of the state."""
    names = [spec.name for spec in model.specs if spec.local]
    if members.lost and names:
        raise StateLost(
            tuple(members.lost),
            f"ranks {members.lost} of the former world are lost with their own values of "
            f'"{names[0]}", which is local (never synchronised); load a checkpoint',
        )
    kept = {rank for ranks in members.kept_shards for rank in ranks}
    orphans = [
        rank
        for rank in members.lost
        if rank not in kept and all(copy[rank] in members.lost for copy in members.replica_ranks)
    ]
    if orphans and model.sharded:
        raise StateLost(
            tuple(orphans),
            f"ranks {members.lost} of the former world are lost, and no other rank has a replica of the shards of "
            f"{orphans}; load a checkpoint",
        )


@dataclass(frozen=True)
class _OptimizerStateTransfer:
    """Transfer of one bucket's weights and state to the ranks of the new world."""

    model: OptimizedModel
    members: OptimizerShardMembers
    old: OptimizerCut
    new: OptimizerCut
    bucket: Bucket

    def stay(self) -> None:
        """Copy the values of a bucket that is never synchronised from the old arrays to the new ones."""
        self._copy_weights()
        for slot, values in self.new.context.slots(self.bucket).items():
            values[:] = self.old.context.slots(self.bucket)[slot]

    def run(self) -> None:
        """Exchange the elements that ranks lack. Afterwards all ranks have all weights, and their part of the state."""
        group = self.new.context.group
        held = self._held()
        moves_by_rank = [self._moves_to(rank, held) for rank in range(group.size)]
        if not self.members.lacks(group.rank, self.bucket):
            self._copy_weights()
        received = [np.empty(0, np.uint8)] * group.size
        if any(move.giver != rank for rank, moves in enumerate(moves_by_rank) for _, move in moves):
            origins = sorted({move.giver for _, move in moves_by_rank[group.rank]})
            messages = [self._message(moves, rank) for rank, moves in enumerate(moves_by_rank)]
            received = group.all_to_all(messages, origins).wait()
        self._unpack(moves_by_rank[group.rank], received)
        self._carry_feedback()

    def _held(self) -> list[HeldShardElements]:
        """Return the elements that each rank has: first of owners, then of replicas, then of leaving ranks' shards."""
        members, size = self.members, self.bucket.size
        if members.size == 1 or not self.model.sharded:
            return [HeldShardElements(rank, 0, size) for rank in members.survivors]
        bounds = self.model.layout(members.size).buckets[self.bucket.index].bounds
        shards = [*enumerate(pairwise(bounds))]
        shards += [held for copy in members.replica_ranks for held in zip(copy, pairwise(bounds), strict=True)]
        holders = [(members.former.index(rank) if rank in members.former else None, *edges) for rank, edges in shards]
        edges_of = list(pairwise(bounds))
        holders += [(rank, *edges_of[owner]) for rank, owners in enumerate(members.kept_shards) for owner in owners]
        return [
            HeldShardElements(rank, start, stop) for rank, start, stop in holders if rank is not None and start < stop
        ]

    def _moves_to(self, rank: int, held: Sequence[HeldShardElements]) -> list[tuple[str, ShardMove]]:
        """Return the transfers that `rank` needs, in the order in which they are sent, each with the name of its state
        array."""
        slots = self.new.context.slots(self.bucket)
        wanted = [] if not self.members.updates else self._state_of(rank)
        moves = [
            (slot, move) for slot in slots for start, stop in wanted for move in route_shards(held, rank, start, stop)
        ]
        if self.members.lacks(rank, self.bucket):
            moves += [(WEIGHTS, move) for move in route_shards(held, rank, 0, self.bucket.size)]
        return moves

    def _state_of(self, rank: int) -> list[tuple[int, int]]:
        """Return the ranges of elements whose state `rank` stores in the new world, in its shard and its replicas."""
        if not self.model.sharded:
            return [(0, self.bucket.size)]
        owners = [mirror.replica_ranks.index(rank) for mirror in self.new.context.copies.mirrors]
        shards = [self.bucket.shard(one) for one in (rank, *owners)]
        return [(shard.start, shard.stop) for shard in shards if shard.start < shard.stop]

    def _message(self, moves: Iterable[tuple[str, ShardMove]], taker: int) -> Flat:
        rank = self.new.context.group.rank
        parts = [self._source(slot, move).view(np.uint8) for slot, move in moves if move.giver == rank != taker]
        return np.concatenate(parts) if parts else np.empty(0, np.uint8)

    def _unpack(self, moves: Iterable[tuple[str, ShardMove]], received: Sequence[Flat]) -> None:
        read = [0] * len(received)
        for slot, move in moves:
            target = self._target(slot, move)
            if move.giver == self.new.context.group.rank:
                target[:] = self._source(slot, move)
                continue
            begin = read[move.giver]
            read[move.giver] = end = begin + target.nbytes
            target.view(np.uint8)[:] = received[move.giver][begin:end]

    def _source(self, slot: str, move: ShardMove) -> Flat:
        context, bucket = self.old.context, self._old_bucket
        if slot == WEIGHTS and not any(self._is_of(mirror, bucket, move) for mirror in context.copies.mirrors):
            return context.arenas.weights(bucket)[move.start : move.stop]
        found = self._part(context, bucket, MASTER if slot == WEIGHTS and bucket.half else slot, move)
        return found.astype(bucket.dtype) if slot == WEIGHTS else found

    def _target(self, slot: str, move: ShardMove) -> Flat:
        if slot == WEIGHTS:
            return self.new.context.arenas.weights(self.bucket)[move.start : move.stop]
        return self._part(self.new.context, self.bucket, slot, move)

    def _part(self, context: UpdateContext, bucket: Bucket, slot: str, move: ShardMove) -> Flat:
        """Return the elements of `move` in the state array `slot`, from this rank's shard or a copy of another."""
        values, start = context.slots(bucket), context.arenas.owned(bucket).start
        for owner, copied in context.copies.of(bucket):
            shard = bucket.shard(owner)
            if shard.start <= move.start and move.stop <= shard.stop:
                values, start = copied, shard.start
                break
        return values[slot][move.start - start : move.stop - start]

    @staticmethod
    def _is_of(mirror: OptimizerShardMirror, bucket: Bucket, move: ShardMove) -> bool:
        shard = mirror.shard(bucket)
        return bool(shard.start <= move.start and move.stop <= shard.stop)

    def _copy_weights(self) -> None:
        self.new.context.arenas.weights(self.bucket)[:] = self.old.context.arenas.weights(self._old_bucket)

    def _carry_feedback(self) -> None:
        """Copy this rank's compression errors, scaled to keep their mean over ranks if the number of ranks changes."""
        old, new = (cut.context for cut in (self.old, self.new))
        if new.transfers.wire is None or old.transfers.wire is None or not new.transfers.wire.carries(self.bucket):
            return
        if self.members.former[new.group.rank] is not None:
            lost = new.transfers.wire.lost(self.bucket)
            lost[:] = old.transfers.wire.lost(self._old_bucket)
            if self.members.size != new.group.size:
                lost *= np.float32(new.group.size / self.members.size)

    @property
    def _old_bucket(self) -> Bucket:
        """Return the bucket of the old layout with the same elements."""
        return self.old.context.layout.buckets[self.bucket.index]
