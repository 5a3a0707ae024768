"""Descriptions of worlds that the launcher sends to agents."""

from collections.abc import Mapping, Sequence

from ringtrain.shared.address import host_port
from ringtrain_job.control.model import Registration, World
from ringtrain_job.launcher.members import MemberProcess


def make_world(members: Sequence[Registration], sites: Mapping[int, str] | None = None) -> World:
    """Return the world of the registered agents `members`, in rank order. `sites`: site names by worker index."""
    first = members[0]
    return World(
        attempt=first.attempt,
        ring_addresses=tuple(host_port(m.address, port) for m in members for port in m.ring_ports),
        tf_addresses=tuple(host_port(m.address, port) for m in members for port in m.tf_ports),
        master_address=first.address,
        master_port=first.master_port,
        sites=tuple(sites[m.worker_index] for m in members for _ in m.ring_ports) if sites else (),
    )


def make_generation_world(
    generation: int,
    members: Sequence[MemberProcess],
    registrations: Mapping[int, Registration],
    sites: Mapping[int, str] | None = None,
) -> World:
    """Return the world of `generation`. `members`: in rank order. `sites`: site names by worker."""
    slots = next(iter(registrations.values())).slots  # equal in all registrations; the launcher refuses others
    agents = [registrations[process.slot // slots] for process in members]
    placed = [(agent, process.slot % slots) for agent, process in zip(agents, members, strict=True)]
    return World(
        attempt=agents[0].attempt,
        ring_addresses=tuple(host_port(agent.address, agent.ring_ports[local]) for agent, local in placed),
        tf_addresses=tuple(host_port(agent.address, agent.tf_ports[local]) for agent, local in placed),
        master_address=agents[0].address,
        master_port=agents[0].master_port,
        formation=generation,
        members=tuple(process.member for process in members),
        sites=tuple(sites[agent.worker_index] for agent in agents) if sites else (),
    )
