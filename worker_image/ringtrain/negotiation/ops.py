"""The reductions by their public names, and the two ways in which callers choose one."""

import warnings
from enum import Enum
from typing import Any, Final

from ringtrain.errors import ConfigurationError


class ReduceOp(Enum):
    """How contributions of all ranks become one value."""

    Average = "Average"
    Sum = "Sum"
    Adasum = "Adasum"
    Min = "Min"
    Max = "Max"
    Product = "Product"

    def __repr__(self) -> str:
        return f"ringtrain.{self.value}"


Average: Final = ReduceOp.Average
Sum: Final = ReduceOp.Sum
Adasum: Final = ReduceOp.Adasum
Min: Final = ReduceOp.Min
Max: Final = ReduceOp.Max
Product: Final = ReduceOp.Product


def chosen_op(op: Any, average: bool | None = None, default: ReduceOp = Average) -> ReduceOp:
    """Return the reduction that `op` or the deprecated `average` asks for. Accepts `ringtrain.Sum` and friends
    too.
    """
    if op is not None and average is not None:
        raise ConfigurationError("op and average are both given; op supersedes average: pass op alone")
    if average is not None:
        warnings.warn("average is deprecated; pass op=Average or op=Sum", DeprecationWarning, stacklevel=4)
        return Average if average else Sum
    if op is None:
        return default
    try:
        return ReduceOp(getattr(op, "value", op))
    except ValueError:
        raise ConfigurationError(f"op is {op!r}; expected Average, Sum, Adasum, Min, Max or Product") from None


def only_sums(op: ReduceOp, what: str) -> ReduceOp:
    """Return `op` if it is Sum or Average; raise ConfigurationError otherwise."""
    if op not in (Average, Sum):
        raise ConfigurationError(f"{what}: op is {op.value}; expected Average or Sum")
    return op
