"""Complete state of an optimizer as plain arrays by parameter name, which can be loaded at another world size.

It includes the rounding errors of compression. Each rank has the errors of its own gradients (`lost`, as long as the
weights on every rank), and the owner of a shard those of its last change (`lost_change`).
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ringtrain._core.process_groups.group import CollectiveGroup, Flat, PendingCollective
from ringtrain._core.reduction.cuts import ArrayPart, ReadableArray, elements_of_cut
from ringtrain.errors import ConfigurationError, MismatchError
from ringtrain.optim.layout import Bucket, ParamSpec
from ringtrain.optim.mirror import OptimizerShardMirror
from ringtrain.optim.pipeline import UpdateContext
from ringtrain.optim.replica_check import compare_weights
from ringtrain.optim.slots import FEEDBACK, MISSED, WEIGHTS
from ringtrain.optim.wire import LOST, LOST_CHANGE, OptimizerWire


@dataclass(frozen=True)
class OptimizerStateRequest:
    """Arguments of `gather_state`.

    `rule`: the name of the rules. `digest`: digest of the weights that all ranks have, or None to skip their
    comparison.
    """

    updates: int
    rule: str
    root: int | None
    error_feedback: bool
    digest: int | None = None


def gather_state(context: UpdateContext, wanted: OptimizerStateRequest) -> dict[str, Any]:
    """Gather the state of all ranks on rank `root`, or on all ranks if None. The others take part and get {}.

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
    missed = _agreed_state_request(
        context, pending, wanted
    )  # before any gather, in which ranks that disagree would not take part
    arrays = _filled_optimizer_slots(context.group, slots, keep)
    owed = _filled_optimizer_slots(context.group, _feedback_to_fill(context), keep) if wanted.error_feedback else {}
    if not keep:
        return {}
    if missed:
        arrays[MISSED] = {name: np.array([count], np.int64) for name, count in missed.items()}
    state = {"updates": wanted.updates, "rule": wanted.rule, "size": context.group.size, "arrays": arrays}
    return {**state, FEEDBACK: owed} if owed else state


def shard_state(context: UpdateContext, updates: int, rule: str, error_feedback: bool) -> dict[str, Any]:
    """Return copies of this rank's part of the state by name; the parts of all ranks form the whole. Not collective.

    Weights that all ranks have are divided among them like the rest of the state.
    """
    rank = context.group.rank
    arrays: dict[str, dict[str, ArrayPart]] = {}
    owed: dict[str, dict[str, ArrayPart]] = {}
    for bucket in context.layout.buckets:
        cut = _own_bucket_cut(context, bucket)
        for slot, values in _bucket_slots(context, bucket).items():
            held = cut if values.size == bucket.size else context.arenas.owned(bucket)
            own = values[held] if values.size == bucket.size else values
            arrays.setdefault(slot, {}).update(_bucket_parts(context, bucket, own, held))
    for bucket, wire in _compressed_buckets(context) if error_feedback else ():
        lost = wire.lost(bucket)
        for location in bucket.locations:
            spec = location.spec
            values = lost[location.start : location.stop].copy()
            owed.setdefault(LOST, {})[spec.name] = ArrayPart(
                values, (context.group.size, *spec.shape), rank * spec.size
            )
        change = _bucket_parts(context, bucket, wire.lost_change(bucket), bucket.shard(rank))
        owed.setdefault(LOST_CHANGE, {}).update(change)
    arrays[MISSED] = {
        name: part for bucket in context.layout.buckets for name, part in _missed_of_bucket(context, bucket)
    }
    state = {"updates": updates, "rule": rule, "size": context.group.size, "arrays": arrays}
    return {**state, FEEDBACK: owed} if owed else state


def _missed_of_bucket(context: UpdateContext, bucket: Bucket) -> Iterator[tuple[str, ArrayPart]]:
    """Yield the missed updates of parameters of `bucket` from the rank that updates their first elements."""
    own = _own_bucket_cut(context, bucket)
    for at in bucket.locations:
        counts = (bucket.local and context.group.rank == 0) or own.start <= at.start < own.stop
        values = np.array([context.shard.missed.of(at.spec.name)] if counts else [], np.int64)
        yield at.spec.name, ArrayPart(values, (1,), 0)


