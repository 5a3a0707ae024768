"""Which hosts an elastic run has: their places among its workers, what has failed there, and who is set aside.

Nothing here asks a clock, a process or a file.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol

from ringtrain.errors import ConfigurationError, quoted
from ringtrain.shared.hosts import LOCAL, is_host_name, own_names

# Failures are counted, and a host is remembered, for as long: as nodes of a cluster.
_REMEMBERED_S: Final = 3600.0
# What ends at the same time, as the ranks of one host, has failed once.
_AT_ONCE_S: Final = 2.0


@dataclass(frozen=True)
class HostCoolDown:
    """A host that has failed `failures` times within an hour gets no ranks for `first_s`, and twice as long each
    further time, at most `most_s`. One that was never reached is set aside the first time."""

    failures: int = 2
    first_s: float = 10.0
    most_s: float = 600.0

    def seconds(self, times: int) -> float:
        """How long, when it is set aside for the `times`-th time."""
        return min(self.most_s, self.first_s * 2.0 ** min(times - 1, 30))


DEFAULT_COOLDOWN: Final = HostCoolDown()


@dataclass(frozen=True)
class AgentEnd:
    """An agent of a host has ended. `reached`: it had been started; `meant`: it was let go; `why`: in words."""

    worker: int
    why: str
    reached: bool
    meant: bool


class HostAgents(Protocol):
    """Starts agents on hosts and lets them go; no call waits for a host."""

    cooldown: HostCoolDown

    def start(self, worker: int, host: str, others: Sequence[str]) -> None:
        """Begin to start the agent of `worker` on `host`; `others`: further hosts of the run."""

    def let_go(self, worker: int) -> None:
        """Ask the agent of `worker` to end."""

    def running(self) -> frozenset[int]:
        """Workers whose agents have not ended, or not been started yet."""

    def ended(self) -> list[AgentEnd]:
        """Agents that have ended since this was asked last."""


@dataclass(frozen=True)
class HostControl:
    """What an elastic run does with the hosts that its script lists. `agents`: None on this machine alone;
    `slots_per_host`: of a line without a number. `sites`: names by host, if any."""

    agents: HostAgents | None = None
    slots_per_host: int = 1
    sites: Mapping[str, str] = field(default_factory=dict)


ONLY_HERE: Final = HostControl()


class HostSlots:
    """The slots of each host name: a host keeps its slots for as long as it is listed."""

    def __init__(self, slots: int) -> None:
        self._slots = slots
        self._owned: dict[str, list[int]] = {}

    def assign(self, hosts: Mapping[str, int]) -> frozenset[int]:
        """Slots for `hosts`, which are counts by name. ConfigurationError when there are too few slots."""
        if sum(hosts.values()) > self._slots:
            raise ConfigurationError(f"it lists {sum(hosts.values())} slots; expected at most {self._slots}")
        kept = {host: self._owned.get(host, [])[:count] for host, count in hosts.items()}
        free = sorted(set(range(self._slots)) - {slot for slots in kept.values() for slot in slots})
        for host, count in hosts.items():
            missing = count - len(kept[host])
            kept[host], free = [*kept[host], *free[:missing]], free[missing:]
        self._owned = kept
        return frozenset(slot for slots in kept.values() for slot in slots)


@dataclass
class _Host:
    """`worker`: its place, which it has for as long as it has ranks or an agent. `start_at`: not before this time
    is its agent started again. `leaving`: its agent was let go, and has not ended."""

    worker: int | None = None
    reached: bool = False
    leaving: bool = False
    failed: list[float] = field(default_factory=list)
    times_aside: int = 0
    aside_until: float = float("-inf")
    start_at: float = float("-inf")


class HostTable:
    """Hosts and their workers, of which each has `slots` slots; at most `most` slots are wanted.

    Names of this machine share a worker. Hosts that were listed first get slots first.
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
        """The slots that are wanted when `listed` are the slots by host name."""
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
                continue  # the places are those of hosts that have not left yet
            names = given[host.worker]
            names[name] = min(listed[name], left, self._slots - sum(names.values()))
            left -= names[name]
        self._wanted = frozenset(
            worker * self._slots + slot for worker, names in given.items() for slot in self._names[worker].assign(names)
        )
        self._forget(now)
        return self._wanted

    def due(self, taken: Iterable[int], now: float) -> list[tuple[int, str]]:
        """Workers whose agents are to be started, and where. `taken`: those that have one, or had until now."""
        busy = set(taken)
        return [
            (host.worker, name)
            for name, host in self._hosts.items()
            if host.worker is not None and self._is_wanted(host.worker) and host.worker not in busy
            if now >= host.start_at
        ]

    def idle(self, running: Iterable[int], used: frozenset[int]) -> list[int]:
        """Workers that are let go from now on: those `running` that are neither wanted nor `used`."""
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
        """The agent of `worker` has registered."""
        for host in self._hosts.values():
            host.reached = host.reached or host.worker == worker

    def note_end(self, end: AgentEnd, now: float) -> str:
        """An agent has ended: what to say of it; empty if it was meant to."""
        host = self._hosts.get(self.host_of(end.worker))
        if host is None:
            return ""
        host.reached = host.reached or end.reached
        if not end.meant:
            return self.note_failure(end.worker, end.why, now)
        host.worker, host.leaving = None, False
        return ""

    def note_failure(self, worker: int, why: str, now: float) -> str:
        """Something has failed on the host of `worker`: what to say of it; empty if that is known."""
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
            return f"{why}; host {name} is tried again"
        host.times_aside += 1
        seconds = self._cooldown.seconds(host.times_aside)
        host.aside_until = now + seconds
        times = "once" if count == 1 else f"{count} times"
        return f"{why}; host {name} has failed {times} and gets no ranks for {seconds:g} s"

    def host_of(self, worker: int) -> str:
        """The host that has the place; empty without one."""
        return next((name for name, host in self._hosts.items() if host.worker == worker), "")

    def worker_of(self, slot: int) -> int:
        """The worker that has the slot."""
        return slot // self._slots

    def is_wanted_slot(self, slot: int) -> bool:
        """Whether the last answer gave this slot to a host."""
        return slot in self._wanted

    @property
    def machines(self) -> list[str]:
        """Hosts that are listed, each once."""
        return list(dict.fromkeys(self._machine(name) for name in self._listed))

    def _machine(self, name: str) -> str:
        return LOCAL if name in self._local else name

    def _is_wanted(self, worker: int) -> bool:
        return not self._wanted.isdisjoint(range(worker * self._slots, (worker + 1) * self._slots))

    def _place(self) -> int | None:
        taken = {host.worker for host in self._hosts.values()}
        return next((worker for worker in self._workers if worker not in taken), None)

    def _forget(self, now: float) -> None:
        """Hosts without a place that have not failed within the hour."""
        for name, host in list(self._hosts.items()):
            host.failed = [at for at in host.failed if now - at < _REMEMBERED_S]
            if not host.failed and now >= host.aside_until:
                host.times_aside = 0
            if host.worker is None and not host.failed and now >= host.aside_until and name not in self.machines:
                del self._hosts[name]


def parse_hosts(output: str, slots_per_host: int = 1) -> dict[str, int]:
    """Slots by host from lines of `host:slots` or `host`; ConfigurationError names the line that is neither."""
    hosts: dict[str, int] = {}
    for line in filter(None, map(str.strip, output.splitlines())):
        host, count = line.rsplit(":", 1) if ":" in line else (line, f"{slots_per_host}")
        if not is_host_name(host) or not count.isdecimal():
            raise ConfigurationError(f"it printed {quoted(line)}; expected host:slots")
        hosts[host] = hosts.get(host, 0) + int(count)
    return hosts


def check_only_here(hosts: Iterable[str]) -> None:
    """ConfigurationError when one of `hosts` is not this machine."""
    for host in hosts:
        if host not in own_names():
            raise ConfigurationError(
                f"it printed {quoted(host)}, which is not this machine ({', '.join(sorted(own_names()))}), and "
                "its first answer named this machine alone; a run that is to go to other hosts names one of them "
                "at first, or has --network-interfaces"
            )
