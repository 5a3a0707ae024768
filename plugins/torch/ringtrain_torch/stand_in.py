"""What is in `param.grad` while the gradient is on its way to the host."""

from collections.abc import Callable, Iterator
from typing import Any, Final

import torch

# What can be told of a gradient without its values.
_PLAIN: Final = {
    "dtype", "device", "shape", "layout", "is_sparse", "is_cuda", "is_cpu", "is_meta", "is_mps",
    "is_quantized", "is_leaf", "requires_grad", "grad_fn", "ndim", "names", "itemsize", "nbytes", "size",
    "dim", "numel", "nelement", "stride", "element_size", "is_floating_point", "is_complex", "is_contiguous",
    "requires_grad_", "detach_", "_has_compatible_shallow_copy_type",
}  # fmt: skip

_MOVES: Final = {"to", "cpu", "cuda", "float", "double", "half", "bfloat16", "contiguous", "detach", "data"}


class TorchGradientStandIn(torch.Tensor):
    """Looks like the gradient of a parameter and has no memory. Whoever asks for its values gets the mean gradient of
    all ranks, which is in `param.grad` from then on; or an error that names the way out.

    Functions of Python go through `__torch_function__`, and those of C++, which pass over that (scripts, vmap,
    `torch.tensor`), through `__torch_dispatch__`. What passes over both (dlpack) gets torch's error about memory
    that does not exist. `torch.nn.utils.clip_grad_norm_` passes over a gradient that is None without a word.
    """

    @classmethod
    def of(
        cls, param: torch.Tensor, values: Callable[[], torch.Tensor], zero: Callable[[], None], spent: bool = False
    ) -> "TorchGradientStandIn":
        """`values`: returns what it stands for, or raises. `zero`: puts a gradient of zeros in its place. `spent`:
        the step is made: `model.to()` and the like, which move gradients with parameters, leave it as it is."""
        made: TorchGradientStandIn = torch.Tensor._make_wrapper_subclass(
            cls, param.shape, strides=param.stride(), dtype=param.dtype, device=param.device
        )
        torch._C._set_throw_on_mutable_data_ptr(made)  # else dlpack would give a null pointer away
        made.__dict__.update(values=values, zero=zero, spent=spent)
        return made

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*_replaced_stand_ins(args), **_replaced_stand_ins(kwargs or {}))

    @classmethod
    @torch._disable_dynamo  # a compiled function gets the gradient, and no graph of how it comes
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
    """Whether a move takes `own` to where it is, or puts it there."""
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
    """`value` with gradients in place of their stand-ins."""
    if isinstance(value, TorchGradientStandIn):
        return value.__dict__["values"]()
    if isinstance(value, list | tuple):
        return type(value)([_replaced_stand_ins(one) for one in value])
    if isinstance(value, dict):
        return {key: _replaced_stand_ins(one) for key, one in value.items()}
    return value
