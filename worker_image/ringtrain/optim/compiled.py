"""Update rules in compiled code, which needs one pass over the arrays. Bitwise equal to `NumpyOptimizerKernels`."""

import ctypes
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from ringtrain._core.kernels.library import native_library
from ringtrain._core.kernels.structures import AdamTermsStruct, SgdTermsStruct
from ringtrain._core.wire.dtypes import CODES, dtype_name
from ringtrain.optim.kernels import (
    AdamTerms,
    Floats,
    NumpyOptimizerKernels,
    OptimizerKernels,
    OwnedBucketPart,
    SgdTerms,
    Sums,
)

_MEAN: Final = "mean"
_SQUARE: Final = "square"
_CODES: Final = {np.dtype(np.float32): 3, np.dtype(np.float64): 4}  # native/fold.h


def best_kernels() -> OptimizerKernels:
    """Return the compiled kernels, or numpy's if they were not built. Compiled and numpy kernels give bitwise equal
    results."""
    library = native_library()
    return NumpyOptimizerKernels() if library is None else NativeOptimizerKernels(library)


class NativeOptimizerKernels:
    """Implementation of `OptimizerKernels` in C (`native/optimizer.c`). Calls release the GIL."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self._library = library

    def sgd(self, part: OwnedBucketPart, terms: SgdTerms) -> None:
        given = _sgd_terms(terms)
        velocity = _array_pointer(part.state["momentum"]) if terms.momentum else None
        self._library.ringtrain_sgd(
            _rule_code(part.weights), _array_pointer(part.weights), _array_pointer(part.gradients), velocity,
            ctypes.c_size_t(part.weights.size), ctypes.byref(given),
        )  # fmt: skip

    def adam(self, part: OwnedBucketPart, terms: AdamTerms) -> None:
        given = _adam_terms(terms, terms.rate / terms.correction1)
        self._library.ringtrain_adam(*_adam_arrays(part), ctypes.byref(given))

    def lamb_direction(self, part: OwnedBucketPart, terms: AdamTerms) -> None:
        given = _adam_terms(terms, step=1.0 / terms.correction1)
        self._library.ringtrain_adam_direction(*_adam_arrays(part), ctypes.byref(given))

    def descend(self, weights: Floats, direction: Floats, rate: float) -> None:
        self._library.ringtrain_descend(
            _rule_code(weights), _array_pointer(weights), _array_pointer(direction), ctypes.c_size_t(weights.size),
            ctypes.c_double(rate),
        )  # fmt: skip

    def follow(self, master: Floats, weights: NDArray[Any]) -> None:
        self._library.ringtrain_follow(
            CODES[dtype_name(weights.dtype)],
            _array_pointer(master),
            _array_pointer(weights),
            ctypes.c_uint64(weights.size),
        )

    def square_sums(self, values: Floats, edges: NDArray[np.intp]) -> Sums:
        sums, where = np.empty(edges.size - 1, np.float64), np.ascontiguousarray(edges, np.int64)
        self._library.ringtrain_square_sums(
            _rule_code(values), _array_pointer(values), ctypes.c_void_p(where.ctypes.data),
            ctypes.c_size_t(sums.size), _array_pointer(sums),
        )  # fmt: skip
        return sums


RULE_CODES: Final = {SgdTermsStruct: 1, AdamTermsStruct: 2}  # enum rule of native/shm.h


@dataclass(frozen=True)
class NativeOptimizerTerms:
    """Coefficients of an update in a C struct, whose address is passed to compiled code."""

    struct: SgdTermsStruct | AdamTermsStruct

    @property
    def address(self) -> int:
        return ctypes.addressof(self.struct)


def native_terms(terms: SgdTerms | AdamTerms) -> NativeOptimizerTerms:
    """Return the coefficients of `terms` in the form in which `NativeOptimizerKernels` passes them to compiled code."""
    if isinstance(terms, SgdTerms):
        return NativeOptimizerTerms(_sgd_terms(terms))
    return NativeOptimizerTerms(_adam_terms(terms, terms.rate / terms.correction1))


def _sgd_terms(terms: SgdTerms) -> SgdTermsStruct:
    return SgdTermsStruct(terms.scale, terms.rate, terms.momentum, terms.decay, int(terms.nesterov))


def _adam_terms(terms: AdamTerms, step: float) -> AdamTermsStruct:
    return AdamTermsStruct(
        terms.scale, terms.beta1, 1.0 - terms.beta1, terms.beta2, 1.0 - terms.beta2, terms.correction2**-0.5,
        terms.epsilon, terms.coupled_decay, terms.decoupled_decay, 1.0 - terms.rate * terms.decoupled_decay, step,
    )  # fmt: skip


def _adam_arrays(part: OwnedBucketPart) -> tuple[object, ...]:
    arrays = (part.weights, part.gradients, part.state[_MEAN], part.state[_SQUARE])
    return _rule_code(part.weights), *map(_array_pointer, arrays), ctypes.c_size_t(part.weights.size)


def _rule_code(values: Floats) -> int:
    return _CODES[values.dtype]


def _array_pointer(values: Floats) -> ctypes.c_void_p:
    return ctypes.c_void_p(values.ctypes.data)
