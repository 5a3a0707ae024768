"""Table of the hosts of an elastic run: worker index of each, failures, and a cool-down in which failing hosts are not
used.

This module reads no clock, process or file.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol

from ringtrain.errors import ConfigurationError, counted, quoted
from ringtrain.shared.hosts import LOCAL, is_host_name, own_names

# Failures are counted, and a host is remembered, for the same time as nodes of a cluster.
_REMEMBERED_S: Final = 3600.0
# Processes that end at the same time, such as the ranks of one host, count as one failure.
_AT_ONCE_S: Final = 2.0


@dataclass(frozen=True)
class HostCoolDown:
    """Backoff for failing hosts. After `failures` failures within an hour, a host gets no ranks for `first_s` seconds,
    then twice as long each time, at most `most_s`. A host that was never reached needs only one failure."""

    failures: int = 2
    first_s: float = 10.0
    most_s: float = 600.0

    def seconds(self, times: int) -> float:
        """Return for how many seconds a host is not used when it is excluded for the `times`-th time."""
        return min(self.most_s, self.first_s * 2.0 ** min(times - 1, 30))


DEFAULT_COOLDOWN: Final = HostCoolDown()


@dataclass(frozen=True)
class AgentEnd:
    """End of the agent on a host. `why`: log message.

    `reached`: whether the agent had started. `meant`: whether it was ended on purpose.
    """

    worker: int
    why: str
    reached: bool
    meant: bool


class HostAgents(Protocol):
    """Interface for starting and ending agents on hosts. No method waits for a host."""

    cooldown: HostCoolDown

    def start(self, worker: int, host: str, others: Sequence[str]) -> None:
        """Start the agent of worker `worker` on `host` in the background. `others`: further hosts of the run."""

    def dismiss(self, worker: int) -> None:
        """End the agent of worker `worker` in the background."""

    def running(self) -> frozenset[int]:
        """Return the worker indexes whose agents are starting or running."""

    def ended(self) -> list[AgentEnd]:
        """Return the agents that have ended since the last call."""


@dataclass(frozen=True)
class HostControl:
    """Means to reach the hosts of an elastic run. `agents`: None if the run uses this machine only. `slots_per_host`:
    slots of a host that the script prints without a number. `sites`: site names by host."""

    agents: HostAgents | None = None
    slots_per_host: int = 1
    sites: Mapping[str, str] = field(default_factory=dict)


ONLY_HERE: Final = HostControl()


class HostSlots:
    """Assignment of slots (places of ranks) to host names. A host that stays listed keeps its slots."""

    def __init__(self, slots: int) -> None:
        self._slots = slots
        self._owned: dict[str, list[int]] = {}

    def assign(self, hosts: Mapping[str, int]) -> frozenset[int]:
        """Return the slots of all hosts. `hosts`: number of slots by name. Raises ConfigurationError if there are too
        few."""
        if sum(hosts.values()) > self._slots:
            raise ConfigurationError(
                f"the script lists {counted(sum(hosts.values()), 'slot')}; expected at most {self._slots}"
            )
        kept = {host: self._owned.get(host, [])[:count] for host, count in hosts.items()}
        free = sorted(set(range(self._slots)) - {slot for slots in kept.values() for slot in slots})
        for host, count in hosts.items():
            missing = count - len(kept[host])
            kept[host], free = [*kept[host], *free[:missing]], free[missing:]
        self._owned = kept
        return frozenset(slot for slots in kept.values() for slot in slots)


@dataclass
class _Host:
    """State of one host. `worker`: the host's worker index, if the host has ranks or an agent. `start_at`: earliest
    time to start its agent again. `leaving`: whether its agent was ordered to end and still runs."""

    worker: int | None = None
    reached: bool = False
    leaving: bool = False
    failed: list[float] = field(default_factory=list)
    times_aside: int = 0
    aside_until: float = float("-inf")
    start_at: float = float("-inf")


class HostTable:
    """Hosts of an elastic run with their worker indexes. Each worker has `slots` slots (places for ranks); at most
    `most` slots of all workers are used.

    All names of this machine share a worker. Hosts that were listed first get slots first.
    """

    def __init__(self, workers: int, slots: int, most: int, cooldown: HostCoolDown = DEFAULT_COOLDOWN) -> None:
        self._slots, self._most, self._cooldown = slots, most, cooldown
        self._workers = range(workers)
        self._local = own_names()
        self._names = {worker: HostSlots(slots) for worker in self._workers}
        self._hosts: dict[str, _Host] = {}
        self._listed: list[str] = []
        self._wanted: frozenset[int] = frozenset()

    def assign(self, listed: Mapping[str, int], now: float) -> frozenset[int]:
        """Return the slots to request. `listed`: number of slots of each listed host, by host name."""
        self._listed = [*(name for name in self._listed if name in listed)]
        self._listed += [name for name in listed if name not in self._listed]
        given: dict[int, dict[str, int]] = {worker: {} for worker in self._workers}
        left = self._most
        for name in self._listed:
            host = self._hosts.setdefault(self._machine(name), _Host())
            if host.leaving or now < host.aside_until or not min(listed[name], left):
                continue
            host.worker = self._place() if host.worker is None else host.worker
            if host.worker is None:
                continue  # all worker indices belong to hosts that have not left yet
            names = given[host.worker]
            names[name] = min(listed[name], left, self._slots - sum(names.values()))
            left -= names[name]
        self._wanted = frozenset(
            worker * self._slots + slot for worker, names in given.items() for slot in self._names[worker].assign(names)
        )
        self._forget(now)
        return self._wanted

    def due(self, taken: Iterable[int], now: float) -> list[tuple[int, str]]:
        """Return (worker, host) for each agent that must be started now. `taken`: workers that have an agent."""
        busy = set(taken)
        return [
            (host.worker, name)
            for name, host in self._hosts.items()
            if host.worker is not None and self._is_wanted(host.worker) and host.worker not in busy
            if now >= host.start_at
        ]

    def idle(self, running: Iterable[int], used: frozenset[int]) -> list[int]:
        """Return the workers whose agents must end: those in `running` that are neither requested nor in `used`."""
        alive, going = set(running), []
        for host in self._hosts.values():
            if host.worker is None or host.leaving or self._is_wanted(host.worker) or host.worker in used:
                continue
            if host.worker in alive:
                host.leaving = True
                going.append(host.worker)
            else:
                host.worker = None
        return going

    def note_reached(self, worker: int) -> None:
        """Record that the agent of worker `worker` has registered."""
        for host in self._hosts.values():
            host.reached = host.reached or host.worker == worker

    def note_end(self, end: AgentEnd, now: float) -> str:
        """Record that an agent has ended; return a log message, or "" if it was ended on purpose."""
        host = self._hosts.get(self.host_of(end.worker))
        if host is None:
            return ""
        host.reached = host.reached or end.reached
        if not end.meant:
            return self.note_failure(end.worker, end.why, now)
        host.worker, host.leaving = None, False
        return ""

    def note_failure(self, worker: int, why: str, now: float) -> str:
        """Record a failure on the host of worker `worker`; return a log message, or "" if it was recorded before."""
        name = self.host_of(worker)
        host = self._hosts.get(name)
        if host is None or (host.failed and now - host.failed[-1] < _AT_ONCE_S) or now < host.aside_until:
            return ""
        host.failed = [at for at in host.failed if now - at < _REMEMBERED_S] + [now]
        host.start_at = now + _AT_ONCE_S
        count = len(host.failed)
        if name not in self.machines:
            return why
        if count < (self._cooldown.failures if host.reached else 1):
            return f"{why}; trying host {name} again"
        host.times_aside += 1
        seconds = self._cooldown.seconds(host.times_aside)
        host.aside_until = now + seconds
        times = "once" if count == 1 else f"{count} times"
        return f"{why}; host {name} has failed {times} and gets no ranks for {seconds:g} s"

    def host_of(self, worker: int) -> str:
        """Return the name of the host that has worker index `worker`; "" if no host has it."""
        return next((name for name, host in self._hosts.items() if host.worker == worker), "")

    def worker_of(self, slot: int) -> int:
        """Return the worker index to which a slot belongs."""
        return slot // self._slots

    def is_wanted_slot(self, slot: int) -> bool:
        """Return whether the last call of `assign` requested this slot."""
        return slot in self._wanted

    @property
    def machines(self) -> list[str]:
        """Names of the listed hosts, each once."""
        return list(dict.fromkeys(self._machine(name) for name in self._listed))

    def _machine(self, name: str) -> str:
        return LOCAL if name in self._local else name

    def _is_wanted(self, worker: int) -> bool:
        return not self._wanted.isdisjoint(range(worker * self._slots, (worker + 1) * self._slots))

    def _place(self) -> int | None:
        taken = {host.worker for host in self._hosts.values()}
        return next((worker for worker in self._workers if worker not in taken), None)

    def _forget(self, now: float) -> None:
        """Delete hosts without a worker index and without a failure within the last hour."""
        for name, host in list(self._hosts.items()):
            host.failed = [at for at in host.failed if now - at < _REMEMBERED_S]
            if not host.failed and now >= host.aside_until:
                host.times_aside = 0
            if host.worker is None and not host.failed and now >= host.aside_until and name not in self.machines:
                del self._hosts[name]


def parse_hosts(output: str, slots_per_host: int = 1) -> dict[str, int]:
    """Return numbers of slots by host from lines `host:slots` or `host`. Raises ConfigurationError for another line."""
    hosts: dict[str, int] = {}
    for line in filter(None, map(str.strip, output.splitlines())):
        host, count = line.rsplit(":", 1) if ":" in line else (line, f"{slots_per_host}")
        if not is_host_name(host) or not count.isdecimal():
            raise ConfigurationError(f"the script printed {quoted(line)}; expected host:slots")
        hosts[host] = hosts.get(host, 0) + int(count)
    return hosts


def check_only_here(hosts: Iterable[str]) -> None:
    """Raise ConfigurationError if one of `hosts` is another machine."""
    for host in hosts:
        if host not in own_names():
            raise ConfigurationError(
                f"the script printed {quoted(host)}, which is not this machine ({', '.join(sorted(own_names()))}), but "
                "its first output had this machine only; to use other hosts, list one of them from the beginning, "
                "or set --network-interfaces"
            )
