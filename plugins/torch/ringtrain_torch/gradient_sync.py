"""Reduction of gradients during the backward pass, if each step has the announced number of backward passes.

In its first steps an optimizer reduces only in `finish`, and counts how often a backward pass reaches each parameter.
If the counts match the announced number, buckets are sent during the backward pass from then on, except the last one,
whose gradients are computed last. Programs with more passes (a GAN's two losses, or a loss that also reaches another
optimizer's parameters) continue to reduce in `finish`. Each rank decides for itself when a bucket is sent: all ranks
reduce each bucket once per step.
"""

import contextlib
import sys
import time
import weakref
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import torch

from ringtrain import Average, ProcessSet, Sum, rank, timeline
from ringtrain.adapter import NamedCollective, NamedReduction, current_world, members, trains_alone
from ringtrain.errors import ConfigurationError, counted
from ringtrain_torch.bridge import to_tensor
from ringtrain_torch.buckets import Param, TorchBucketMemory, cut_at, cut_buckets
from ringtrain_torch.compression import Compressor
from ringtrain_torch.fingerprint import TorchFingerprint
from ringtrain_torch.gradient_buckets import (
    PendingTorchReduction,
    TorchBucket,
    TorchBucketMember,
    changed_gradients_error,
    dense_gradient,
    gradient_fingerprint,
    gradient_hook,
    is_gradient_changed,
    remove_gradient_hooks,
    split_buckets,
    store_gradient,
)
from ringtrain_torch.handles import submit_bucket
from ringtrain_torch.presence import check_drops_agree, empty_gradient, grad_presence_row, grads_anywhere
from ringtrain_torch.sparse import SparseTorchHandle

# A script changes gradients too early in all steps or in none: all bits are compared in the first steps and at
# intervals, and a part of them in the other steps.
_FIRST_STEPS: Final = 10
_EVERY_STEPS: Final = 64

# Steps in which each gradient must be computed as often as announced before buckets are sent during the backward pass.
# The second one includes the code between two steps: another optimizer's loss may reach these parameters.
_REGULAR_STEPS: Final = 2


@dataclass(frozen=True)
class TorchSyncOptions:
    """Options of `TorchGradientSync`. `op`: Sum or Average. `predivide`: divisor of gradients before the sum. For an
    average, the sum is divided by the number of ranks / `predivide`."""

    compression: type[Compressor]
    passes: int
    op: Any
    predivide: float
    sparse_as_dense: bool
    process_set: ProcessSet

    @property
    def reduction(self) -> NamedReduction:
        """Reduction that is applied to dense gradients in the current world."""
        if self.predivide == 1.0:
            return NamedReduction(self.op.value, self.process_set)
        factors = 1.0 / self.predivide, self.predivide / members(self.process_set)
        return NamedReduction(Sum.value, self.process_set, *factors)


