"""What a rank means to do in a collective; ranks that mean different things must not exchange bytes."""

import functools
import json
from dataclasses import dataclass
from typing import Any

# A dimension that may differ between ranks.
ANY_ROWS = -1


@dataclass(frozen=True)
class Tensor:
    """One tensor of a collective. `shape` has `ANY_ROWS` where ranks may differ."""

    name: str | None
    dtype: str
    shape: tuple[int, ...]


@dataclass(frozen=True)
class Signature:
    """Everything that all ranks of a collective must agree on.

    `layout`: bounds and segment size, which follow from the rest unless ranks are set up differently.
    """

    kind: str
    tensors: tuple[Tensor, ...] = ()
    op: str | None = None
    root: int | None = None
    layout: tuple[int, ...] = ()

    def encode(self) -> bytes:
        return _encode(self)

    @property
    def label(self) -> str:
        """`allreduce "conv1.weight"`, or `allreduce` for tensors without a name."""
        names = [t.name for t in self.tensors if t.name is not None]
        more = f" and {len(names) - 1} more" if len(names) > 1 else ""
        return f'{self.kind} "{names[0]}"{more}' if names else self.kind


@functools.lru_cache(maxsize=4096)  # a training step repeats the same signatures
def _encode(signature: Signature) -> bytes:
    s = signature
    tensors = [[t.name, t.dtype, t.shape] for t in s.tensors]
    return json.dumps([s.kind, tensors, s.op, s.root, s.layout], separators=(",", ":")).encode()


def decode_signature(data: bytes) -> Signature:
    kind, tensors, op, root, layout = json.loads(data)
    return Signature(kind, tuple(Tensor(n, d, tuple(s)) for n, d, s in tensors), op, root, tuple(layout))


def describe_mismatch(sequence: int, first: tuple[int, Signature], second: tuple[int, Signature]) -> str:
    """Say in one line how two (rank, signature) pairs differ; both ranks say it alike."""
    (rank_a, a), (rank_b, b) = sorted((first, second), key=lambda pair: pair[0])
    if a.kind != b.kind or len(a.tensors) != len(b.tensors):
        count_a, count_b = (f" of {len(s.tensors)} tensors" if len(s.tensors) > 1 else "" for s in (a, b))
        return (
            f"collective #{sequence}: rank {rank_a} called {a.label}{count_a} and rank {rank_b} called "
            f"{b.label}{count_b}; every rank must call the same collectives in the same order"
        )
    for index, (one, other) in enumerate(zip(a.tensors, b.tensors, strict=True)):
        difference = _tensor_difference(one, other, rank_a, rank_b)
        if difference:
            named = one.name is not None and one.name == other.name
            label = f'{a.kind} "{one.name}"' if named else f"{a.kind} #{sequence}"
            position = f" (tensor {index} of {len(a.tensors)})" if len(a.tensors) > 1 else ""
            return f"{label}{position}: {difference}"
    for field, one_value, other_value in (("op", a.op, b.op), ("root rank", a.root, b.root)):
        if one_value != other_value:
            return (
                f"{a.label} #{sequence}: {field} is {one_value} on rank {rank_a} and {other_value} on "
                f"rank {rank_b}; every rank must pass the same"
            )
    return (
        f"{a.label} #{sequence}: bounds or segment size are {_short(a.layout)} on rank {rank_a} and "
        f"{_short(b.layout)} on rank {rank_b}; every rank must use the same"
    )


def _tensor_difference(one: Tensor, other: Tensor, rank_a: int, rank_b: int) -> str:
    if one.name != other.name:
        return (
            f"name is {_quoted(one.name)} on rank {rank_a} and {_quoted(other.name)} on rank {rank_b}; "
            f"every rank must submit the same tensors in the same order"
        )
    if one.dtype != other.dtype:
        return (
            f"dtype is {one.dtype} on rank {rank_a} and {other.dtype} on rank {rank_b}; "
            f"every rank must use the same"
        )
    if one.shape != other.shape:
        return (
            f"shape is {_shape(one.shape)} on rank {rank_a} and {_shape(other.shape)} on rank {rank_b}; "
            f"every rank must build the same model"
        )
    return ""


def _quoted(name: str | None) -> str:
    return "not given" if name is None else f'"{name}"'


def _shape(shape: tuple[int, ...]) -> str:
    dims = ["any" if d == ANY_ROWS else str(d) for d in shape]
    return f"({dims[0]},)" if len(dims) == 1 else f"({', '.join(dims)})"


def _short(values: tuple[Any, ...]) -> str:
    return str(list(values)) if len(values) <= 8 else f"[{', '.join(map(str, values[:8]))}, …]"
