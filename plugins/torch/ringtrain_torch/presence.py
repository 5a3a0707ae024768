"""Agreement of ranks, as part of the reduction, on which parameters have a gradient on any rank.

A parameter that a rank's backward pass did not reach is sent as zeros, and a row with one number per parameter follows
the gradients of a bucket: 1 if this rank has a gradient, else 0. If the reduced number is 0, no rank has one: `grad` of
such a parameter stays None and it does not change, as with torch alone.
"""

import functools
from collections.abc import Sequence
from typing import Any

import torch

from ringtrain.errors import MismatchError
from ringtrain_torch.buckets import Param


def grad_presence_row(here: Sequence[bool], dropping: bool, like: torch.Tensor) -> torch.Tensor:
    """Return the row of a bucket that shows which gradients this rank has, with the dtype of `like`.

    `here`: for each gradient, whether this rank has it. `dropping`: whether this rank discards the gradients without a
    step; then the row's last number is 1.
    """
    if all(here) and not dropping:
        return _usual_presence_row(len(here), like.dtype, like.device)
    return torch.tensor([float(one) for one in (*here, dropping)], dtype=like.dtype, device=like.device)


def grads_anywhere(reduced: torch.Tensor) -> list[bool]:
    """Return, for each gradient, whether any rank has it. `reduced`: `grad_presence_row`, reduced."""
    wide = reduced.real if reduced.is_complex() else reduced
    return [number > 0 for number in wide.tolist()]


def check_drops_agree(reduced: torch.Tensor, dropping: bool, own: str) -> None:
    """Raise MismatchError if some ranks discard gradients (`zero_grad()`) with which others step. `reduced`: last
    number of the row, averaged over ranks. `dropping`: whether this rank discards its gradients. `own`: name of this
    rank, for the message."""
    number = (reduced.real if reduced.is_complex() else reduced).item()
    if number > 0.999 if dropping else number == 0:
        return
    here, there = ("zero_grad()", "step()") if dropping else ("step()", "zero_grad()")
    raise MismatchError(
        f"{own} called {here} after a backward pass, but other ranks called {there}, so weights would differ; expected "
        "the same calls on all ranks. To skip a step whose loss is not finite, skip it on all ranks, for example if "
        "allreduce(bad, op=Max) is true"
    )


def empty_gradient(param: Param, sparse_dim: int) -> torch.Tensor:
    """Return a gradient of zeros, or a sparse tensor without entries if `sparse_dim` is not 0."""
    if not sparse_dim:
        return torch.zeros_like(param)
    nothing = torch.empty((sparse_dim, 0), dtype=torch.int64, device=param.device)
    values = torch.empty((0, *param.shape[sparse_dim:]), dtype=param.dtype, device=param.device)
    return torch.sparse_coo_tensor(nothing, values, param.shape, check_invariants=False)


@functools.cache  # the usual row of nearly every bucket and step; it is never written
def _usual_presence_row(count: int, dtype: torch.dtype, device: Any) -> torch.Tensor:
    return torch.tensor([1.0] * count + [0.0], dtype=dtype, device=device)
