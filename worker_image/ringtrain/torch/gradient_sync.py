"""Reduce each parameter's gradient as the backward pass produces it."""

import sys
import time
import weakref
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

import torch

from ringtrain import rank, timeline
from ringtrain.errors import ConfigurationError, some_of
from ringtrain.negotiation.submission import Finish
from ringtrain.process_groups.context import current
from ringtrain.process_groups.process_sets import ProcessSet, members, trains_alone
from ringtrain.reduction.ops import Sum
from ringtrain.step_time import REDUCTION
from ringtrain.torch.bridge import to_tensor
from ringtrain.torch.buckets import BucketMemory, BucketPlace, Param, cut_at, cut_buckets
from ringtrain.torch.compression import Compressor
from ringtrain.torch.fingerprint import Fingerprint
from ringtrain.torch.handles import TorchHandle, submit_bucket
from ringtrain.torch.reduce import bucket_request
from ringtrain.torch.sparse import SparseHandle, sparse_allreduce_async

# A script changes gradients too early in all steps or in none: their bits are looked at whole in the first steps
# and now and then, and in part in the others.
_FIRST_STEPS: Final = 10
_EVERY_STEPS: Final = 64


@dataclass(frozen=True)
class SyncOptions:
    """How gradients are reduced. `op`: Sum or Average. `predivide`: divides before an average's sum; the rest of
    the division comes after it.
    """

    compression: type[Compressor]
    passes: int
    op: Any
    predivide: float
    sparse_as_dense: bool
    process_set: ProcessSet

    @property
    def op_and_factors(self) -> tuple[Any, float, float]:
        """The operation for dense gradients in the present world, and the factors before and after it."""
        if self.predivide == 1.0:
            return self.op, 1.0, 1.0
        return Sum, 1.0 / self.predivide, self.predivide / members(self.process_set)


@dataclass(frozen=True)
class _UnderWay:
    """`given`: what each member's gradient was when its reduction began. `place`: where it is reduced, if that is
    memory of the gradients' own. `contexts`: what decompresses the others.
    """

    handle: TorchHandle | SparseHandle
    members: "tuple[_Member, ...]"
    given: tuple[Fingerprint, ...]
    place: BucketPlace | None = None
    contexts: tuple[Any, ...] = ()


@dataclass(eq=False, slots=True)
class _Member:
    """A parameter. `ready`: its gradient is complete, and not yet submitted."""

    param: Param
    name: str
    passes_left: int = 0
    ready: bool = False
    hook: Any = None


@dataclass(eq=False, slots=True)
class _Bucket:
    """Parameters whose gradients travel together. `asked_for`: the user made a group of them."""

    members: tuple[_Member, ...]
    asked_for: bool
    memory: BucketMemory = field(default_factory=BucketMemory)
    under_way: tuple[_UnderWay, ...] = ()


