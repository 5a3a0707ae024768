"""Picks the way on which the ranks of a process set exchange tensors."""

from ringtrain.collectives.communicator import Communicator
from ringtrain.errors import ConfigurationError
from ringtrain.shm.join import share_memory
from ringtrain.world.membership import Membership


def choose_communicator(
    member: Membership, process_set: int, network: Communicator, transport: str
) -> Communicator:
    """Return `network`, or shared memory where all ranks share a host. Collective over `network`.

    `transport`: auto, grpc or shm, on all ranks alike. Raises ConfigurationError for a shm that can't be had.
    """
    if transport == "grpc" or len(network.ranks) == 1:
        return network
    shared = share_memory(member, process_set, network)
    if shared is None and transport == "shm":
        raise ConfigurationError(
            f"RINGTRAIN_TRANSPORT is shm, but ranks {list(network.ranks)} do not all share memory; set it to auto"
        )
    return shared or network
