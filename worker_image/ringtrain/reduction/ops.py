"""Reduction operations."""

from collections.abc import Callable
from enum import Enum
from typing import Any

import numpy as np

from ringtrain.errors import ConfigurationError
from ringtrain.wire.dtypes import INTEGERS


class Op(Enum):
    """How contributions become one value."""

    Sum = "Sum"
    Average = "Average"
    Min = "Min"
    Max = "Max"
    Product = "Product"

    def __repr__(self) -> str:
        return f"ringtrain.{self.value}"

    @property
    def ufunc(self) -> Callable[..., Any]:
        """What folds two contributions into one; an average divides once, at the end."""
        return _UFUNCS[self]


_UFUNCS: dict[Op, Callable[..., Any]] = {
    Op.Sum: np.add,
    Op.Average: np.add,
    Op.Min: np.minimum,
    Op.Max: np.maximum,
    Op.Product: np.multiply,
}

Sum = Op.Sum
Average = Op.Average
Min = Op.Min
Max = Op.Max
Product = Op.Product


def check_op(op: Op, dtype: str) -> None:
    """Raise ConfigurationError if `op` has no meaning for `dtype`."""
    if not isinstance(op, Op):
        raise ConfigurationError(f"op is {op!r}; expected Sum, Average, Min, Max or Product of ringtrain")
    if op is Average and dtype in INTEGERS:
        raise ConfigurationError(
            f"Average of {dtype} would have to round; pass op=ringtrain.Sum and divide as you mean it, or convert"
        )
