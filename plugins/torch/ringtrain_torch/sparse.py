"""Sparse allreduce, which gathers the entries of all ranks."""

from __future__ import annotations

from typing import Any

import torch

from ringtrain import Average, ProcessSet, global_process_set
from ringtrain.adapter import NamedCollective, NamedReduction, members
from ringtrain_torch.handles import poll, submit_tensors


class SparseTorchHandle:
    """Handle of a sparse allreduce in progress. Call it, or pass it to `poll` and `synchronize`, for the result."""

    holders = 0  # number of ranks with a gradient, after `after` was called

    def __init__(self, tensor: torch.Tensor, gathering: NamedCollective, average: bool, is_here: bool) -> None:
        coalesced = tensor.coalesce()
        self._shape, self._divisor = tensor.shape, members(gathering.process_set) if average else 1
        # A tensor with zero rows of the dense shape: ranks compare all of a shape but the number of rows, and the
        # entries alone do not contain it.
        shape = torch.empty((0, *tensor.shape), dtype=torch.bool, device=tensor.device)
        holder = torch.ones(int(is_here), dtype=torch.uint8, device=tensor.device)
        entries = [coalesced.indices().t().contiguous(), coalesced.values(), holder, shape]
        self._entries = submit_tensors(gathering, entries)
        self.future = self._entries.future

    def after(self, gathered: Any) -> torch.Tensor:
        """Return the reduced tensor. `gathered`: entries of all ranks, the result of `future`."""
        indices, values, holders, _ = self._entries.after(gathered)
        self.holders = len(holders)
        scaled = values / self._divisor if self._divisor != 1 else values
        return torch.sparse_coo_tensor(indices.t(), scaled, self._shape, check_invariants=False).coalesce()

    def __call__(self) -> torch.Tensor:
        return self.after(self.future.result())

    def done(self) -> bool:
        return poll(self._entries)


def sparse_allreduce_async(
    tensor: torch.Tensor,
    name: str,
    op: Any = Average,
    process_set: ProcessSet = global_process_set,
    is_here: bool = True,
) -> SparseTorchHandle:
    """Begin to sum or average a sparse COO tensor; the result has the entries of every rank.

    Ranks may have different numbers of entries. The handle is callable, and works with `synchronize`. `is_here`: False
    for an empty tensor that represents a missing one.
    """
    how = NamedReduction.of_sums("sparse_allreduce_async", op, 1.0, 1.0, process_set)
    gathering = NamedCollective.allgather(process_set, name, "grouped_allgather")
    return SparseTorchHandle(tensor, gathering, how.op == Average.value, is_here)
