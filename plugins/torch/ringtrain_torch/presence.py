"""Presence of gradients: ranks agree on the parameters that have a gradient on any rank, as part of the reduction.

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
    """Return the presence row of a bucket, with the type of `like`, one of its tensors. Its last number is 1 if this
    rank drops the gradients: they are not for a step."""
    if all(here) and not dropping:
        return _usual_presence_row(len(here), like.dtype, like.device)
    return torch.tensor([float(one) for one in (*here, dropping)], dtype=like.dtype, device=like.device)


def grads_anywhere(reduced: torch.Tensor) -> list[bool]:
    """Return, for each gradient, whether some rank has this gradient, from a reduced row."""
    wide = reduced.real if reduced.is_complex() else reduced
    return [number > 0 for number in wide.tolist()]


def check_drops_agree(reduced: torch.Tensor, dropping: bool, own: str) -> None:
    """Raise MismatchError if some ranks drop gradients on which others step. `reduced`: last number of a row, as an
    average. `own`: this rank, for the message."""
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
    """Return an empty gradient: zeros, or a sparse tensor without entries if `sparse_dim` is not 0."""
    if not sparse_dim:
        return torch.zeros_like(param)
    nothing = torch.empty((sparse_dim, 0), dtype=torch.int64, device=param.device)
    values = torch.empty((0, *param.shape[sparse_dim:]), dtype=param.dtype, device=param.device)
    return torch.sparse_coo_tensor(nothing, values, param.shape, check_invariants=False)


@functools.cache  # the usual row of nearly every bucket and step; it is never written
def _usual_presence_row(count: int, dtype: torch.dtype, device: Any) -> torch.Tensor:
    return torch.tensor([1.0] * count + [0.0], dtype=dtype, device=device)
