"""Complete state of an optimizer as arrays by parameter name, which a world of any size can load.

It includes the rounding errors of compression. Each rank has the errors of its own gradients (`lost`, as long as the
weights on every rank), and the owner of a shard those of its last change (`lost_change`).
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from ringtrain._core.process_groups.group import CollectiveGroup, Flat
from ringtrain._core.reduction.cuts import ArrayPart, ReadableArray, elements_of_cut
from ringtrain.errors import ConfigurationError, MismatchError, counted
from ringtrain.optim.layout import Bucket, ParamSpec
from ringtrain.optim.mirror import OptimizerShardMirror
from ringtrain.optim.slots import FEEDBACK, MISSED, WEIGHTS
from ringtrain.optim.update_context import UpdateContext
from ringtrain.optim.wire import LOST, LOST_CHANGE, OptimizerWire


def shard_state(context: UpdateContext, updates: int, rule: str, error_feedback: bool) -> dict[str, Any]:
    """Return copies of this rank's part of the state by name. All ranks' parts form the whole. Not collective.

    Weights that all ranks have are divided among them like the rest of the state. `error_feedback`: whether the
    rounding errors of compression are included.
    """
    rank = context.group.rank
    arrays: dict[str, dict[str, ArrayPart]] = {}
    owed: dict[str, dict[str, ArrayPart]] = {}
    for bucket in context.layout.buckets:
        cut = _own_bucket_cut(context, bucket)
        for slot, values in bucket_slots(context, bucket).items():
            held = cut if values.size == bucket.size else context.arenas.owned(bucket)
            own = values[held] if values.size == bucket.size else values
            arrays.setdefault(slot, {}).update(_bucket_parts(context, bucket, own, held))
    for bucket, wire in compressed_buckets(context) if error_feedback else ():
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
    """Yield, for each parameter of `bucket`, its name and the number of updates in which no rank had a gradient of it.

    The number is an array with one element on the rank that saves it, and empty on the other ranks.
    """
    own = _own_bucket_cut(context, bucket)
    for at in bucket.locations:
        counts = context.group.rank == 0 if bucket.local else own.start <= at.start < own.stop
        values = np.array([context.shard.missed.of(at.spec.name)] if counts else [], np.int64)
        yield at.spec.name, ArrayPart(values, (1,), 0)


def _own_bucket_cut(context: UpdateContext, bucket: Bucket) -> slice:
    """Return the elements of `bucket` that this rank saves: its part, or all if each rank has its own values."""
    if bucket.local:
        return slice(0, bucket.size)
    if context.sharded:
        return context.arenas.owned(bucket)
    rank, ranks = context.group.rank, context.group.size
    return slice(bucket.size * rank // ranks, bucket.size * (rank + 1) // ranks)


def _bucket_parts(context: UpdateContext, bucket: Bucket, values: Flat, held: slice) -> dict[str, ArrayPart]:
    """Split `values`, the elements `held` of `bucket`, by parameter.

    If each rank has its own values (local parameters), the saved array has a row for each rank, and this rank saves its
    row.
    """
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
    """Set the weights and this rank's part of the optimizer state from `state`, a result of `gather_state`.

    Return the number of updates in `state`, and for each parameter the number of updates without its gradient. Raises
    ConfigurationError, before anything is changed, if the state belongs to another rule or model.
    """
    _check_optimizer_state(context, rule, state)
    for bucket in context.layout.buckets:
        for slot, values in bucket_slots(context, bucket).items():
            cut = slice(0, bucket.size) if values.size == bucket.size else context.arenas.owned(bucket)
            _fill_optimizer_state(context, bucket, state["arrays"][slot], values, cut)
    _restore_feedback(context, state.get(FEEDBACK, {}))
    for mirror in context.copies.mirrors:
        _restore_mirror(context, mirror, state)
    counted = {name: int(elements_of_cut(count, 0, 1)[0]) for name, count in state["arrays"].get(MISSED, {}).items()}
    return int(state["updates"]), {name: count for name, count in counted.items() if count}


def _restore_mirror(context: UpdateContext, mirror: OptimizerShardMirror, state: Mapping[str, Any]) -> None:
    """Set the replica of another rank's shard from `state`."""
    for bucket in mirror.buckets:
        shard = mirror.shard(bucket)
        for slot, values in mirror.values(bucket).items():
            if slot == LOST_CHANGE:
                values[:] = _flat_change(bucket, state.get(FEEDBACK, {}).get(LOST_CHANGE, {}))[shard]
            else:
                _fill_optimizer_state(context, bucket, state["arrays"][slot], values, shard)


def merged_missed_steps(counts: Iterable[Mapping[str, int]]) -> dict[str, int]:
    """Merge the numbers of updates without a gradient, by parameter, that several ranks counted."""
    merged: dict[str, int] = {}
    for one in counts:
        for name, count in one.items():
            merged[name] = max(count, merged.get(name, 0))
    return merged


def bucket_slots(context: UpdateContext, bucket: Bucket) -> dict[str, Flat]:
    return {WEIGHTS: context.arenas.weights(bucket), **context.arenas.state[bucket.index]}


