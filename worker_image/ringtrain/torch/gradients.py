"""The gradients of the reductions."""

from collections.abc import Sequence
from dataclasses import replace

import torch

from ringtrain.negotiation.queue import Finish
from ringtrain.negotiation.request import CollectiveKind, Request
from ringtrain.process_groups.process_sets import ProcessSet, members
from ringtrain.torch.bridge import to_tensor, to_tensors
from ringtrain.torch.handles import submit, synchronize

Pair = tuple[torch.Tensor, torch.Tensor]


def allreduce_gradients(
    request: Request, process_set: ProcessSet, grads: Sequence[torch.Tensor], pairs: Sequence[Pair]
) -> list[torch.Tensor]:
    """Return the gradients of an allreduce's inputs from those of its outputs, which every rank has one of.

    Sums and averages: the same reduction of the gradients. Min and Max: their sum, to the ranks that held the
    value, in equal parts. Product: their sum times the product of the other ranks' inputs. `pairs`: input and
    output of each tensor, for the last three.
    """
    if request.op in ("Sum", "Average", "Adasum"):
        return reduced(grads, replace(request, name=f"{request.name}.grad"), process_set)
    total = replace(request, op="Sum", prescale=1.0, postscale=1.0, name=f"{request.name}.grad")
    summed = reduced(grads, total, process_set)
    factor = request.prescale * request.postscale
    if request.op == "Product":
        others = [_product_of_others(pair[0], request, process_set, i) for i, pair in enumerate(pairs)]
        return [factor * g * other for g, other in zip(summed, others, strict=True)]
    held = [(x * request.prescale * request.postscale == y).to(x.dtype) for x, y in pairs]
    holders = reduced(held, replace(total, name=f"{request.name}.holders"), process_set)
    return [factor * g * own / count for g, own, count in zip(summed, held, holders, strict=True)]


def reduced(tensors: Sequence[torch.Tensor], request: Request, process_set: ProcessSet) -> list[torch.Tensor]:
    """Return `tensors` after the allreduce `request`, without gradients."""
    finish: Finish = lambda arrays: to_tensors(arrays, tensors)  # noqa: E731
    result: list[torch.Tensor] = synchronize(submit(request, tensors, process_set, finish))
    return result


def _product_of_others(x: torch.Tensor, request: Request, process_set: ProcessSet, index: int) -> torch.Tensor:
    gather = Request(CollectiveKind.ALLGATHER, f"{request.name}.others.{index}")
    stacked: torch.Tensor = synchronize(
        submit(gather, [x.reshape(1, -1)], process_set, lambda result: to_tensor(result[0], x.device))
    )
    kept = [row for row in range(members(process_set)) if row != process_set.rank()]
    product: torch.Tensor = (request.prescale * stacked[kept]).prod(dim=0).reshape(x.shape)
    return product
