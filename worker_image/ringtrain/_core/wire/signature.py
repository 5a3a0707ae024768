"""Signature of a collective, which ranks compare so that different calls never exchange data."""

import functools
import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from ringtrain.errors import ConfigurationError

# Dimension that may differ between ranks.
ANY_ROWS = -1
# A longer signature is compared by its digest, so that requests and slots of shared memory have room for it at any
# number of tensors.
_TEXT_BYTES: Final = 16 << 10
_DIGEST_MARK: Final = b"#"  # no JSON begins with it
# Limit of a name in a message: a failure has some thousand characters, and both values must fit.
_NAME_CHARACTERS: Final = 300
_BOUNDS_SHOWN: Final = 8


@dataclass(frozen=True)
class WireTensorSignature:
    """Name, dtype and shape of one tensor. A dimension that may differ between ranks is `ANY_ROWS`."""

    name: str | None
    dtype: str
    shape: tuple[int, ...]

    def __post_init__(self) -> None:
        if self.name is not None and not isinstance(self.name, str):
            kind = type(self.name).__name__
            raise ConfigurationError(f"a tensor's name is {self.name!r} ({kind}); expected a text or None")


@dataclass(frozen=True)
class WireSignature:
    """Values that must be equal on all ranks of a collective.

    `layout`: bounds and segment size. If ranks have the same settings, these follow from the other values.
    """

    kind: str
    tensors: tuple[WireTensorSignature, ...] = ()
    op: str | None = None
    root: int | None = None
    layout: tuple[int, ...] = ()

    def encode(self) -> bytes:
        return _encode_signature(self)

    @functools.cached_property
    def compared(self) -> bytes:
        """Return the bytes that ranks compare: the text of the signature, or a digest if it is long."""
        return _compared_signature(self)  # a lookup in its cache needs a hash, which takes 2 us

    @functools.cached_property
    def label(self) -> str:
        """Return `allreduce "conv1.weight"`, or `allreduce` for tensors without a name."""
        names = [t.name for t in self.tensors if t.name is not None]
        more = f" and {len(names) - 1} more" if len(names) > 1 else ""
        return f'{_clipped_name(self.kind)} "{_clipped_name(names[0])}"{more}' if names else _clipped_name(self.kind)


@functools.lru_cache(maxsize=4096)  # the same object each time, whose `compared` is then cached
def with_layout(what: WireSignature, layout: tuple[int, ...]) -> WireSignature:
    """Return the signature `what` with `layout`, the bounds and segment size of its buffers."""
    return replace(what, layout=layout)


@functools.lru_cache(maxsize=4096)  # the same signatures are needed in every step
def _encode_signature(signature: WireSignature) -> bytes:
    s = signature
    tensors = [[t.name, t.dtype, t.shape] for t in s.tensors]
    return json.dumps([s.kind, tensors, s.op, s.root, s.layout], separators=(",", ":")).encode()


@functools.lru_cache(maxsize=4096)
def _compared_signature(signature: WireSignature) -> bytes:
    text = signature.encode()
    return text if len(text) <= _TEXT_BYTES else _DIGEST_MARK + hashlib.sha256(text).hexdigest().encode()


def is_signature_text(compared: bytes) -> bool:
    """Return whether `compared` is a whole signature, which `decode_signature` can read, rather than a digest."""
    return not compared.startswith(_DIGEST_MARK)


def decode_signature(data: bytes) -> WireSignature:
    kind, tensors, op, root, layout = json.loads(data)
    return WireSignature(
        kind, tuple(WireTensorSignature(n, d, tuple(s)) for n, d, s in tensors), op, root, tuple(layout)
    )