def _own_bucket_cut(context: UpdateContext, bucket: Bucket) -> slice:
    """Return the elements of `bucket` that this rank saves if all ranks have them; all of a local bucket."""
    if bucket.local:
        return slice(0, bucket.size)
    if context.sharded:
        return context.arenas.owned(bucket)
    rank, ranks = context.group.rank, context.group.size
    return slice(bucket.size * rank // ranks, bucket.size * (rank + 1) // ranks)


def _bucket_parts(context: UpdateContext, bucket: Bucket, values: Flat, held: slice) -> dict[str, ArrayPart]:
    """Split `values`, the elements `held` of `bucket`, by parameter; a local parameter is one row of a stack."""
    found: dict[str, ArrayPart] = {}
    for location in bucket.locations:
        spec = location.spec
        low, high = max(location.start, held.start), min(location.stop, held.stop)
        own = values[low - held.start : max(low, high) - held.start].copy()
        if bucket.local:
            before = context.group.rank * spec.size + low - location.start
            found[spec.name] = ArrayPart(own, (context.group.size, *spec.shape), before)
        else:
            found[spec.name] = ArrayPart(own, spec.shape, max(0, low - location.start))
    return found


def restore_state(context: UpdateContext, rule: str, state: Mapping[str, Any]) -> tuple[int, dict[str, int]]:
    """Set weights and this rank's part of the state from a result of `gather_state`.

    Return its number of updates, and by parameter the number of missed ones. Raises ConfigurationError, before anything
    is changed, if the state belongs to another rule or model.
    """
    _check_optimizer_state(context, rule, state)
    for bucket in context.layout.buckets:
        for slot, values in _bucket_slots(context, bucket).items():
            cut = slice(0, bucket.size) if values.size == bucket.size else context.arenas.owned(bucket)
            _fill_optimizer_state(context, bucket, state["arrays"][slot], values, cut)
    _restore_feedback(context, state.get(FEEDBACK, {}))
    for mirror in context.copies.mirrors:
        _restore_mirror(context, mirror, state)
    counted = {name: int(elements_of_cut(count, 0, 1)[0]) for name, count in state["arrays"].get(MISSED, {}).items()}
    return int(state["updates"]), {name: count for name, count in counted.items() if count}


def _restore_mirror(context: UpdateContext, mirror: OptimizerShardMirror, state: Mapping[str, Any]) -> None:
    """Set the replica of another rank's shard."""
    for bucket in mirror.buckets:
        shard = mirror.shard(bucket)
        for slot, values in mirror.values(bucket).items():
            if slot == LOST_CHANGE:
                values[:] = _flat_change(bucket, state.get(FEEDBACK, {}).get(LOST_CHANGE, {}))[shard]
            else:
                _fill_optimizer_state(context, bucket, state["arrays"][slot], values, shard)


def _own_missed(context: UpdateContext) -> dict[str, int]:
    return {name: count for name, count in context.shard.missed.counts.items() if count}


def _begin_optimizer_agreement(context: UpdateContext, wanted: OptimizerStateRequest) -> PendingCollective | None:
    """Begin the exchange of arguments, even if no arrays will be sent, so that a call by only one rank fails.

    Return None if nothing is shared, so that a rank may call it alone.
    """
    if context.group.size == 1 or not (context.sharded or any(spec.local for spec in context.layout.specs)):
        return None
    arguments = {"updates": wanted.updates, "root": wanted.root, "error_feedback": wanted.error_feedback}
    return context.group.gather_objects([arguments, _own_missed(context), wanted.digest], "state_dict")


def _agreed_state_request(
    context: UpdateContext, pending: PendingCollective | None, wanted: OptimizerStateRequest
) -> dict[str, int]:
    """Return the missed updates by parameter, known to the ranks that update them, after all ranks agree."""
    if pending is None:
        return _own_missed(context)
    reported = pending.wait()
    expected = reported[0][0]
    for rank, (other, _, _) in enumerate(reported[1:], start=1):
        for what, value in other.items():
            if value != expected[what]:
                raise MismatchError(
                    f"state_dict: {what} is {expected[what]} on rank 0 and {value} on rank {rank}; every rank "
                    "must call it with the same arguments after the same update"
                )
    if wanted.digest is not None:
        compare_weights([{wanted.updates: digest} for _, _, digest in reported])
    return merged_missed_steps(missed for _, missed, _ in reported)


def merged_missed_steps(counts: Iterable[Mapping[str, int]]) -> dict[str, int]:
    """Merge the missed updates by parameter that several ranks have counted."""
    merged: dict[str, int] = {}
    for one in counts:
        for name, count in one.items():
            merged[name] = max(count, merged.get(name, 0))
    return merged


def _bucket_slots(context: UpdateContext, bucket: Bucket) -> dict[str, Flat]:
    return {WEIGHTS: context.arenas.weights(bucket), **context.arenas.state[bucket.index]}


@dataclass(frozen=True)
class _StateSlotToFill:
    """State slot of `bucket`, with the elements that this rank holds. `bounds`: offsets of each rank's part; None if
    this rank already holds all elements."""

    bucket: Bucket
    slot: str
    whole: Flat
    bounds: Sequence[int] | None


def _slots_to_fill(context: UpdateContext) -> Iterator[_StateSlotToFill]:
    for bucket in context.layout.buckets:
        for slot, values in _bucket_slots(context, bucket).items():
            yield _state_slot_to_fill(context, bucket, slot, values)


def _feedback_to_fill(context: UpdateContext) -> Iterator[_StateSlotToFill]:
    for bucket, wire in _compressed_buckets(context):
        yield _state_slot_to_fill(context, bucket, LOST, wire.lost(bucket))
        yield _state_slot_to_fill(context, bucket, LOST_CHANGE, wire.lost_change(bucket))


def _state_slot_to_fill(context: UpdateContext, bucket: Bucket, slot: str, values: Flat) -> _StateSlotToFill:
    """Prepare a slot of which every rank has all or a part; values that differ by rank become rows."""
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
    """Gather `slots`, all at once if `keep`. Return arrays by slot and name; empty if not `keep`."""

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


def _compressed_buckets(context: UpdateContext) -> list[tuple[Bucket, OptimizerWire]]:
    """Return the buckets that are sent compressed, with their wire."""
    found = ((bucket, context.wire_of(bucket)) for bucket in context.layout.buckets)
    return [(bucket, wire) for bucket, wire in found if wire is not None]


def _restore_feedback(context: UpdateContext, owed: Mapping[str, Mapping[str, Flat]]) -> None:
    """Restore the error feedback of a saved state, or zeros if the state has no error feedback.

    In a world of another size each rank gets the mean of the saved errors of gradients, so that the mean over ranks,
    with which weights are updated, is the same.
    """
    rank, ranks = context.group.rank, context.group.size
    for bucket, wire in _compressed_buckets(context):
        lost, change = wire.lost(bucket), _flat_change(bucket, owed.get(LOST_CHANGE, {}))
        lost[:] = 0
        for location in bucket.locations:
            if location.spec.name in owed.get(LOST, {}):
                rows, size = owed[LOST][location.spec.name], location.spec.size
                if rows.shape[0] == ranks:
                    own = elements_of_cut(rows, rank * size, (rank + 1) * size)
                else:
                    own = np.asarray(rows).mean(axis=0, dtype=np.float64)
                lost[location.start : location.stop] = own.reshape(-1)
        wire.lost_change(bucket)[:] = change[bucket.shard(rank)]


def _flat_change(bucket: Bucket, lost_change: Mapping[str, Flat]) -> Flat:
    """Return the error feedback of the changes of all of `bucket`; zeros if the state has no error feedback."""
    change = np.zeros(bucket.size, np.float32)
    for location in bucket.locations:
        if location.spec.name in lost_change:
            size = location.spec.size
            change[location.start : location.stop] = elements_of_cut(lost_change[location.spec.name], 0, size)
    return change


def _fill_optimizer_state(
    context: UpdateContext, bucket: Bucket, by_name: Mapping[str, Flat | ReadableArray], target: Flat, cut: slice
) -> None:
    """Set `target`, the elements `cut` of `bucket`, from arrays by parameter; read only these elements."""
    for location in bucket.locations:
        low, high = max(location.start, cut.start), min(location.stop, cut.stop)
        if low < high:
            before = (context.group.rank * location.spec.size if bucket.local else 0) - location.start
            array = by_name[location.spec.name]
            target[low - cut.start : high - cut.start] = elements_of_cut(array, before + low, before + high)


def _check_optimizer_state(context: UpdateContext, rule: str, state: Mapping[str, Any]) -> None:
    if absent := [key for key in ("updates", "rule", "arrays") if key not in state]:
        raise ConfigurationError(
            f"load_state_dict got {sorted(map(str, state))}, without {absent}; expected the result of state_dict() "
            "or shard_dict(); if a checkpoint contains it under a name, pass only that entry"
        )
    if state["rule"] != rule:
        raise ConfigurationError(
            f"the saved optimizer state is of {state['rule']} and this optimizer is {rule}; use the same rule, or "
            f"load only the weights"
        )
    saved = state["arrays"][WEIGHTS]
    here = {spec.name for spec in context.layout.specs}
    if set(saved) != here:
        raise ConfigurationError(
            f"the saved state has other parameters: only saved {sorted(set(saved) - here)}, only here "
            f"{sorted(here - set(saved))}; build the model that was saved"
        )
    for bucket in context.layout.buckets:
        for slot in _bucket_slots(context, bucket):
            for location in bucket.locations:
                _check_array(context, location.spec, slot, state)
    _check_feedback(context, state)


def _check_feedback(context: UpdateContext, state: Mapping[str, Any]) -> None:
    owed = state.get(FEEDBACK, {})
    for bucket, _ in _compressed_buckets(context) if owed else ():
        for location in bucket.locations:
            name, shape = location.spec.name, location.spec.shape
            for slot, expected in ((LOST, (state["size"], *shape)), (LOST_CHANGE, shape)):
                array = owed.get(slot, {}).get(name)
                if array is None or array.shape != expected:
                    raise ConfigurationError(
                        f'the saved error feedback "{slot}" of parameter "{name}" is '
                        f"{'missing' if array is None else array.shape}; expected {expected}: load the result of "
                        f"state_dict(), or remove its {FEEDBACK!r}"
                    )


def _check_array(context: UpdateContext, spec: ParamSpec, slot: str, state: Mapping[str, Any]) -> None:
    array = state["arrays"].get(slot, {}).get(spec.name)
    if array is None:
        raise ConfigurationError(
            f'the saved state has no "{slot}" for parameter "{spec.name}"; it was saved with other settings of '
            f"{state['rule']}"
        )
    size = context.group.size
    expected = (size, *spec.shape) if spec.local else spec.shape
    if spec.local and array.shape[:1] != (size,):
        raise ConfigurationError(
            f'parameter "{spec.name}" is local and was saved by {state["size"]} ranks; it cannot be loaded by '
            f"{size}: run with {state['size']} ranks, or synchronise the parameter"
        )
    if array.shape != expected or (slot == WEIGHTS and array.dtype != spec.dtype):
        raise ConfigurationError(
            f'parameter "{spec.name}" was saved as {array.shape} {array.dtype} ({slot}) and is {expected} '
            f"{spec.dtype} here; build the model that was saved"
        )


def check_same_model(group: CollectiveGroup, specs: Sequence[ParamSpec], settings: Mapping[str, Any]) -> None:
    """Raise MismatchError on every rank unless all registered the same parameters with the same settings.

    The message names the first rank that differs from rank 0, and both values.
    """
    described = [f"{spec.shape} {spec.dtype}{' local' if spec.local else ''}" for spec in specs]
    names = [spec.name for spec in specs]
    registered = {"names": names, "described": described, "settings": dict(settings)}
    reported = group.allgather_object(registered, "optimizer")
    root = reported[0]
    for rank, other in enumerate(reported[1:], start=1):
        for name, there in other["settings"].items():
            if there != root["settings"][name]:
                raise MismatchError(
                    f"rank {rank}: the optimizer's {name} is {there} there and {root['settings'][name]} on rank "
                    f"0; every rank must build the same optimizer"
                )
        _compare_models(rank, other, root)


def _compare_models(rank: int, other: Mapping[str, list[str]], root: Mapping[str, list[str]]) -> None:
    if len(other["names"]) != len(root["names"]):
        odd = sorted(set(other["names"]) ^ set(root["names"]))[:5]
        raise MismatchError(
            f"rank {rank}: {len(other['names'])} parameters are registered there and {len(root['names'])} on rank "
            f"0; on one of them only: {odd}; every rank must build the same model"
        )
    for index, (name, root_name) in enumerate(zip(other["names"], root["names"], strict=True)):
        if name != root_name:
            raise MismatchError(
                f'rank {rank}: parameter {index} is "{name}" there and "{root_name}" on rank 0; every rank must '
                f"register the same parameters in the same order"
            )
        if other["described"][index] != root["described"][index]:
            raise MismatchError(
                f'rank {rank}: parameter "{name}" is {other["described"][index]} there and '
                f"{root['described'][index]} on rank 0; every rank must build the same model"
            )
