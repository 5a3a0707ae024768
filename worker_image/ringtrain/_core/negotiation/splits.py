"""How an alltoall is cut, and what is wrong with its arguments, or a reducescatter's, on this rank."""

from collections.abc import Sequence

from ringtrain._core.negotiation.request import Request


def splits_of(requests: Sequence[Request]) -> list[tuple[int, ...]]:
    """Of an alltoall's `requests`, one a rank, the rows that each rank sends to each."""
    size = len(requests)
    return [one.splits or (one.shapes[0][0] // size,) * size for one in requests]


def splits_error(shape: Sequence[int], splits: Sequence[float] | None, size: int) -> str:
    """Return why `splits` cannot cut a tensor of `shape` for `size` ranks; empty if it can."""
    if not shape:
        return "the tensor is a scalar; expected at least one dimension to cut along"
    if splits is None:
        if shape[0] % size:
            return f"{shape[0]} rows do not divide by {size} ranks; pass splits"
        return ""
    if len(splits) != size:
        return f"splits has {len(splits)} entries {list(splits)}; expected one for each of {size} ranks"
    if not all(float(rows).is_integer() for rows in splits):
        return f"splits is {list(splits)}; expected whole numbers"
    if min(splits) < 0:
        return f"splits is {list(splits)}; expected no negative entry"
    if sum(splits) != shape[0]:
        return f"splits {list(splits)} add up to {sum(splits)} rows, and the tensor has {shape[0]}"
    return ""


def scalar_error(shapes: Sequence[Sequence[int]]) -> str:
    """Return which tensor is a scalar where none may be; empty if none is."""
    for index, shape in enumerate(shapes):
        if not shape:
            return f"tensor {index} is a scalar; expected at least one dimension"
    return ""
