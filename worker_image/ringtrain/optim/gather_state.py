"""Gathering of an optimizer's state from all ranks."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ringtrain._core.process_groups.group import CollectiveGroup, Flat, PendingCollective
from ringtrain.errors import MismatchError
from ringtrain.optim.layout import Bucket
from ringtrain.optim.replica_check import compare_weights
from ringtrain.optim.slots import FEEDBACK, MISSED, WEIGHTS
from ringtrain.optim.state import bucket_slots, compressed_buckets, merged_missed_steps
from ringtrain.optim.update_context import UpdateContext
from ringtrain.optim.wire import LOST, LOST_CHANGE


@dataclass(frozen=True)
class OptimizerStateRequest:
    """Arguments of `gather_state`, which must be equal on all ranks.

    `updates`: number of updates done. `rule`: name of the update rule. `root`: rank that gets the state; None: all
    ranks. `error_feedback`: whether the rounding errors of compression are gathered. `digest`: digest of the weights
    that all ranks have, or None to skip their comparison.
    """

    updates: int
    rule: str
    root: int | None
    error_feedback: bool
    digest: int | None = None


def gather_state(context: UpdateContext, wanted: OptimizerStateRequest) -> dict[str, Any]:
    """Gather the state of all ranks on rank `wanted.root`, or on all ranks if it is None. Return {} on other ranks.

    Returns `{"updates", "rule", "size", "arrays": {"weights": {name: array}, slot: {name: array}, …}}`, and with
    `error_feedback` the rounding errors of compression. If parameters had no gradient in some updates, the slot
    "missed" contains the number of these updates. Arrays have the parameter's shape; those of a local parameter are
    stacked by rank, because each rank has its own. Raises MismatchError if ranks pass different arguments or are at
    different updates, and StateCorrupt if they have different weights.
    """
    keep = wanted.root in (None, context.group.rank)
    pending = _begin_optimizer_agreement(context, wanted)
    # The receiving rank begins all gathers at once; the others need memory for only one at a time.
    slots = list(_slots_to_fill(context)) if keep else _slots_to_fill(context)
    # Before any gather, in which ranks that disagree would not take part.
    missed = _agreed_state_request(context, pending, wanted)
    arrays = _filled_optimizer_slots(context.group, slots, keep)
    owed = _filled_optimizer_slots(context.group, _feedback_to_fill(context), keep) if wanted.error_feedback else {}
    if not keep:
        return {}
    if missed:
        arrays[MISSED] = {name: np.array([count], np.int64) for name, count in missed.items()}
    state = {"updates": wanted.updates, "rule": wanted.rule, "size": context.group.size, "arrays": arrays}
    return {**state, FEEDBACK: owed} if owed else state


def _own_missed(context: UpdateContext) -> dict[str, int]:
    return {name: count for name, count in context.shard.missed.counts.items() if count}


def _begin_optimizer_agreement(context: UpdateContext, wanted: OptimizerStateRequest) -> PendingCollective | None:
    """Begin to exchange the arguments of a state request, so that a call by only one rank fails.

    Return None if ranks share no state: then a rank may call `gather_state` alone.
    """
    if context.group.size == 1 or not (context.sharded or any(spec.local for spec in context.layout.specs)):
        return None
    arguments = {"updates": wanted.updates, "root": wanted.root, "error_feedback": wanted.error_feedback}
    return context.group.gather_objects([arguments, _own_missed(context), wanted.digest], "state_dict")


def _agreed_state_request(
    context: UpdateContext, pending: PendingCollective | None, wanted: OptimizerStateRequest
) -> dict[str, int]:
    """Check that all ranks made the same request. Return, by parameter, the number of updates without a gradient."""
    if pending is None:
        return _own_missed(context)
    reported = pending.wait()
    expected = reported[0][0]
    for rank, (other, _, _) in enumerate(reported[1:], start=1):
        for what, value in other.items():
            if value != expected[what]:
                raise MismatchError(
                    f"state_dict: {what} is {expected[what]} on rank 0 and {value} on rank {rank}; every "
                    "rank must call state_dict() with the same arguments after the same update"
                )
    if wanted.digest is not None:
        compare_weights([{wanted.updates: digest} for _, _, digest in reported])
    return merged_missed_steps(missed for _, missed, _ in reported)


@dataclass(frozen=True)
class _StateSlotToFill:
    """State array of `bucket`, filled with the elements that this rank has. `bounds`: offsets of each rank's part; None
    if this rank has all elements."""

    bucket: Bucket
    slot: str
    whole: Flat
    bounds: Sequence[int] | None


def _slots_to_fill(context: UpdateContext) -> Iterator[_StateSlotToFill]:
    for bucket in context.layout.buckets:
        for slot, values in bucket_slots(context, bucket).items():
            yield _state_slot_to_fill(context, bucket, slot, values)


def _feedback_to_fill(context: UpdateContext) -> Iterator[_StateSlotToFill]:
    for bucket, wire in compressed_buckets(context):
        yield _state_slot_to_fill(context, bucket, LOST, wire.lost(bucket))
        yield _state_slot_to_fill(context, bucket, LOST_CHANGE, wire.lost_change(bucket))


def _state_slot_to_fill(context: UpdateContext, bucket: Bucket, slot: str, values: Flat) -> _StateSlotToFill:
    """Return state array `slot` of `bucket` prepared for a gather. `values`: the elements that this rank has.

    If each rank has its own values, the array has one row for each rank.
    """
    group, is_own = context.group, bucket.local or slot == LOST
    is_whole = not is_own and (slot == WEIGHTS or not context.sharded)
    if is_own:
        whole: Flat = np.empty((group.size, len(values)), values.dtype)
        whole[group.rank] = values
    else:
        whole = np.empty(bucket.size, values.dtype)
        whole[slice(None) if is_whole else context.arenas.owned(bucket)] = values
    if is_whole or group.size == 1 or not whole.size:
        return _StateSlotToFill(bucket, slot, whole, None)
    bounds = [rank * len(values) for rank in range(group.size + 1)] if is_own else bucket.bounds
    return _StateSlotToFill(bucket, slot, whole, bounds)


def _filled_optimizer_slots(
    group: CollectiveGroup, slots: Iterable[_StateSlotToFill], keep: bool
) -> dict[str, dict[str, Flat]]:
    """Gather the state arrays `slots`; return them by slot and parameter, or {} unless `keep`."""

    def begin(one: _StateSlotToFill) -> PendingCollective | None:
        return None if one.bounds is None else group.all_gather(one.whole.reshape(-1), one.bounds)

    begun = ((one, begin(one)) for one in slots)
    arrays: dict[str, dict[str, Flat]] = {}
    for one, pending in list(begun) if keep else begun:
        if pending is not None:
            pending.wait()
        if keep:
            arrays.setdefault(one.slot, {}).update(_state_by_parameter(one.bucket, one.whole))
    return arrays


def _state_by_parameter(bucket: Bucket, whole: Flat) -> dict[str, Flat]:
    return {
        location.spec.name: whole[..., location.start : location.stop].reshape(
            (*whole.shape[:-1], *location.spec.shape)
        )
        for location in bucket.locations
    }