class GradientSync:
    """The reductions of one model's gradients. `names`: of each parameter. `groups`: parameters that travel
    together; the others are cut into buckets.
    """

    def __init__(self, names: dict[Param, str], groups: Sequence[Sequence[Param]], options: SyncOptions) -> None:
        self.options = options
        self._members = {param: _Member(param, name) for param, name in names.items()}
        in_groups = {param for group in groups for param in group}
        others = cut_buckets({param: name for param, name in names.items() if param not in in_groups})
        asked_for = [cut_at({param: names[param] for param in group}, sys.maxsize) for group in groups]
        self._buckets = [self._bucket(bucket, True) for group in asked_for for bucket in group]
        self._buckets += [self._bucket(bucket, False) for bucket in others]
        self._steps = 0
        self._busy = False
        self._began_ns = 0  # the backward pass, with its first gradient
        self._world: weakref.ref[Any] = weakref.ref(current())
        self._alone = trains_alone(options.process_set)
        self.set_passes(options.passes)
        self.watch()

    def watch(self) -> None:
        """Install a hook on every parameter that requires a gradient by now."""
        if self._alone:
            return
        for bucket in self._buckets:
            for member in bucket.members:
                if member.hook is None and member.param.requires_grad:
                    hook = partial(self._on_gradient, bucket, member)
                    member.hook = member.param.register_post_accumulate_grad_hook(hook)

    @property
    def params(self) -> Collection[Param]:
        """The parameters whose gradients are reduced."""
        return self._members

    def add(self, names: dict[Param, str]) -> None:
        """Reduce the gradients of more parameters from now on, in buckets of their own."""
        self._members |= {param: _Member(param, name, self._passes) for param, name in names.items()}
        self._buckets += [self._bucket(bucket, False) for bucket in cut_buckets(names)]
        self.watch()

    def set_passes(self, passes: int) -> None:
        """Expect so many backward passes before a step."""
        self._passes = passes
        for member in self._members.values():
            member.passes_left = passes

    @property
    def busy(self) -> bool:
        """Whether gradients are on their way in the present world."""
        return self._busy and self._world() is current()

    @property
    def begun(self) -> bool:
        """Whether there was a backward pass since the last step: not all that a step has, perhaps."""
        return self.busy or any(member.passes_left < self._passes for member in self._members.values())

    def finish(self) -> None:
        """Submit what the backward pass left out, wait for everything, and leave reduced gradients in
        `param.grad`.

        A parameter that the pass did not reach counts as a gradient of zeros, since another rank may have reached
        it. Raises ConfigurationError where a gradient was changed or taken away after its reduction had begun.
        """
        self._enter_world()
        if self._alone:
            return
        if self._busy:
            timeline.record_since(self._began_ns, "backward", "backward")
        for bucket in self._buckets:
            self._submit_rest(bucket)
        changed = {name for bucket in self._buckets for part in bucket.under_way for name in self._take(part)}
        self.reset()
        self.watch()
        self._steps += 1
        if changed:
            raise ConfigurationError(
                _changed([member.name for member in self._members.values() if member.name in changed])
            )

    def reset(self) -> None:
        """Begin the next step."""
        self._busy = False
        for bucket in self._buckets:
            bucket.under_way = ()
            for member in bucket.members:
                member.ready, member.passes_left = False, self._passes

    def _enter_world(self) -> None:
        """In another world than before forget the step that was under way there: nothing of it will come."""
        world = current()
        if self._world() is not world:
            self._world = weakref.ref(world)
            self._alone = trains_alone(self.options.process_set)
            for bucket in self._buckets:  # the former world may still write to their memory
                bucket.memory = BucketMemory()
            self.reset()

    def _bucket(self, params: Sequence[Param], asked_for: bool) -> _Bucket:
        return _Bucket(tuple(self._members[param] for param in params), asked_for)

    def _on_gradient(self, bucket: _Bucket, member: _Member, param: torch.Tensor) -> None:
        self._enter_world()
        if self._alone:
            return
        if member.ready or bucket.under_way or member.passes_left <= 0:
            raise AssertionError(
                f"the gradient of {member.name!r} was computed more than backward_passes_per_step = "
                f"{self._passes} "
                "times before step(); raise backward_passes_per_step to accumulate gradients locally"
            )
        if not self._busy:
            self._began_ns = time.perf_counter_ns()
        member.passes_left -= 1
        if member.passes_left == 0:
            self._busy = member.ready = True
            if all(other.ready or not other.param.requires_grad for other in bucket.members):
                self._submit(bucket)

    def _submit_rest(self, bucket: _Bucket) -> None:
        """Submit what the backward pass has not: gradients of zeros, and buckets that it did not fill."""
        if bucket.under_way:
            return
        for member in bucket.members:
            if member.param.requires_grad and not member.ready:
                if member.param.grad is None:
                    member.param.grad = torch.zeros_like(member.param)
                member.ready = True
        if any(member.ready for member in bucket.members):
            self._submit(bucket)

    def _submit(self, bucket: _Bucket) -> None:
        present = tuple(member for member in bucket.members if member.ready)
        for member in present:
            member.ready = False
        self._busy = True
        bucket.under_way = tuple(self._begin(bucket, present))

    def _begin(self, bucket: _Bucket, members: tuple[_Member, ...]) -> Iterator[_UnderWay]:
        as_dense = self.options.sparse_as_dense
        sparse = tuple(member for member in members if member.param.grad.is_sparse and not as_dense)
        if sparse and bucket.asked_for and len(members) > 1:
            raise ConfigurationError("a group holds a sparse gradient; pass sparse_as_dense=True, or leave it out")
        for member in sparse:
            given = Fingerprint.of(member.param.grad, self._looks_at_all)
            how = member.name, self.options.op, self.options.process_set
            yield _UnderWay(sparse_allreduce_async(member.param.grad, *how), (member,), (given,))
        if dense := tuple(member for member in members if member not in sparse):
            yield self._begin_dense(bucket, dense)

    def _begin_dense(self, bucket: _Bucket, members: tuple[_Member, ...]) -> _UnderWay:
        options, whole = self.options, self._looks_at_all
        grads = [_dense(member.param.grad) for member in members]
        small = [options.compression.compress(grad) for grad in grads]
        as_they_are = all(tensor is member.param.grad for (tensor, _), member in zip(small, members, strict=True))
        # Where all bits are looked at, a gradient stays as it is until the step, so that a change of it is seen.
        place = bucket.memory.place(grads, untouched=whole) if as_they_are else None
        held = place.held if place is not None else (False,) * len(members)
        given = tuple(
            Fingerprint.of_version(member.param.grad) if own else Fingerprint.of(member.param.grad, whole)
            for member, own in zip(members, held, strict=True)
        )
        names = [member.name for member in members]
        # The bucket's name is the same where a rank has gradients of other members, so that ranks see it at once.
        name = bucket.members[0].name
        request = bucket_request(name, names, options.op_and_factors, options.process_set)
        target, finish = (None, _split(small)) if place is None else (place.flat, _fingerprint)
        handle = submit_bucket(request, [tensor for tensor, _ in small], options.process_set, target, finish)
        return _UnderWay(handle, members, given, place, tuple(ctx for _, ctx in small))

    @property
    def _looks_at_all(self) -> bool:
        return self._steps < _FIRST_STEPS or self._steps % _EVERY_STEPS == 0

    def _take(self, part: _UnderWay) -> list[str]:
        """Put what was reduced into the gradients; return the names of those that have changed meanwhile."""
        with REDUCTION:
            result = part.handle.future.result()
        reduced = part.handle.after(result)
        pairs = list(zip(part.members, part.given, strict=True))
        changed = [member.name for member, given in pairs if not given.is_of(member.param.grad)]
        if part.place is None:
            tensors = [reduced] if isinstance(part.handle, SparseHandle) else self._decompressed(part, reduced)
            for member, tensor in zip(part.members, tensors, strict=True):
                if member.name not in changed:
                    _store(member.param, tensor)
        elif any(part.place.held) and not reduced.is_of(reduced.tensor):
            return [member.name for member in part.members]
        elif not changed:
            part.place.store([member.param.grad for member in part.members])
        return changed

    def _decompressed(self, part: _UnderWay, reduced: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        decompress = self.options.compression.decompress
        return [decompress(tensor, ctx) for tensor, ctx in zip(reduced, part.contexts, strict=True)]


def _dense(grad: torch.Tensor) -> torch.Tensor:
    return grad.to_dense() if grad.is_sparse else grad


def _split(small: Sequence[tuple[torch.Tensor, Any]]) -> Finish:
    """Return what makes of a bucket's results tensors like those of `small`."""

    def split(result: Any) -> list[torch.Tensor]:
        parts = to_tensor(result[0]).split([tensor.numel() for tensor, _ in small])
        return [part.view(tensor.shape).to(tensor.device) for part, (tensor, _) in zip(parts, small, strict=True)]

    return split


def _fingerprint(result: Any) -> Fingerprint:
    return Fingerprint.of(to_tensor(result[0]), whole=False)


def _store(param: Param, reduced: torch.Tensor) -> None:
    """Put `reduced` where the parameter's gradient is. A sparse one stays sparse: SparseAdam takes no other."""
    if param.grad.is_sparse:
        param.grad = reduced if reduced.is_sparse else reduced.to_sparse(param.grad.sparse_dim())
        return
    with torch.no_grad():
        param.grad.copy_(reduced)


def _changed(names: Sequence[str]) -> str:
    return (
        f"rank {rank()}: {some_of(names)}: changed, replaced or set to None after its reduction had begun, so "
        "that ranks would end with different weights; expected gradients to stay as backward() made them until "
        "they are reduced. To clip or unscale: loss.backward(); optimizer.synchronize(); change the gradients; "
        "with optimizer.skip_synchronize(): optimizer.step()"
    )
