"""The host discovery script of a local elastic run: which slots of this machine are wanted now."""

import logging
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable
from typing import Final

from ringtrain.errors import ConfigurationError, quoted
from ringtrain.shared.processes import signal_group
from ringtrain_job.launcher.formation import Rules

log = logging.getLogger(__name__)

_EVERY_S: Final = 1.0
# A script may ask a cloud's API; one that hangs must not hide that the world could change.
_DEADLINE_S: Final = 10.0
FIRST_ANSWER_WITHIN_S: Final = _DEADLINE_S
_POLL_S: Final = 0.1
_MOST_BYTES: Final = 64 << 10


class HostSlots:
    """The slots of each host name: a host keeps its slots for as long as it is listed."""

    def __init__(self, slots: int) -> None:
        self._slots = slots
        self._owned: dict[str, list[int]] = {}

    def assign(self, hosts: dict[str, int]) -> frozenset[int]:
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


def parse_hosts(output: str, own: frozenset[str]) -> dict[str, int]:
    """Slots by host from lines of `host:slots` or `host`; ConfigurationError names the line that is neither, or
    another machine: `own` are the names of this one."""
    hosts: dict[str, int] = {}
    for line in filter(None, map(str.strip, output.splitlines())):
        host, count = line.rsplit(":", 1) if ":" in line else (line, "1")
        if not host or not count.isdecimal():
            raise ConfigurationError(f"it printed {quoted(line)}; expected host:slots")
        if host not in own:
            raise ConfigurationError(
                f"it printed {quoted(line)}, and {host} is not this machine; expected one of "
                f"{', '.join(sorted(own))}. Several hosts are a DistributedTrainingJob with spec.elastic, or "
                "ringtrain run -H with a fixed number of ranks"
            )
        hosts[host] = hosts.get(host, 0) + int(count)
    return hosts


def own_names() -> frozenset[str]:
    """Names under which a script may list this machine."""
    name = socket.gethostname()
    return frozenset({"localhost", "127.0.0.1", "::1", name, name.partition(".")[0]})


class HostDiscovery:
    """Runs `script` every second in a thread; `ask` gets the slots that are wanted whenever they are others.

    A script that fails, or lists what cannot be, is said once, and its last answer holds.
    """

    def __init__(self, script: str, slots: int, rules: Rules, ask: Callable[[frozenset[int]], None]) -> None:
        self._script, self._rules, self._ask = script, rules, ask
        self._slots = HostSlots(slots)
        self._closed = threading.Event()
        self._problem = ""
        self._thread = threading.Thread(target=self._follow, name="ringtrain-discovery", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Run the script no more."""
        self._closed.set()
        self._thread.join(_DEADLINE_S)

    def _follow(self) -> None:
        while not self._closed.is_set():
            try:
                hosts = parse_hosts(run_script(self._script, _DEADLINE_S, self._closed), own_names())
                self._check(sum(hosts.values()))
                self._ask(self._slots.assign(hosts))
                self._problem = ""
            except ConfigurationError as exc:
                self._say(str(exc))
            self._closed.wait(_EVERY_S)

    def _check(self, count: int) -> None:
        if not self._rules.min_ranks <= count <= self._rules.max_ranks:
            raise ConfigurationError(
                f"it lists {count} slots; expected {self._rules.min_ranks} to {self._rules.max_ranks} "
                "(--min-np, --max-np)"
            )

    def _say(self, problem: str) -> None:
        if problem != self._problem and not self._closed.is_set():
            log.error("host discovery script %s: %s; its last answer holds", self._script, problem)
        self._problem = problem


def run_script(script: str, deadline_s: float, closed: threading.Event) -> str:
    """What the shell command `script` prints. ConfigurationError when it fails, is late, or `closed` is set."""
    process = subprocess.Popen(
        script,
        shell=True,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    try:
        output, errors = _read(process, time.monotonic() + deadline_s, closed)
    except subprocess.TimeoutExpired:
        raise ConfigurationError(f"it took longer than {deadline_s:g} s") from None
    finally:
        signal_group(process.pid, signal.SIGKILL)
        process.wait()
    if process.returncode:
        said = errors.decode(errors="replace").strip().splitlines()
        raise ConfigurationError(f"it exited with {process.returncode}" + (f" ({said[-1]})" if said else ""))
    return output[:_MOST_BYTES].decode(errors="replace")


def _read(process: "subprocess.Popen[bytes]", end: float, closed: threading.Event) -> tuple[bytes, bytes]:
    while True:
        try:
            return process.communicate(timeout=_POLL_S)
        except subprocess.TimeoutExpired:
            if closed.is_set() or time.monotonic() >= end:
                raise
