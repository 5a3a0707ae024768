"""Gradients that are reduced together, and the memory in which they are reduced."""

import torch

from ringtrain_torch.bridge import to_tensor
from ringtrain_torch.buckets import TorchBucketMemory, cut_at

# PyTorch is imported in the process of the ranks, not in each process of pytest.
RUN_IN = {"framework": "torch", "ranks": [1]}

TYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


def parameters(count: int, elements: int = 4, dtype: torch.dtype = torch.float32) -> dict[torch.nn.Parameter, str]:
    return {torch.nn.Parameter(torch.zeros(elements, dtype=dtype)): f"layer.{index}" for index in range(count)}


def reduced(memory: TorchBucketMemory, grads: list[torch.Tensor], untouched: bool = False) -> None:
    """Double `grads`, like a reduction over two ranks with the same gradients."""
    place = memory.place(grads, untouched)
    sums = torch.cat([grad.reshape(-1) for grad in grads]) * 2
    to_tensor(place.flat).copy_(sums)
    place.store(grads)


def test_ranks_with_another_order_of_parameters_cut_alike() -> None:
    names = {**parameters(12), **parameters(3, dtype=torch.float64)}
    shuffled = dict(reversed(names.items()))
    cuts = [[[order[param] for param in bucket] for bucket in cut_at(order, 64)] for order in (names, shuffled)]
    assert cuts[0] == cuts[1]
    assert cuts[0][0] == ["layer.11", "layer.10", "layer.9", "layer.8"]
    assert sorted(map(len, cuts[0])) == [1, 2, 4, 4, 4]


def test_gradients_become_views_of_one_array() -> None:
    """In the next step gradients are reduced in place, and are the same objects."""
    for dtype in TYPES:
        memory = TorchBucketMemory()
        grads = [torch.ones(2, 3, dtype=dtype), torch.ones((), dtype=dtype), torch.ones(0, dtype=dtype)]
        reduced(memory, grads)
        assert all(torch.equal(grad, torch.full_like(grad, 2)) for grad in grads), dtype
        place = memory.place(grads, untouched=False)
        assert place.held == (True, True, True), dtype
        to_tensor(place.flat).fill_(7)
        assert all(torch.equal(grad, torch.full_like(grad, 7)) for grad in grads), dtype


def test_gradients_that_must_stay_are_reduced_elsewhere() -> None:
    memory, grads = TorchBucketMemory(), [torch.ones(3), torch.ones(2)]
    reduced(memory, grads)
    place = memory.place(grads, untouched=True)
    to_tensor(place.flat).fill_(5)
    assert grads[0].tolist() == [2, 2, 2]
    place.store(grads)
    assert grads[0].tolist() == [5, 5, 5]


def test_a_gradient_that_was_kept_from_an_earlier_step_stays_as_it_is() -> None:
    memory, kept = TorchBucketMemory(), []
    for _ in range(3):
        grads = [torch.ones(3), torch.ones(2)]
        reduced(memory, grads)
        kept.append(grads[0])
    kept[0] += 1
    assert [grad.tolist() for grad in kept] == [[3, 3, 3], [2, 2, 2], [2, 2, 2]]


def test_a_view_of_a_gradient_sees_what_was_reduced() -> None:
    """So does the user's own buffer of which gradients are views."""
    buffer = torch.ones(5)
    grads = [buffer[:3], buffer[3:]]
    for _ in range(2):
        reduced(TorchBucketMemory(), grads)
    assert buffer.tolist() == [4] * 5
    grad = torch.ones(4)
    view = grad.view(2, 2)
    reduced(TorchBucketMemory(), [grad])
    assert view.tolist() == [[2, 2], [2, 2]]


def test_other_shapes_get_other_memory() -> None:
    """A parameter that is frozen for a while leaves its bucket."""
    memory, grads = TorchBucketMemory(), [torch.ones(3), torch.ones(2)]
    for some in (grads, grads[:1], grads):
        reduced(memory, some)
    assert (grads[0].tolist(), grads[1].tolist()) == ([8, 8, 8], [4, 4])


def test_gradients_that_are_not_flat_have_no_place() -> None:
    for grad in (torch.ones(2, 3).t(), torch.ones(1, 3, 2, 2).to(memory_format=torch.channels_last)):
        assert TorchBucketMemory().place([torch.ones(2), grad], untouched=False) is None, grad.stride()