def compressed_buckets(context: UpdateContext) -> list[tuple[Bucket, OptimizerWire]]:
    """Return the buckets that are sent compressed, each with its compressor."""
    found = ((bucket, context.wire_of(bucket)) for bucket in context.layout.buckets)
    return [(bucket, wire) for bucket, wire in found if wire is not None]


def _restore_feedback(context: UpdateContext, owed: Mapping[str, Mapping[str, Flat]]) -> None:
    """Set the compression errors to those of a saved state, or to zero if it has none.

    In a world of another size each rank gets the mean of the saved errors of gradients, so that the mean over ranks,
    with which weights are updated, is the same.
    """
    rank, ranks = context.group.rank, context.group.size
    for bucket, wire in compressed_buckets(context):
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
    """Return the compression errors of weight changes in a saved state as one array; zeros if it has none."""
    change = np.zeros(bucket.size, np.float32)
    for location in bucket.locations:
        if location.spec.name in lost_change:
            size = location.spec.size
            change[location.start : location.stop] = elements_of_cut(lost_change[location.spec.name], 0, size)
    return change


def _fill_optimizer_state(
    context: UpdateContext, bucket: Bucket, by_name: Mapping[str, Flat | ReadableArray], target: Flat, cut: slice
) -> None:
    """Set `target`, the elements `cut` of `bucket`, from arrays by parameter. Reads only these elements."""
    for location in bucket.locations:
        low, high = max(location.start, cut.start), min(location.stop, cut.stop)
        if low < high:
            before = (context.group.rank * location.spec.size if bucket.local else 0) - location.start
            array = by_name[location.spec.name]
            target[low - cut.start : high - cut.start] = elements_of_cut(array, before + low, before + high)


def _check_optimizer_state(context: UpdateContext, rule: str, state: Mapping[str, Any]) -> None:
    if absent := [key for key in ("updates", "rule", "arrays") if key not in state]:
        raise ConfigurationError(
            f"load_state_dict got {sorted(map(str, state))}, without {absent}; expected the result of state_dict() or "
            "shard_dict(); if it is one entry of a checkpoint, pass only this entry"
        )
    if state["rule"] != rule:
        raise ConfigurationError(
            f"the saved optimizer state is of {state['rule']}, but this optimizer is {rule}; use "
            "the same rule, or load only the weights"
        )
    saved = state["arrays"][WEIGHTS]
    here = {spec.name for spec in context.layout.specs}
    if set(saved) != here:
        raise ConfigurationError(
            f"the saved state has other parameters: only the state has {sorted(set(saved) - here)}, only this "
            f"optimizer has {sorted(here - set(saved))}; build the model that was saved"
        )
    for bucket in context.layout.buckets:
        for slot in bucket_slots(context, bucket):
            for location in bucket.locations:
                _check_array(context, location.spec, slot, state)
    _check_feedback(context, state)


def _check_feedback(context: UpdateContext, state: Mapping[str, Any]) -> None:
    owed = state.get(FEEDBACK, {})
    for bucket, _ in compressed_buckets(context) if owed else ():
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
            f'parameter "{spec.name}" is local and was saved by {counted(state["size"], "rank")}; it cannot be '
            "loaded by "
            f"{size}: run with {counted(state['size'], 'rank')}, or synchronise the parameter"
        )
    if array.shape != expected or (slot == WEIGHTS and array.dtype != spec.dtype):
        raise ConfigurationError(
            f'parameter "{spec.name}" was saved as {array.shape} {array.dtype} ({slot}), but is '
            f"{expected} {spec.dtype} in this optimizer; build the model that was saved"
        )


def check_same_model(group: CollectiveGroup, specs: Sequence[ParamSpec], settings: Mapping[str, Any]) -> None:
    """Raise MismatchError on every rank unless all ranks registered the same parameters with the same settings.

    The message names the first rank that differs from rank 0, and the values of these two ranks.
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
                    f"the optimizer's {name} is {there} on rank {rank}, but {root['settings'][name]} on "
                    "rank 0; every rank must build the same optimizer"
                )
        _compare_models(rank, other, root)


def _compare_models(rank: int, other: Mapping[str, list[str]], root: Mapping[str, list[str]]) -> None:
    if len(other["names"]) != len(root["names"]):
        odd = sorted(set(other["names"]) ^ set(root["names"]))[:5]
        raise MismatchError(
            f"rank {rank} has registered {counted(len(other['names']), 'parameter')}, but rank 0 has registered "
            f"{len(root['names'])}; only one of these ranks has {odd}; every rank must build the same model"
        )
    for index, (name, root_name) in enumerate(zip(other["names"], root["names"], strict=True)):
        if name != root_name:
            raise MismatchError(
                f'parameter {index} is "{name}" on rank {rank}, but "{root_name}" on rank 0; every '
                "rank must register the same parameters in the same order"
            )
        if other["described"][index] != root["described"][index]:
            raise MismatchError(
                f'parameter "{name}" is {other["described"][index]} on rank {rank}, but '
                f"{root['described'][index]} on rank 0; every rank must build the same model"
            )
