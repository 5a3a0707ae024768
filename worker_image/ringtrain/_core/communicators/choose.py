"""Choice of the communicator for a process set: shared memory, network, these two combined, or a plugin's."""

from typing import Final

from ringtrain._core.communicators.base import Communicator
from ringtrain._core.communicators.exchange import ExchangeCommunicator
from ringtrain._core.communicators.hierarchical import CHAIN_PODS_MOST, DIRECT_RANKS_MOST, HierarchicalCommunicator
from ringtrain._core.communicators.shm.communicator import SharedMemoryCommunicator
from ringtrain._core.communicators.shm.join import ShmHostGroups, share_memory, shm_host_identity
from ringtrain._core.requirements import load_plugin
from ringtrain._core.world.config import WorkerConfig
from ringtrain._core.world.membership import WorldMembership
from ringtrain.errors import ConfigurationError
from ringtrain.shared.rank_settings import TRANSPORTS_OF_PLUGINS

# Entry points of plugins' communicators, by the transport (ringtrain/adapter/communicators.py).
COMMUNICATORS: Final = "ringtrain.communicators"


def choose_communicator(
    member: WorldMembership,
    process_set: int,
    network: ExchangeCommunicator,
    config: WorkerConfig,
    chain_pods_most: int = CHAIN_PODS_MOST,
    direct_ranks_most: int = DIRECT_RANKS_MOST,
) -> Communicator:
    """Return the communicator for the ranks of `network`, by the configured transport and by the hosts of the ranks.

    Ranks of one pod use shared memory. Ranks of several pods with equally many ranks use shared memory within a pod and
    `network` between pods. Other ranks use only `network`. If a plugin has the transport, all ranks use the plugin's.
    `chain_pods_most`: see `HierarchicalCommunicator`. `direct_ranks_most`: largest number of ranks that exchange
    directly over `network`; more ranks use a tree.

    Collective over `network`. Raises ConfigurationError if `config.transport` is shm and memory can't be shared.
    """
    if config.ways.transport == "grpc" or len(network.ranks) == 1:
        return _over_network(network, direct_ranks_most)
    if config.ways.transport in TRANSPORTS_OF_PLUGINS:
        need = f"RINGTRAIN_TRANSPORT={config.ways.transport}"
        opened: Communicator = load_plugin(COMMUNICATORS, config.ways.transport, need)(member, process_set, network)
        return opened
    hosts = share_memory(member, process_set, network, communicator_pod(config))
    if hosts is not None and len(hosts.positions) == 1:
        return SharedMemoryCommunicator(network, hosts)
    if config.ways.transport == "shm":
        raise ConfigurationError(
            f"RINGTRAIN_TRANSPORT is shm, but ranks {list(network.ranks)} do not all share "
            "memory; set RINGTRAIN_TRANSPORT=auto"
        )
    if hosts is None:
        return _over_network(network, direct_ranks_most)
    if not _are_regular_hosts(hosts):
        hosts.group.close()
        return _over_network(network, direct_ranks_most)
    return HierarchicalCommunicator(network, hosts, chain_pods_most)


def _over_network(network: ExchangeCommunicator, direct_ranks_most: int) -> Communicator:
    return network if len(network.ranks) <= direct_ranks_most else HierarchicalCommunicator(network, None)


def communicator_pod(config: WorkerConfig) -> str:
    """Return an identity of this rank's pod: equal for ranks of one pod, different for other pods.

    Pods may be processes of one machine (`dtj local`), so the identity includes the pod number from the agent.
    """
    return f"{shm_host_identity()} {config.place.cross_rank}"


def _are_regular_hosts(hosts: ShmHostGroups) -> bool:
    """Return whether all hosts have the same number of ranks, each a contiguous range in rank order."""
    flat = [position for positions in hosts.positions for position in positions]
    return flat == sorted(flat) and len({len(positions) for positions in hosts.positions}) == 1
