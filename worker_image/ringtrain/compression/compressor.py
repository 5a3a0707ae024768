"""Allreduce with compressed messages, for tensors that are reduced again in every step."""

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from ringtrain._core.communicators.base import Communicator
from ringtrain._core.process_groups.process_sets import ProcessSet, group_of
from ringtrain._core.process_groups.tensors import check_writable, tensor_of
from ringtrain._core.reduction.cuts import even_bounds
from ringtrain._core.reduction.ops import Average, ReduceOp, Sum
from ringtrain._core.wire.signature import WireSignature
from ringtrain.compression import int8
from ringtrain.compression.halves import HALVES, half_dtype, squeeze, stretch_half
from ringtrain.errors import ConfigurationError, quoted

Flat = NDArray[Any]
INT8: Final = "int8"
# From this size on a tensor is sent in parts, with short parts at both ends, because nothing is sent during their
# conversion.
_CUT_BYTES: Final = 8 << 20
_CUTS: Final = (1 / 8, 1 / 2, 7 / 8)


class Compressor:
    """Allreduce of float32 tensors that sends "bf16" or "fp16" (half of the bytes) or "int8" (a quarter).

        compressor = Compressor("bf16")
        compressor.allreduce_(gradient, name="conv1.weight")

    For each named tensor the rounding error is stored and added the next time. With the message in a half type, which
    is stored too, that needs 1.5 times the tensor's memory. The results are bitwise equal on all ranks. Sums are folded
    in float32, in rank order. Every rank must use the same compression. Rounding errors belong into each rank's
    checkpoint: `state_dict`.
    """

    def __init__(self, compression: str) -> None:
        """Create a compressor for "bf16", "fp16" or "int8". Raises ConfigurationError for another value."""
        if compression != INT8:
            if compression not in HALVES:
                allowed = ", ".join([*HALVES, INT8])
                raise ConfigurationError(f'compression is "{compression}"; expected one of {allowed}')
            half_dtype(compression)
        self.compression = compression
        self._halves: dict[str, Flat] = {}
        self._lost: dict[str, Flat] = {}
        self._lost_results: dict[str, Flat] = {}

    def allreduce_(self, x: Flat, op: ReduceOp = Average, *, name: str, process_set: ProcessSet | None = None) -> Flat:
        """Overwrite `x` (float32, contiguous) with the sum or average over all ranks, and return it.

        `name` identifies the tensor and its rounding error. Raises ConfigurationError and the errors of
        `ringtrain.allreduce_`.
        """
        check_writable(x, "Compressor.allreduce_")
        if x.dtype != np.float32 or not x.flags.c_contiguous:
            kind = "" if x.flags.c_contiguous else " and not contiguous"
            raise ConfigurationError(f'tensor "{name}" is {x.dtype}{kind}; expected float32 and contiguous')
        if op not in (Sum, Average):
            raise ConfigurationError(f"op is {op}; compression supports only Sum and Average")
        values = x.reshape(-1)
        what = WireSignature(f"allreduce as {self.compression}", (tensor_of(x, name),), op.value)
        reduce = self._as_int8 if self.compression == INT8 else self._as_half
        group_of(process_set).call(lambda communicator: reduce(communicator, what, values, op))
        return x

    def state_dict(self) -> dict[str, Any]:
        """Return a copy of this rank's rounding errors, by tensor, for this rank's checkpoint.

        A training that restores it, in a world of the same size, is bitwise equal to an uninterrupted one.
        """
        return {
            "compression": self.compression,
            "lost": {name: memory.copy() for name, memory in self._lost.items()},
            "lost_results": {name: memory.copy() for name, memory in self._lost_results.items()},
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the rounding errors that this rank's `state_dict` has returned.

        With int8, each rank also stores the rounding errors of the results in its part of a tensor. In a world of
        another size, where the parts are different, these errors are reset.

        Raises ConfigurationError, with nothing changed, if `state` is invalid or of another compression.
        """
        if state.get("compression") != self.compression:
            raise ConfigurationError(
                f"the state is of compression {quoted(state.get('compression'))}; this Compressor has "
                f'"{self.compression}"'
            )
        lost, results = _compressor_memories(state, "lost"), _compressor_memories(state, "lost_results")
        self._lost, self._lost_results = lost, results

    def _as_half(self, communicator: Communicator, what: WireSignature, values: Flat, op: ReduceOp) -> None:
        # Retained like the rounding errors: allocating memory for each message costs more than the rounding.
        half = self._memory(self._halves, what, len(values), half_dtype(self.compression))
        lost = self._memory(self._lost, what, len(values))
        if values.nbytes < _CUT_BYTES:
            squeeze(values, lost, half)
            communicator.all_reduce(what, half, half, op)
            stretch_half(half, values)
            return
        # One part is rounded, or a received one widened, while another is sent.
        with ThreadPoolExecutor(1, "ringtrain-compress") as executor:
            cuts = _compressed_parts(len(values))
            rounded = [executor.submit(squeeze, values[cut], lost[cut], half[cut]) for cut in cuts]
            widened = []
            for cut, part in zip(cuts, rounded, strict=True):
                part.result()
                communicator.all_reduce(what, half[cut], half[cut], op)
                widened.append(executor.submit(stretch_half, half[cut], values[cut]))
            for part in widened:
                part.result()

    def _as_int8(self, communicator: Communicator, what: WireSignature, values: Flat, op: ReduceOp) -> None:
        """Reduce `values` over all ranks with int8 messages, in place.

        Sums of bytes would overflow, so the owner of each chunk receives the contributions, folds them in float32, and
        compresses the result again with a separate rounding error.
        """
        size, position = len(communicator.ranks), communicator.position
        bounds = even_bounds(len(values), size)
        cuts = [slice(bounds[p], bounds[p + 1]) for p in range(size)]
        lost = self._memory(self._lost, what, len(values))
        messages = communicator.all_to_all(what, [int8.encode(values[cut], lost[cut]) for cut in cuts])
        length = bounds[position + 1] - bounds[position]
        total = int8.decode_int8(messages[0], length)
        for message in messages[1:]:
            total += int8.decode_int8(message, length)
        if op is Average:
            total /= size
        encoded = int8.encode(total, self._memory(self._lost_results, what, length))
        for cut, message in zip(cuts, communicator.all_gather_parts(what, encoded), strict=True):
            values[cut] = int8.decode_int8(message, cut.stop - cut.start)

    def _memory(self, memories: dict[str, Flat], what: WireSignature, length: int, dtype: Any = np.float32) -> Flat:
        name = what.tensors[0].name or ""
        memory = memories.get(name)
        if memory is None or len(memory) != length:
            memory = memories[name] = np.zeros(length, dtype)
        return memory


def _compressor_memories(state: Mapping[str, Any], key: str) -> dict[str, Flat]:
    """Return a copy of the dictionary `key` of a `state_dict`. Raises ConfigurationError if it is invalid."""
    given = state.get(key)
    if not isinstance(given, Mapping):
        raise ConfigurationError(f'the state has no dict "{key}"; pass the result of state_dict()')
    memories: dict[str, Flat] = {}
    for name, memory in given.items():
        if not isinstance(memory, np.ndarray) or memory.dtype != np.float32 or memory.ndim != 1:
            what = f"{memory.dtype}, {memory.ndim}-d" if isinstance(memory, np.ndarray) else type(memory).__name__
            raise ConfigurationError(f'the state\'s {key} of tensor "{name}" is {what}; expected float32, 1-d')
        memories[name] = memory.copy()
    return memories


def _compressed_parts(length: int) -> list[slice]:
    """Cut a tensor of `length` elements into parts, so that a part is converted while the previous part is sent."""
    cuts = [int(length * cut) for cut in _CUTS]
    return [slice(start, end) for start, end in pairwise([0, *cuts, length])]
