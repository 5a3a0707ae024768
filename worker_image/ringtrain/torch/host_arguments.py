"""What a HostOptimizer is made of."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch

from ringtrain.errors import ConfigurationError, kind_of
from ringtrain.optim.arguments import check_rule
from ringtrain.torch.host_rules import PlainTorchRules, TorchGroupRules, check_torch_rule_kind, rules_of


def given_optimizer(
    optimizer: Any, model: Any, options: Mapping[str, Any]
) -> tuple[torch.optim.Optimizer | None, torch.nn.Module | None, TorchGroupRules, list[dict[str, Any]]]:
    """Return what `HostOptimizer` was made of: torch's optimizer, the model, the rules, and the groups."""
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
            f"HostOptimizer was given {kind_of(optimizer)}, which reduces gradients itself; pass torch's own"
        )
    if model is not None and not isinstance(model, torch.nn.Module):
        raise ConfigurationError(f"HostOptimizer: model is {kind_of(model)}; expected a torch.nn.Module")
    if optimizer.state:
        used = sum(bool(state) for state in optimizer.state.values())
        fresh = type(optimizer) in (torch.optim.Adagrad,) and not any(
            float(state.get("step", 0)) for state in optimizer.state.values()
        )
        if used and not fresh:
            raise ConfigurationError(
                f"HostOptimizer was given a {type(optimizer).__name__} that has made steps; make HostOptimizer of "
                "a new one, and give it this one's state: load_state_dict(optimizer.state_dict())"
            )
    rules = rules_of(optimizer, options.get("sharded"))
    if options.get("elastic") and not isinstance(rules, PlainTorchRules):
        raise ConfigurationError(
            f"HostOptimizer: elastic=True takes SGD, Adam and AdamW without amsgrad, dampening, maximize and "
            f"differentiable, and not this {type(optimizer).__name__}"
        )
    rules.sharded = rules.sharded and options.get("sharded", True) is not False
    return optimizer, model, rules, optimizer.param_groups


def named_group_parameters(groups: Sequence[Mapping[str, Any]], model: torch.nn.Module | None) -> dict[str, Any]:
    """The parameters of all groups by name, in the order of the model."""
    params = {id(param): param for group in groups for param in group["params"]}
    named_group_parameters: Iterable[tuple[str, Any]] = () if model is None else model.named_parameters()
    found = {name: param for name, param in named_group_parameters if id(param) in params}
    known = {id(param) for param in found.values()}
    others = {f"param.{index}": param for index, param in enumerate(params.values()) if id(param) not in known}
    return {**found, **others}


def check_devices(params: Mapping[str, Any]) -> None:
    devices = {str(param.device) for param in params.values()}
    if len(devices) > 1:
        raise ConfigurationError(f"parameters are on {sorted(devices)}; expected one device")
    if torch.device(devices.pop()).type == "meta":
        raise ConfigurationError("parameters are on the meta device; move the model to a real one")
