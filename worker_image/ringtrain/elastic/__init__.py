"""Elastic training: processes continue to train while workers are lost, replaced, added and removed.

    state = elastic.State(optimizer=optimizer, shard=elastic.shard(dataset, elastic.FixedGlobal(256)))

    @elastic.run
    def train(state):                    # entered again after each change of the world, with the last committed state
        for epoch in state.shard.epochs(10):
            for batch in state.shard:    # exactly the samples that no committed step has used
                ...
                state.commit()

Maturity: Beta.
"""

from ringtrain.elastic.data import ElasticShard, FixedGlobal, PerRank, shard
from ringtrain.elastic.handlers import StateHandler
from ringtrain.elastic.participants import Participant, StateExtension, register_extension
from ringtrain.elastic.running import run
from ringtrain.elastic.state import HostsUpdatedInterrupt, ObjectState, State

__all__ = [
    "ElasticShard",
    "FixedGlobal",
    "HostsUpdatedInterrupt",
    "ObjectState",
    "Participant",
    "PerRank",
    "State",
    "StateExtension",
    "StateHandler",
    "register_extension",
    "run",
    "shard",
]


def __dir__() -> list[str]:
    return __all__