class TorchGradientSync:
    """Reduction of a model's gradients, if possible during the backward pass. `names`: name of each parameter.
    `groups`: parameters that are reduced together; the others are divided into buckets."""

    def __init__(self, names: dict[Param, str], groups: Sequence[Sequence[Param]], options: TorchSyncOptions) -> None:
        self.options = options
        self._members = {param: TorchBucketMember(param, name) for param, name in names.items()}
        in_groups = {param for group in groups for param in group}
        others = cut_buckets({param: name for param, name in names.items() if param not in in_groups})
        asked_for = [cut_at({param: names[param] for param in group}, sys.maxsize) for group in groups]
        self._buckets = [self._bucket(bucket, True) for group in asked_for for bucket in group]
        self._buckets += [self._bucket(bucket, False) for bucket in others]
        self._steps = self._regular_steps = 0
        self._irregular = self._busy = False
        self._began_ns = 0  # start of the backward pass, at its first gradient; 0: none since the last step
        self._world: weakref.ref[Any] = weakref.ref(current_world())
        self._alone = trains_alone(options.process_set)
        self._hooks: list[Any] = []
        # A model may get many optimizers one after the other.
        weakref.finalize(self, remove_gradient_hooks, self._hooks)
        self.set_passes(options.passes)
        self.watch()

    def watch(self) -> None:
        """Install a hook on every parameter that requires a gradient now."""
        if self._alone:
            return
        for bucket in self._buckets:
            for member in bucket.members:
                if member.hook is None and member.param.requires_grad:
                    hook = gradient_hook(
                        weakref.WeakMethod(self._on_gradient), weakref.ref(bucket), weakref.ref(member)
                    )
                    member.hook = member.param.register_post_accumulate_grad_hook(hook)
                    self._hooks.append(member.hook)

    @property
    def params(self) -> Collection[Param]:
        """Parameters whose gradients are reduced."""
        return self._members

    @property
    def passes(self) -> int:
        """Number of backward passes expected before a step."""
        return self._passes

    @property
    def names(self) -> dict[Param, str]:
        """Name of each parameter."""
        return {param: member.name for param, member in self._members.items()}

    @property
    def groups(self) -> list[list[Param]]:
        """Parameters that are reduced together at the user's request."""
        return [[member.param for member in bucket.members] for bucket in self._buckets if bucket.asked_for]

    @property
    def is_alone(self) -> bool:
        """Whether nothing is reduced, because this rank is not in the process set or is its only rank."""
        self._enter_world()
        return self._alone

    def add(self, names: dict[Param, str]) -> None:
        """Reduce the gradients of further parameters from now on, in separate buckets."""
        self._members |= {param: TorchBucketMember(param, name) for param, name in names.items()}
        self._buckets += [self._bucket(bucket, False) for bucket in cut_buckets(names)]
        self.watch()

    def set_passes(self, passes: int) -> None:
        """Set the number of backward passes expected before a step."""
        self._passes, self._regular_steps, self._irregular = passes, 0, False
        for member in self._members.values():
            member.passes = 0

    @property
    def busy(self) -> bool:
        """Whether gradients are being reduced in the current world."""
        return self._busy and self._world() is current_world()

    @property
    def begun(self) -> bool:
        """Whether a backward pass has run since the last step."""
        return self.busy or any(member.passes for member in self._members.values())

    def finish(self, dropping: bool = False) -> None:
        """Submit the remaining gradients, wait for all reductions, and store the results in `param.grad`: None if no
        rank has a gradient.

        Raises ConfigurationError if a gradient was changed or removed after its reduction had begun, or changed after
        it was computed. `dropping`: whether the gradients are discarded without a step. Raises MismatchError if only
        some ranks drop them.
        """
        self._enter_world()
        if self._alone:
            return
        if self._began_ns:
            timeline.record_since(self._began_ns, "backward", "backward")
        changed = {name for bucket in self._buckets for name in self._submit_rest(bucket, dropping)}
        last = self._last_bucket()
        for bucket in self._buckets:
            for part in bucket.under_way:
                changed.update(self._take(part))
        row = next((part.row for part in last.under_way if part.row is not None), None) if last else None
        self.reset()
        self.watch()
        self._steps += 1
        if row is not None:
            whole = members(self.options.process_set) if self.options.op is Sum else 1
            check_drops_agree(row[-1] / whole, dropping, f"rank {rank()}")
        if changed:
            raise ConfigurationError(
                changed_gradients_error([member.name for member in self._members.values() if member.name in changed])
            )

    def drop(self) -> None:
        """Discard the backward passes since the last step. Reductions in progress must complete on all ranks first.
        In the following steps no gradient is sent before `finish` is called."""
        dropped = self.busy or any(member.passes >= self._passes for member in self._members.values())
        if self.busy:
            with contextlib.suppress(ConfigurationError):  # changed meanwhile, but discarded anyway
                self.finish(dropping=True)
        self.reset()
        self._irregular = self._irregular or dropped

    def reset(self) -> None:
        """Begin the next step."""
        counts = [member.passes for member in self._members.values()]
        self._irregular = self._irregular or any(count > self._passes for count in counts)
        self._regular_steps += any(counts)
        self._busy, self._began_ns = False, 0
        for bucket in self._buckets:
            bucket.under_way = ()
            for member in bucket.members:
                member.made, member.passes = None, 0

    def _enter_world(self) -> None:
        """Discard the step in progress if the world has changed, because its reductions will not complete."""
        world = current_world()
        if self._world() is not world:
            self._world = weakref.ref(world)
            self._alone = trains_alone(self.options.process_set)
            for bucket in self._buckets:  # the former world may still write to their memory
                bucket.memory = TorchBucketMemory()
            self.reset()

    def _bucket(self, params: Sequence[Param], asked_for: bool) -> TorchBucket:
        return TorchBucket(tuple(self._members[param] for param in params), asked_for)

    def _on_gradient(self, bucket: TorchBucket, member: TorchBucketMember) -> None:
        self._enter_world()
        if self._alone:
            return
        if bucket.under_way:
            raise AssertionError(
                f"the gradient of {member.name!r} was computed more than backward_passes_per_step = "
                f"{counted(self._passes, 'time')} before step(), unlike in earlier steps; call "
                "optimizer.set_backward_passes_per_step() before the number of passes changes"
            )
        self._began_ns = self._began_ns or time.perf_counter_ns()
        member.passes += 1
        if not self._overlaps:
            member.made = TorchFingerprint.of(member.param.grad, self._compares_all)
        elif member.passes == self._passes and self._is_full(bucket):
            if bucket is not self._last_bucket():
                self._submit(bucket)
                return
            for one in bucket.members:
                if one.param.grad is not None:
                    one.made = TorchFingerprint.of(one.param.grad, self._compares_all)

    @property
    def _overlaps(self) -> bool:
        return self._regular_steps >= _REGULAR_STEPS and not self._irregular

    def _is_full(self, bucket: TorchBucket) -> bool:
        return all(one.passes >= self._passes or not one.param.requires_grad for one in bucket.members)

    def _last_bucket(self) -> TorchBucket | None:
        """Return the bucket that is sent last, because its gradients are computed last; None if nothing is trained."""
        trained = (b for b in reversed(self._buckets) if any(m.param.requires_grad for m in b.members))
        return next(trained, None)

    def _submit_rest(self, bucket: TorchBucket, dropping: bool) -> list[str]:
        """Submit the bucket if the backward pass has not; return the names of gradients that changed after that pass.

        `dropping`: whether the gradients are discarded without a step.
        """
        if bucket.under_way:
            return []
        changed = [member.name for member in bucket.members if is_gradient_changed(member)]
        self._submit(bucket, dropping)
        return changed

    def _submit(self, bucket: TorchBucket, dropping: bool = False) -> None:
        members = tuple(member for member in bucket.members if member.param.requires_grad)
        if not members:
            return
        here = tuple(member.param.grad is not None for member in members)
        for member, is_here in zip(members, here, strict=True):
            if is_here:
                member.sparse_dim = member.param.grad.sparse_dim() if member.param.grad.is_sparse else 0
            else:
                member.param.grad = empty_gradient(member.param, member.sparse_dim)
        self._busy = True
        bucket.under_way = tuple(self._begin(bucket, dict(zip(members, here, strict=True)), dropping))

    def _begin(
        self, bucket: TorchBucket, here: dict[TorchBucketMember, bool], dropping: bool
    ) -> Iterator[PendingTorchReduction]:
        as_dense = self.options.sparse_as_dense
        sparse = tuple(member for member in here if member.param.grad.is_sparse and not as_dense)
        if sparse and bucket.asked_for and len(here) > 1:
            raise ConfigurationError(
                "a group contains a sparse gradient; pass sparse_as_dense=True, or remove its parameter from the group"
            )
        # First, and waited for first: it tells of ranks on which another gradient is sparse.
        if dense := {member: is_here for member, is_here in here.items() if member not in sparse}:
            yield self._begin_dense(bucket, dense, dropping)
        for member in sparse:
            grad, is_here, process_set = member.param.grad, here[member], self.options.process_set
            gathered = NamedCollective.allgather(process_set, member.name, "grouped_allgather")
            if not dense and member is sparse[0]:  # a rank on which one of them is dense uses this name
                gathered = NamedCollective.allgather(process_set, bucket.members[0].name, "grouped_allreduce")
            handle = SparseTorchHandle(grad, gathered, self.options.op is Average, is_here)
            yield PendingTorchReduction(handle, (member,), (TorchFingerprint.of(grad, self._compares_all),), (is_here,))

    def _begin_dense(
        self, bucket: TorchBucket, here: dict[TorchBucketMember, bool], dropping: bool
    ) -> PendingTorchReduction:
        options, whole, members = self.options, self._compares_all, tuple(here)
        grads = [dense_gradient(member.param.grad) for member in members]
        small = [options.compression.compress(grad) for grad in grads]
        as_they_are = all(tensor is member.param.grad for (tensor, _), member in zip(small, members, strict=True))
        small.append((grad_presence_row(tuple(here.values()), dropping, small[0][0]), None))
        # If all bits are compared, a gradient does not change until the step, so that a change by the script is
        # detected.
        place = bucket.memory.place([*grads, small[-1][0]], untouched=whole) if as_they_are else None
        held = place.held[:-1] if place is not None else (False,) * len(members)
        given = tuple(
            TorchFingerprint.of_version(member.param.grad) if own else TorchFingerprint.of(member.param.grad, whole)
            for member, own in zip(members, held, strict=True)
        )
        names = [member.name for member in members]
        # The bucket's name is equal even if a rank has gradients of other members, so that ranks detect it at once.
        name = bucket.members[0].name
        collective = NamedCollective.allreduce(options.reduction, name, "grouped_allreduce", names)
        target, finish = (None, split_buckets(small)) if place is None else (place.flat, gradient_fingerprint)
        handle = submit_bucket(collective, [tensor for tensor, _ in small], target, finish)
        return PendingTorchReduction(
            handle, members, given, tuple(here.values()), place, tuple(ctx for _, ctx in small)
        )

    @property
    def _compares_all(self) -> bool:
        return self._steps < _FIRST_STEPS or self._steps % _EVERY_STEPS == 0

    def _take(self, part: PendingTorchReduction) -> list[str]:
        """Store reduced values in the gradients; return the names of gradients that changed during the reduction."""
        reduced = part.handle.after(part.handle.future.result())
        pairs = list(zip(part.members, part.given, strict=True))
        changed = [member.name for member, given in pairs if not given.is_of(member.param.grad)]
        if isinstance(part.handle, SparseTorchHandle):
            if not changed:
                store_gradient(part.members[0].param, reduced if part.handle.holders else None)
            return changed
        if part.place is None:
            part.row = reduced[-1]
            for member, tensor in zip(part.members, self._decompressed(part, reduced), strict=True):
                if member.name not in changed:
                    store_gradient(member.param, tensor)
        else:
            part.row = to_tensor(part.place.flat[part.place.bounds[-2] :])
            if any(part.place.held) and not reduced.is_of(reduced.tensor):
                return [member.name for member in part.members]
            if not changed:
                part.place.store([member.param.grad for member in part.members])
        if not all(part.here):  # rare; avoids waiting for a device
            self._leave_out(part, part.row)
        return changed

    def _leave_out(self, part: PendingTorchReduction, row: torch.Tensor) -> None:
        """Set the gradient to None for parameters of `part` that have no gradient on any rank.

        This rank contributed zeros for these parameters. `row`: reduced row that shows which ranks have gradients.
        """
        for member, is_here, anywhere in zip(part.members, part.here, grads_anywhere(row), strict=False):
            if not is_here and not anywhere:
                member.param.grad = None

    def _decompressed(self, part: PendingTorchReduction, reduced: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        decompress = self.options.compression.decompress
        pairs = zip(reduced[:-1], part.contexts[:-1], strict=True)
        return [decompress(tensor, ctx) for tensor, ctx in pairs]
