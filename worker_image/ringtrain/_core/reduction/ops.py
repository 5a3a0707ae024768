"""Reduction operations, with Horovod's names."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from enum import Enum
from typing import Any, Final

import numpy as np

from ringtrain._core.wire.dtypes import INTEGERS
from ringtrain.errors import ConfigurationError


class ReduceOp(Enum):
    """Operation by which the values of all ranks are reduced to one.

    `Sum`, `Min`, `Max`, `Product` fold in the order that `process_groups/collectives.py` documents. `Average` is the
    sum divided by the number of ranks. `Adasum` (Maleki et al. 2020) scales each addition by the angle between two
    gradients.
    """

    Average = "Average"
    Sum = "Sum"
    Adasum = "Adasum"
    Min = "Min"
    Max = "Max"
    Product = "Product"

    __hash__ = object.__hash__  # Enum's own is slower, because it is in Python

    def __repr__(self) -> str:
        return f"ringtrain.{self.value}"

    @classmethod
    def of(cls, op: Any, average: bool | None = None) -> ReduceOp:
        """Return the operation for `op`, or for Horovod's deprecated argument `average`.

        `op` may also be a name, and None means Average. Raises ConfigurationError.
        """
        if op is not None and average is not None:
            raise ConfigurationError("op and average are both set; pass only op, which replaces average")
        if average is not None:
            warnings.warn("average is deprecated; pass op=Average or op=Sum", DeprecationWarning, stacklevel=4)
            return cls.Average if average else cls.Sum
        if op is None:
            return cls.Average
        try:
            return cls(op)
        except ValueError:
            raise ConfigurationError(f"op is {op!r}; expected Average, Sum, Adasum, Min, Max or Product") from None


# Function that folds two contributions; an average divides once, at the end. Adasum has none.
UFUNCS: Final[dict[ReduceOp, Callable[..., Any]]] = {
    ReduceOp.Sum: np.add,
    ReduceOp.Average: np.add,
    ReduceOp.Min: np.minimum,
    ReduceOp.Max: np.maximum,
    ReduceOp.Product: np.multiply,
}

Average: Final = ReduceOp.Average
Sum: Final = ReduceOp.Sum
Adasum: Final = ReduceOp.Adasum
Min: Final = ReduceOp.Min
Max: Final = ReduceOp.Max
Product: Final = ReduceOp.Product


def check_op(op: ReduceOp, dtype: str) -> None:
    """Raise ConfigurationError if `op` is not defined for `dtype`."""
    if not isinstance(op, ReduceOp):
        raise ConfigurationError(f"op is {op!r}; expected Sum, Average, Adasum, Min, Max or Product of ringtrain")
    if op is Average and dtype in INTEGERS:
        raise ConfigurationError(
            f"Average of {dtype} would need rounding; pass op=ringtrain.Sum and divide, or convert"
        )
    if op is Adasum and dtype in INTEGERS:
        raise ConfigurationError(f"Adasum of {dtype} is not supported, because it scales; convert to a floating type")


def only_sums(op: ReduceOp, what: str) -> ReduceOp:
    """Return `op` if it is Sum or Average; raise ConfigurationError, naming the collective `what`, otherwise."""
    if op not in (Average, Sum):
        raise ConfigurationError(f"{what}: op is {op.value}; expected Average or Sum")
    return op
