"""Buckets of gradients that are reduced together, and the hooks that fill them."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from ringtrain import rank
from ringtrain.errors import some_of
from ringtrain_torch.bridge import to_tensor
from ringtrain_torch.buckets import Param, TorchBucketMemory, TorchBucketPlace
from ringtrain_torch.fingerprint import TorchFingerprint
from ringtrain_torch.handles import TorchHandle
from ringtrain_torch.sparse import SparseTorchHandle


@dataclass
class PendingTorchReduction:
    """A reduction in progress. `given`: fingerprints of the gradients at its start. `here`: whether this rank has
    computed each gradient. `place`: memory in which the bucket is reduced, or None if the gradients are not views
    of such memory. `contexts`: if `place` is None, what the compression needs to decompress each gradient. `row`: for
    dense gradients, the reduced row that shows which ranks have gradients (see `presence`)."""

    handle: TorchHandle | SparseTorchHandle
    members: "tuple[TorchBucketMember, ...]"
    given: tuple[TorchFingerprint, ...]
    here: tuple[bool, ...]
    place: TorchBucketPlace | None = None
    contexts: tuple[Any, ...] = ()
    row: torch.Tensor | None = None


@dataclass(eq=False)
class TorchBucketMember:
    """A parameter of a bucket. `passes`: how often its gradient was computed since the last step. `made`: fingerprint
    of that gradient, if it is not submitted yet. `sparse_dim`: `sparse_dim` of the last gradient, 0 for a dense
    gradient."""

    param: Param
    name: str
    passes: int = 0
    made: TorchFingerprint | None = None
    sparse_dim: int = 0
    hook: Any = None


@dataclass(eq=False)
class TorchBucket:
    """Bucket: parameters whose gradients are reduced together. `asked_for`: whether the user requested this group."""

    members: tuple[TorchBucketMember, ...]
    asked_for: bool
    memory: TorchBucketMemory = field(default_factory=TorchBucketMemory)
    under_way: tuple[PendingTorchReduction, ...] = ()


def gradient_hook(
    on_gradient: Callable[[], Any], bucket: Callable[[], Any], member: Callable[[], Any]
) -> Callable[[torch.Tensor], None]:
    """Return the hook of a parameter. It holds weak references, because Python's collector cannot see hooks
    of tensors."""

    def call(param: torch.Tensor) -> None:
        if (method := on_gradient()) is not None:
            method(bucket(), member())

    return call


def remove_gradient_hooks(hooks: Sequence[Any]) -> None:
    for hook in hooks:
        hook.remove()


def is_gradient_changed(member: TorchBucketMember) -> bool:
    """Return whether a script changed the gradient after backward(). Setting it to None or zero does not count."""
    grad, made = member.param.grad, member.made
    if made is None or grad is None or made.has_bits_of(grad):
        return False
    return bool(grad._values().any() if grad.is_sparse else grad.any())


def dense_gradient(grad: torch.Tensor) -> torch.Tensor:
    return grad.to_dense() if grad.is_sparse else grad


def split_buckets(small: Sequence[tuple[torch.Tensor, Any]]) -> Callable[[list[Any]], Any]:
    """Return a function that splits a bucket's result into tensors with the shapes of those in `small`."""

    def split(result: Any) -> list[torch.Tensor]:
        parts = to_tensor(result[0]).split([tensor.numel() for tensor, _ in small])
        return [part.view(tensor.shape).to(tensor.device) for part, (tensor, _) in zip(parts, small, strict=True)]

    return split


def gradient_fingerprint(result: Any) -> TorchFingerprint:
    return TorchFingerprint.of(to_tensor(result[0]), whole=False)


def store_gradient(param: Param, reduced: torch.Tensor | None) -> None:
    """Store `reduced` as the gradient of `param`. Sparse gradients stay sparse, as SparseAdam requires."""
    if reduced is None:
        param.grad = None
        return
    if param.grad.is_sparse:
        param.grad = reduced if reduced.is_sparse else reduced.to_sparse(param.grad.sparse_dim())
        return
    with torch.no_grad():
        param.grad.copy_(reduced)


def changed_gradients_error(names: Sequence[str]) -> str:
    return (
        f"rank {rank()}: {some_of(names)}: changed, replaced or set to None after its reduction had begun, so "
        "that ranks would end with different weights; expected gradients to stay as backward() made them until "
        "they are reduced. To clip or unscale: loss.backward(); optimizer.synchronize(); change the gradients; "
        "with optimizer.skip_synchronize(): optimizer.step()"
    )
