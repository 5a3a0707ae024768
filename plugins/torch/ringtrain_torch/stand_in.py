"""Stand-in for `param.grad` while the host optimizer has the gradient."""

from collections.abc import Callable, Iterator
from typing import Any, Final

import torch

# Properties of a gradient that do not need its values.
_PLAIN: Final = {
    "dtype", "device", "shape", "layout", "is_sparse", "is_cuda", "is_cpu", "is_meta", "is_mps",
    "is_quantized", "is_leaf", "requires_grad", "grad_fn", "ndim", "names", "itemsize", "nbytes", "size",
    "dim", "numel", "nelement", "stride", "element_size", "is_floating_point", "is_complex", "is_contiguous",
    "requires_grad_", "detach_", "_has_compatible_shallow_copy_type",
}  # fmt: skip

_MOVES: Final = {"to", "cpu", "cuda", "float", "double", "half", "bfloat16", "contiguous", "detach", "data"}


class TorchGradientStandIn(torch.Tensor):
    """Tensor that looks like the gradient of a parameter but has no memory. Reading its values returns the mean
    gradient of all ranks, which then replaces the stand-in in `param.grad`, or raises an error with a solution.

    Python functions call `__torch_function__`; C++ functions that bypass it (scripts, vmap, `torch.tensor`) call
    `__torch_dispatch__`. Functions that bypass both (dlpack) get torch's error about missing memory. If a gradient were
    None instead, `torch.nn.utils.clip_grad_norm_` would silently skip it.
    """

    @classmethod
    def of(
        cls, param: torch.Tensor, values: Callable[[], torch.Tensor], zero: Callable[[], None], spent: bool = False
    ) -> "TorchGradientStandIn":
        """Create a stand-in for the gradient of `param`. `values`: returns the gradient, or raises. `zero`: sets the
        gradient to zero. `spent`: whether the step is complete, so that `model.to()` and similar calls return the
        stand-in unchanged."""
        made: TorchGradientStandIn = torch.Tensor._make_wrapper_subclass(
            cls, param.shape, strides=param.stride(), dtype=param.dtype, device=param.device
        )
        torch._C._set_throw_on_mutable_data_ptr(made)  # otherwise dlpack would export a null pointer
        made.__dict__.update(values=values, zero=zero, spent=spent)
        return made

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*_replaced_stand_ins(args), **_replaced_stand_ins(kwargs or {}))

    @classmethod
    @torch._disable_dynamo  # a compiled function gets the gradient, not a graph of its computation
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = getattr(func, "__name__", "")
        is_attribute = name in ("__get__", "__set__")
        name = getattr(getattr(func, "__self__", None), "__name__", name) if is_attribute else name
        if name in _PLAIN:
            with torch._C.DisableTorchFunctionSubclass():
                return func(*args, **(kwargs or {}))
        if name == "share_memory_":  # there is no memory
            return args[0]
        if name == "zero_":
            args[0].__dict__["zero"]()
            return None
        if name in _MOVES and isinstance(args[0], TorchGradientStandIn):
            own: TorchGradientStandIn = args[0]
            if own.__dict__["spent"] or _stays_stand_in(own, func, args, kwargs or {}):
                return own
        for stand_in in _stand_ins((args, kwargs)):
            stand_in.__dict__["values"]()  # of all of them, before one changes
        return func(*_replaced_stand_ins(args), **_replaced_stand_ins(kwargs or {}))


def _stays_stand_in(own: TorchGradientStandIn, func: Any, args: Any, kwargs: Any) -> bool:
    """Return whether `func` leaves the stand-in `own` in place: a move to the same device, or a self-assignment."""
    if getattr(func, "__name__", "") == "__set__":
        return args[1] is own
    with torch._C.DisableTorchFunctionSubclass():
        return func(*args, **kwargs) is own


def _stand_ins(value: Any) -> Iterator[TorchGradientStandIn]:
    if isinstance(value, TorchGradientStandIn):
        yield value
    elif isinstance(value, list | tuple):
        for one in value:
            yield from _stand_ins(one)
    elif isinstance(value, dict):
        yield from _stand_ins(list(value.values()))


def _replaced_stand_ins(value: Any) -> Any:
    """Return `value` with each stand-in replaced by the gradient."""
    if isinstance(value, TorchGradientStandIn):
        return value.__dict__["values"]()
    if isinstance(value, list | tuple):
        return type(value)([_replaced_stand_ins(one) for one in value])
    if isinstance(value, dict):
        return {key: _replaced_stand_ins(one) for key, one in value.items()}
    return value