def describe_mismatch(sequence: int, first: tuple[int, WireSignature], second: tuple[int, WireSignature]) -> str:
    """Return one line on how the signatures of two (rank, signature) pairs differ. It is the same on the two ranks.

    `sequence`: number of the collective.
    """
    (rank_a, a), (rank_b, b) = sorted((first, second), key=lambda pair: pair[0])
    if a.kind != b.kind and not a.tensors and not b.tensors:
        at = first_difference(a.kind, b.kind)
        return (
            f"collective #{sequence}: rank {rank_a} called {_clipped_name(a.kind, at)} and rank {rank_b} called "
            f"{_clipped_name(b.kind, at)}; every rank must call the same collectives in the same order"
        )
    if a.kind != b.kind or len(a.tensors) != len(b.tensors):
        count_a, count_b = (f" of {len(s.tensors)} tensors" if len(s.tensors) > 1 else "" for s in (a, b))
        return (
            f"collective #{sequence}: rank {rank_a} called {a.label}{count_a} and rank {rank_b} called "
            f"{b.label}{count_b}; every rank must call the same collectives in the same order"
        )
    for index, (one, other) in enumerate(zip(a.tensors, b.tensors, strict=True)):
        difference = _signature_difference(one, other, rank_a, rank_b)
        if difference:
            named = one.name is not None and one.name == other.name
            label = f"{a.kind} {_quoted_name(one.name)}" if named else f"{a.kind} #{sequence}"
            position = f" (tensor {index} of {len(a.tensors)})" if len(a.tensors) > 1 else ""
            return f"{label}{position}: {difference}"
    for field, one_value, other_value in (("op", a.op, b.op), ("root rank", a.root, b.root)):
        if one_value != other_value:
            return (
                f"{a.label} #{sequence}: {field} is {one_value} on rank {rank_a} and {other_value} on "
                f"rank {rank_b}; every rank must pass the same"
            )
    at = first_difference(a.layout, b.layout)
    return (
        f"{a.label} #{sequence}: bounds or segment size are {_signature_values_around(a.layout, at)} on rank {rank_a} "
        f"and {_signature_values_around(b.layout, at)} on rank {rank_b}; every rank must use the same"
    )


def _signature_difference(one: WireTensorSignature, other: WireTensorSignature, rank_a: int, rank_b: int) -> str:
    if one.name != other.name:
        at = first_difference(one.name or "", other.name or "")
        return (
            f"name is {_quoted_name(one.name, at)} on rank {rank_a} and {_quoted_name(other.name, at)} on rank "
            f"{rank_b}; every rank must submit the same tensors in the same order"
        )
    if one.dtype != other.dtype:
        return f"dtype is {one.dtype} on rank {rank_a} and {other.dtype} on rank {rank_b}; every rank must use the same"
    if one.shape != other.shape:
        return (
            f"shape is {_signature_shape_text(one.shape)} on rank {rank_a} and "
            f"{_signature_shape_text(other.shape)} on rank {rank_b}; every rank must build the same model"
        )
    return ""


def first_difference(one: Sequence[Any], other: Sequence[Any]) -> int:
    """Return the index of the first element that differs; the length of the shorter sequence if none does."""
    pairs = enumerate(zip(one, other, strict=False))
    return next((place for place, (a, b) in pairs if a != b), min(len(one), len(other)))


def _quoted_name(name: str | None, differs_at: int = 0) -> str:
    return "not given" if name is None else f'"{_clipped_name(name, differs_at)}"'


def _clipped_name(text: str, differs_at: int = 0) -> str:
    """Return `text`; if it is long, only the characters around index `differs_at`."""
    if len(text) <= _NAME_CHARACTERS:
        return text
    start = max(0, differs_at - _NAME_CHARACTERS // 2)
    shown = text[start : start + _NAME_CHARACTERS]
    return ("…" if start else "") + shown + ("…" if start + len(shown) < len(text) else "")


def _signature_shape_text(shape: tuple[int, ...]) -> str:
    dims = ["any" if d == ANY_ROWS else str(d) for d in shape]
    return f"({dims[0]},)" if len(dims) == 1 else f"({', '.join(dims)})"


def _signature_values_around(values: tuple[Any, ...], place: int) -> str:
    """Return `values` as text; if there are many, only those around index `place`."""
    if len(values) <= _BOUNDS_SHOWN:
        return str(list(values))
    start = max(0, min(place - 2, len(values) - _BOUNDS_SHOWN))
    shown = ", ".join(map(str, values[start : start + _BOUNDS_SHOWN]))
    before = f"from number {start}: " if start else ""
    after = ", …" if start + _BOUNDS_SHOWN < len(values) else ""
    return f"{before}[{shown}{after}] of {len(values)}"
