"""Elastic training with PyTorch, with Horovod's names: `hvd.elastic.run`, `TorchState`, `ElasticSampler`."""

from ringtrain.elastic import HostsUpdatedInterrupt, ObjectState, State, StateHandler, run
from ringtrain_torch.elastic.sampler import ElasticSampler
from ringtrain_torch.elastic.state import TorchState, get_handler_registry, set_handler_registry

__all__ = [
    "ElasticSampler",
    "HostsUpdatedInterrupt",
    "ObjectState",
    "State",
    "StateHandler",
    "TorchState",
    "get_handler_registry",
    "run",
    "set_handler_registry",
]


def __dir__() -> list[str]:
    return __all__
