"""Detection of changes to a gradient since its reduction began, without a copy of it."""

import itertools

import torch

from ringtrain_torch.fingerprint import TorchFingerprint

# PyTorch is imported in the process of the ranks, not in each process of pytest.
RUN_IN = {"framework": "torch", "ranks": [1]}

TYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
SHAPES = {
    "scalar": (),
    "few": (3,),
    "kernel": (64, 64, 3, 3),
    "matrix": (300, 200),
    "six-dimensional": (2, 4, 8, 8, 8, 8),
}


def test_a_scaled_tensor_is_told_from_the_one_that_was() -> None:
    """A change through `.data`, which PyTorch does not count as a write, is detected for any type, size and layout."""
    for dtype, shape, whole in itertools.product(TYPES, SHAPES.values(), (True, False)):
        layouts = [
            torch.randn(shape).to(dtype),
            torch.randn(shape).to(dtype).permute(tuple(range(len(shape)))[::-1]),
        ]
        if len(shape) == 4:
            layouts.append(layouts[0].to(memory_format=torch.channels_last))
        for tensor in layouts:
            before = TorchFingerprint.of(tensor, whole)
            assert before.is_of(tensor)
            assert not before.is_of(tensor.clone())
            tensor.data.mul_(0.5)
            assert not before.is_of(tensor), (dtype, tensor.stride(), whole)


def test_one_element_is_seen_where_all_are_looked_at() -> None:
    """A comparison of all elements detects it; a comparison of a part may rely on PyTorch's count of writes."""
    tensor = torch.randn(100, 100)
    whole, part = TorchFingerprint.of(tensor), TorchFingerprint.of(tensor, whole=False)
    tensor.data[3, 4] += 1
    assert not whole.is_of(tensor)
    assert part.is_of(tensor)
    tensor[3, 4] += 1
    assert not part.is_of(tensor)


def test_a_view_of_a_buffer_at_any_place() -> None:
    """Gradients that lie in one buffer of 4-byte elements begin at no multiple of 8 bytes."""
    buffer = torch.randn(10)
    before = TorchFingerprint.of(buffer[1:4])
    assert not before.is_of(buffer[1:4])  # another object
    assert before.is_of(before.tensor)


def test_entries_of_a_sparse_tensor() -> None:
    """Values of the entries are compared."""
    tensor = torch.sparse_coo_tensor([[0, 2]], [1.0, 2.0], (5,), check_invariants=True)
    before = TorchFingerprint.of(tensor)
    assert before.is_of(tensor)
    tensor._values().data.mul_(2)
    assert not before.is_of(tensor)
