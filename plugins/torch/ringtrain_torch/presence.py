"""Which parameters some rank has a gradient of: ranks agree on it with what they reduce anyway.

A parameter that a rank's backward pass did not reach travels as zeros, and behind the gradients of a bucket stands
a row with one number a parameter: 1 where this rank has a gradient, else 0. Reduced, it is 0 where no rank has
one: such a parameter keeps `grad` None and does not move, as with torch alone.
"""

import functools
from collections.abc import Sequence
from typing import Any

import torch

from ringtrain.errors import MismatchError
from ringtrain_torch.buckets import Param


def grad_presence_row(here: Sequence[bool], dropping: bool, like: torch.Tensor) -> torch.Tensor:
    """Return the row of a bucket, of the type of `like`, one of the tensors in front of it. Its last number is 1
    where this rank drops the gradients: they are not for a step.
    """
    if all(here) and not dropping:
        return _usual_presence_row(len(here), like.dtype, like.device)
    return torch.tensor([float(one) for one in (*here, dropping)], dtype=like.dtype, device=like.device)


def is_grad_anywhere(reduced: torch.Tensor) -> list[bool]:
    """Whether some rank has each gradient, of a row that was reduced."""
    wide = reduced.real if reduced.is_complex() else reduced
    return [number > 0 for number in wide.tolist()]


def check_who_drops(reduced: torch.Tensor, dropping: bool, own: str) -> None:
    """Raise MismatchError where some ranks drop gradients that others step on. `reduced`: the last number of a
    row, as an average. `own`: who says it.
    """
    number = (reduced.real if reduced.is_complex() else reduced).item()
    if number > 0.999 if dropping else number == 0:
        return
    here, there = ("zero_grad()", "step()") if dropping else ("step()", "zero_grad()")
    raise MismatchError(
        f"{own} has called {here} after a backward pass, and other ranks {there}: they would end with different "
        "weights; expected the same calls on all ranks. To leave a step out where a loss is not finite, agree on "
        "it first: all ranks leave it out if allreduce(bad, op=Max) says so"
    )


def empty_gradient(param: Param, sparse_dim: int) -> torch.Tensor:
    """Return a gradient of nothing: zeros, or a sparse tensor without entries where `sparse_dim` is not 0."""
    if not sparse_dim:
        return torch.zeros_like(param)
    nothing = torch.empty((sparse_dim, 0), dtype=torch.int64, device=param.device)
    values = torch.empty((0, *param.shape[sparse_dim:]), dtype=param.dtype, device=param.device)
    return torch.sparse_coo_tensor(nothing, values, param.shape, check_invariants=False)


@functools.cache  # that of nearly every bucket in nearly every step; nobody writes to it
def _usual_presence_row(count: int, dtype: torch.dtype, device: Any) -> torch.Tensor:
    return torch.tensor([1.0] * count + [0.0], dtype=dtype, device=device)
