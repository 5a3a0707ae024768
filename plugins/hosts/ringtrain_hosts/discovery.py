"""Host discovery of an elastic run: run the user's script, and start agents and request ranks on the hosts that the
script prints."""

import logging
import os
import signal
import subprocess
import threading
import time
from typing import Final

from ringtrain.errors import ConfigurationError, counted
from ringtrain.shared.processes import signal_group, start_child
from ringtrain_hosts.table import DEFAULT_COOLDOWN, ONLY_HERE, HostControl, HostTable, check_only_here, parse_hosts
from ringtrain_job.launcher.generation_state import GenerationRules
from ringtrain_job.launcher.run_hosts import RunWorld

log = logging.getLogger(__name__)

_EVERY_S: Final = 1.0
# A script may call a cloud's API. A script that hangs must not block changes of the world.
_DEADLINE_S: Final = 10.0
FIRST_ANSWER_WITHIN_S: Final = _DEADLINE_S
_POLL_S: Final = 0.1
_MOST_BYTES: Final = 64 << 10


class DiscoveredHosts:
    """Hosts of an elastic run that its discovery script lists: the launcher's `RunHosts`."""

    def __init__(self, control: HostControl) -> None:
        self._control = control
        self._table: HostTable | None = None
        self._discovery: HostDiscovery | None = None
        self.sets_aside = control.agents is not None
        self.has_sites = bool(control.sites)

    def follow(self, script: str, workers: int, slots: int, rules: GenerationRules, world: RunWorld) -> None:
        """Run `script` in a thread until `close`, and request slots of the hosts that it lists."""
        agents = self._control.agents
        self._table = HostTable(workers, slots, rules.max_ranks, agents.cooldown if agents else DEFAULT_COOLDOWN)
        self._discovery = HostDiscovery(script, self._table, rules, world, self._control)

    def site_of(self, worker: int) -> str:
        """Return the site name of the host with worker index `worker`; empty if it is unknown."""
        return "" if self._table is None else self._control.sites.get(self._table.host_of(worker), "")

    def close(self) -> None:
        """Stop running the script. Agents continue."""
        discovery, self._discovery = self._discovery, None
        if discovery is not None:
            discovery.close()


class HostDiscovery:
    """Thread that runs `script` every second and adapts the requested slots and the agents to the listed hosts.

    A script that fails, or prints an invalid list, is logged once, and its last valid output stays in force.
    """

    def __init__(
        self,
        script: str,
        table: HostTable,
        rules: GenerationRules,
        world: RunWorld,
        control: HostControl = ONLY_HERE,
    ) -> None:
        self._script, self._table, self._rules, self._world = script, table, rules, world
        self._agents, self._slots_per_host = control.agents, control.slots_per_host
        self._closed = threading.Event()
        self._problem = ""
        self._listed: dict[str, int] = {}
        self._failed: set[tuple[int, int]] = set()
        self._thread = threading.Thread(target=self._follow, name="ringtrain-discovery", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop running the script. Agents continue."""
        self._closed.set()
        self._thread.join(_DEADLINE_S)

    def _follow(self) -> None:
        while not self._closed.is_set():
            try:
                self._listed = self._answer()
                self._problem = ""
            except ConfigurationError as exc:
                self._warn_of_problem(str(exc))
            if not self._closed.is_set():
                self._see(time.monotonic())
                self._world.request_slots(self._table.assign(self._listed, time.monotonic()))
                self._move(time.monotonic())
            self._closed.wait(_EVERY_S)

    def _answer(self) -> dict[str, int]:
        hosts = parse_hosts(run_discovery_script(self._script, _DEADLINE_S, self._closed), self._slots_per_host)
        if self._agents is None:
            check_only_here(hosts)
        if (count := sum(hosts.values())) < self._rules.min_ranks:
            raise ConfigurationError(
                f"the script lists {counted(count, 'slot')}; expected {self._rules.min_ranks} or more (--min-np)"
            )
        return hosts

    def _see(self, now: float) -> None:
        """Record agents that have ended and ranks that have failed in the table of hosts."""
        if self._agents is None:
            return
        for worker in self._world.attached_workers():
            self._table.note_reached(worker)
        failed = self._world.failed_processes()
        said = [self._table.note_end(end, now) for end in self._agents.ended()]
        for slot, life in sorted(failed.keys() - self._failed):
            if self._table.is_wanted_slot(slot):
                said.append(self._table.note_failure(self._table.worker_of(slot), failed[slot, life], now))
        self._failed |= failed.keys()
        for text in filter(None, said):
            log.warning("%s", text)

    def _move(self, now: float) -> None:
        """Start agents on hosts that need one, and end agents whose hosts are no longer used."""
        if self._agents is None:
            return
        running = self._agents.running()
        for worker in self._table.idle(running, self._world.workers_in_use()):
            log.info("ending the agent on host %s, which is no longer used", self._table.host_of(worker))
            self._agents.dismiss(worker)
        # An agent whose ssh connection broke may still run. A second one would be refused.
        for worker, host in self._table.due(running | self._world.attached_workers(), now):
            others = [name for name in self._table.machines if name != host]
            log.info("starting worker %d on host %s", worker, host)
            self._agents.start(worker, host, others)

    def _warn_of_problem(self, problem: str) -> None:
        if problem != self._problem and not self._closed.is_set():
            log.error("host discovery script %s: %s; its last valid output remains in use", self._script, problem)
        self._problem = problem


def run_discovery_script(script: str, deadline_s: float, closed: threading.Event) -> str:
    """Run the shell command `script`; return its output.

    Raises ConfigurationError if it fails, exceeds `deadline_s`, or `closed` is set.
    """
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    process = start_child(["/bin/sh", "-c", script], os.environ, **pipes)
    try:
        output, errors = _read_discovered_hosts(process, time.monotonic() + deadline_s, closed)
    except subprocess.TimeoutExpired:
        raise ConfigurationError(f"the script took longer than {deadline_s:g} s") from None
    finally:
        signal_group(process.pid, signal.SIGKILL)
        process.wait()
    if process.returncode:
        said = errors.decode(errors="replace").strip().splitlines()
        raise ConfigurationError(f"the script exited with {process.returncode}" + (f" ({said[-1]})" if said else ""))
    return output[:_MOST_BYTES].decode(errors="replace")


def _read_discovered_hosts(
    process: "subprocess.Popen[bytes]", end: float, closed: threading.Event
) -> tuple[bytes, bytes]:
    while True:
        try:
            return process.communicate(timeout=_POLL_S)
        except subprocess.TimeoutExpired:
            if closed.is_set() or time.monotonic() >= end:
                raise
