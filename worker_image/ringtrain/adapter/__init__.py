"""Interface for framework adapters: what a plugin may import from the core.

`state` has the handlers and codecs of a framework's values, `devices` the interfaces for a device's library of
collectives, `communicators` those for another way to move bytes. An adapter imports these modules and public ones, and
nothing of `ringtrain._core`. docs/adapters.md describes each name and lists the public modules.
"""

from typing import Final

from ringtrain._core.negotiation.collective import NamedCollective, NamedReduction
from ringtrain._core.negotiation.gradients import (
    allgather_gradient,
    allreduce_gradient,
    broadcast_gradient,
    reducescatter_gradient,
)
from ringtrain._core.negotiation.objects import allgather_object, broadcast_object
from ringtrain._core.negotiation.queues import barrier, join, join_after_updates, queue_of
from ringtrain._core.negotiation.submission import NamedSubmission
from ringtrain._core.process_groups.context import attached, drain_before_leaving, joins_survivors
from ringtrain._core.process_groups.context import current as current_world
from ringtrain._core.process_groups.draws import note_process_group_epoch as note_epoch
from ringtrain._core.process_groups.formations import is_elastic
from ringtrain._core.process_groups.group import CollectiveGroup
from ringtrain._core.process_groups.process_sets import members, open_group, process_set_of, trains_alone
from ringtrain._core.process_groups.tensors import Array
from ringtrain._core.requirements import missing
from ringtrain._core.transport.threads import TransportThreadPool
from ringtrain._core.wire.dtypes import can_travel, dtype_of, is_made_of_its_name
from ringtrain._core.wire.values import ForeignWireValues, decode_value, encode_value
from ringtrain._core.world.discovery import environment_rank
from ringtrain._core.world.tf_config import parse_tf_config
from ringtrain.optim.host import BUCKET_BYTES
from ringtrain.optim.layout import ParamSpec
from ringtrain.optim.on_host import HostOptimizerGroups, OnHostOptimizer
from ringtrain.optim.replicas import OptimizerReplica, OptimizerReplicas
from ringtrain.optim.state import check_same_model

# Incremented if a name is removed or changes its meaning; new names do not increment it.
ADAPTER_VERSION: Final = 2

__all__ = [
    "ADAPTER_VERSION",
    "BUCKET_BYTES",
    "Array",
    "CollectiveGroup",
    "ForeignWireValues",
    "HostOptimizerGroups",
    "NamedCollective",
    "NamedReduction",
    "NamedSubmission",
    "OnHostOptimizer",
    "OptimizerReplica",
    "OptimizerReplicas",
    "ParamSpec",
    "TransportThreadPool",
    "allgather_gradient",
    "allgather_object",
    "allreduce_gradient",
    "attached",
    "barrier",
    "broadcast_gradient",
    "broadcast_object",
    "can_travel",
    "check_same_model",
    "current_world",
    "decode_value",
    "drain_before_leaving",
    "dtype_of",
    "encode_value",
    "environment_rank",
    "is_elastic",
    "is_made_of_its_name",
    "join",
    "join_after_updates",
    "joins_survivors",
    "members",
    "missing",
    "note_epoch",
    "open_group",
    "parse_tf_config",
    "process_set_of",
    "queue_of",
    "reducescatter_gradient",
    "trains_alone",
]


def __dir__() -> list[str]:
    return __all__
