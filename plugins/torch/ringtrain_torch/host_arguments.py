"""Arguments of a HostOptimizer."""

import gc
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import torch
from torch import distributed

from ringtrain.errors import ConfigurationError, kind_of
from ringtrain.optim.rules import check_rule
from ringtrain_torch.hook import TorchGradientHook
from ringtrain_torch.host_rules import PlainTorchRules, TorchGroupRules, check_torch_rule_kind, rules_of

_WRAPPERS: Final = ("DistributedDataParallel", "FullyShardedDataParallel", "DataParallel")


def optimizer_parts(
    optimizer: Any, model: Any, options: Mapping[str, Any]
) -> tuple[torch.optim.Optimizer | None, torch.nn.Module | None, TorchGroupRules, list[dict[str, Any]]]:
    """Return the torch optimizer, model, rules and parameter groups that the arguments of `HostOptimizer` specify."""
    if isinstance(optimizer, torch.optim.Optimizer):
        return _options_of_optimizer(optimizer, model, options)
    if not isinstance(optimizer, torch.nn.Module):
        raise ConfigurationError(
            f"HostOptimizer was given {kind_of(optimizer)}; expected an optimizer of torch and its model, or a "
            "torch.nn.Module and a rule: pass the model itself, not its parameters"
        )
    check_torch_rule_kind(model)
    check_rule(model)
    trained = [param for param in optimizer.parameters() if param.requires_grad]
    _check_wrappers(optimizer, trained)
    if not trained:
        raise ConfigurationError("HostOptimizer: no parameter of the model requires a gradient; nothing to train")
    rules = PlainTorchRules(model)
    rules.sharded = options.get("sharded", True)
    return None, optimizer, rules, [{"params": trained, **rules.options()}]


def _options_of_optimizer(
    optimizer: torch.optim.Optimizer, model: Any, options: Mapping[str, Any]
) -> tuple[torch.optim.Optimizer, torch.nn.Module | None, TorchGroupRules, list[dict[str, Any]]]:
    if hasattr(optimizer, "synchronize"):
        raise ConfigurationError(
            f"HostOptimizer was given {kind_of(optimizer)}, which reduces gradients itself; pass an optimizer of torch"
        )
    if model is not None and not isinstance(model, torch.nn.Module):
        raise ConfigurationError(f"HostOptimizer: model is {kind_of(model)}; expected a torch.nn.Module")
    _check_wrappers(model, [param for group in optimizer.param_groups for param in group["params"]])
    if optimizer.state:
        used = sum(bool(state) for state in optimizer.state.values())
        fresh = type(optimizer) in (torch.optim.Adagrad,) and not any(
            float(state.get("step", 0)) for state in optimizer.state.values()
        )
        if used and not fresh:
            raise ConfigurationError(
                f"HostOptimizer: the {type(optimizer).__name__} has already made steps; pass a new one, and load the "
                "old one's state into the HostOptimizer: load_state_dict(optimizer.state_dict())"
            )
    rules = rules_of(optimizer, options.get("sharded"))
    if options.get("elastic") and not isinstance(rules, PlainTorchRules):
        raise ConfigurationError(
            f"HostOptimizer: elastic=True does not support this {type(optimizer).__name__}; expected SGD, Adam or "
            "AdamW without amsgrad, dampening, maximize and differentiable"
        )
    rules.sharded = rules.sharded and options.get("sharded", True) is not False
    return optimizer, model, rules, optimizer.param_groups


def named_group_parameters(groups: Sequence[Mapping[str, Any]], model: torch.nn.Module | None) -> dict[str, Any]:
    """Return the parameters of all groups by name, in the order of the model."""
    params = {id(param): param for group in groups for param in group["params"]}
    named_group_parameters: Iterable[tuple[str, Any]] = () if model is None else model.named_parameters()
    found = {name: param for name, param in named_group_parameters if id(param) in params}
    known = {id(param) for param in found.values()}
    others = {f"param.{index}": param for index, param in enumerate(params.values()) if id(param) not in known}
    return {**found, **others}


def check_parameters(params: Mapping[str, Any]) -> None:
    """Raise ConfigurationError for parameters that cannot be trained, or are trained already."""
    for name, param in params.items():
        if hasattr(param, "device_mesh"):
            raise ConfigurationError(
                f"parameter {name!r} is a {type(param).__name__}, which fully_shard (FSDP2) or "
                "parallelize_module has sharded; HostOptimizer needs whole parameters, because it "
                "shards the state itself; remove the call of this function"
            )
        hooks = (getattr(param, "_post_accumulate_grad_hooks", None) or {}).values()
        if any(isinstance(hook, TorchGradientHook) for hook in hooks):
            raise ConfigurationError(
                f"parameter {name!r} is trained by another HostOptimizer already; call its close() before "
                "you create the next one"
            )
    check_devices(params)


def check_devices(params: Mapping[str, Any]) -> None:
    """Raise ConfigurationError unless all parameters are on the same device, and not on the meta device."""
    devices = {str(param.device) for param in params.values()}
    if len(devices) > 1:
        raise ConfigurationError(f"parameters are on {sorted(devices)}; expected one device")
    if torch.device(devices.pop()).type == "meta":
        raise ConfigurationError("parameters are on the meta device; move the model to a real one")


def _check_wrappers(model: Any, params: Sequence[Any]) -> None:
    """Raise ConfigurationError if a wrapper of torch (such as DDP) already reduces the model's gradients."""
    around = [] if model is None else list(model.modules())
    if distributed.is_available() and distributed.is_initialized():  # otherwise no wrapper can exist
        ids = {id(param) for param in params}
        wrappers = [one for one in gc.get_objects() if type(one).__name__ in _WRAPPERS]
        around += [one for one in wrappers if any(id(param) in ids for param in one.parameters())]
    for module in around:
        if type(module).__name__ in _WRAPPERS and type(module).__module__.startswith("torch."):
            raise ConfigurationError(
                f"HostOptimizer: the model is in a {type(module).__name__}, which reduces gradients itself; use the "
                "wrapped model (its attribute module), also in the forward pass"
            )
