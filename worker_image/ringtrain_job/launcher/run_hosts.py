"""Interface of hosts of an elastic run outside of Kubernetes. Entry points: `ringtrain.launcher.hosts`."""

from collections.abc import Mapping
from typing import Protocol

from ringtrain_job.launcher.generation_state import GenerationRules


class RunWorld(Protocol):
    """Methods of an elastic run's backend for the code that chooses hosts."""

    def request_slots(self, slots: frozenset[int]) -> None:
        """Request a rank in each of `slots`."""

    def workers_in_use(self) -> frozenset[int]:
        """Return the worker indexes that the current world needs, or the world that is being formed."""

    def attached_workers(self) -> frozenset[int]:
        """Return the worker indexes whose agents are connected."""

    def failed_processes(self) -> Mapping[tuple[int, int], str]:
        """Return a message for each rank process that failed by itself or was killed, by slot and process number."""


class RunHosts(Protocol):
    """Hosts of an elastic run, which may change. `sets_aside`: whether a failing host gets no ranks for some time.
    `has_sites`: whether hosts have site names."""

    sets_aside: bool
    has_sites: bool

    def follow(self, script: str, workers: int, slots: int, rules: GenerationRules, world: RunWorld) -> None:
        """Begin to request slots of the hosts that `script` lists: at most `workers` hosts with `slots` slots each."""

    def site_of(self, worker: int) -> str:
        """Return the site name of the host with worker index `worker`; empty if it is unknown."""

    def close(self) -> None:
        """Stop requesting slots. Agents continue."""
