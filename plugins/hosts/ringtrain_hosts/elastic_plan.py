"""Elastic runs of `ringtrain run` on hosts that options or a discovery script list."""

import os
import shlex
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import click

from ringtrain.errors import ConfigurationError, counted
from ringtrain.shared import contract
from ringtrain.shared.hosts import LOCAL, Host, own_names
from ringtrain_hosts.discovery import FIRST_ANSWER_WITHIN_S, run_discovery_script
from ringtrain_hosts.elastic_hosts import ChangingHosts
from ringtrain_hosts.horovod_values import HorovodrunValues
from ringtrain_hosts.table import DEFAULT_COOLDOWN, HostCoolDown, parse_hosts
from ringtrain_job.cli.elastic import ElasticCommandRun

# Limit of the slots of all hosts: the launcher examines each of them.
_MOST_SLOTS = 4096


@dataclass(frozen=True)
class ElasticHostsRun:
    """Settings of an elastic run of at most `slots` ranks at a time.

    `variables`: environment variables of launcher and agents. `first`: number of slots by host name at the start.
    `hosts`: access to other hosts; None if the run uses this machine only. `words`: arguments of the launcher.
    """

    slots: int
    variables: Mapping[str, str]
    first: Mapping[str, int]
    hosts: ChangingHosts | None = None
    words: Sequence[str] = ()

    @property
    def log_slots(self) -> int:
        """Number of slots, each of which has a separate log."""
        return self.slots if self.hosts is None else self.hosts.workers * self.hosts.slots


def elastic_hosts_run(
    run: ElasticCommandRun, values: HorovodrunValues, fixed: Sequence[Host], script: Path | None
) -> ElasticHostsRun:
    """Return the elastic run on its hosts, with access to them over the network unless all are this machine.

    `fixed`: the hosts of -H or of a hostfile; empty if `script` lists the hosts, or if the run uses this machine.
    `values`: horovodrun's options. Raises a usage error if the options contradict each other.
    """
    per_host, cooldown = values.of("slots_per_host") or 1, values.of("blacklist_cooldown_range")
    variables: Mapping[str, str] = run.variables
    words: Sequence[str] = ()
    first = {host.name: host.slots for host in fixed}
    if script is not None:
        variables = {**variables, contract.ENV_HOST_DISCOVERY_SCRIPT: shlex.quote(f"{script}")}
        first, words = _initial_slots(script, per_host), ("--slots-per-host", f"{per_host}")
    sites = {LOCAL if host.is_here else host.name: host.site for host in fixed if host.site}
    if not values.ssh.interfaces and all(name in own_names() for name in first):
        if sites:
            raise click.UsageError(
                f"-H names sites ({', '.join(sites.values())}), but all hosts of the elastic run are this "
                "machine, which is at one site; remove the sites"
            )
        return ElasticHostsRun(run.slots, variables, first, words=words)
    if fixed and (total := sum(first.values())) < (begin := int(variables[contract.ENV_ELASTIC_START_RANKS])):
        raise click.UsageError(f"the hosts {', '.join(first)} have only {counted(total, 'slot')}, but -np is {begin}")
    if fixed:
        printing = "printf '%s\\n' " + shlex.join(f"{host.name}:{host.slots}" for host in fixed)
        variables = {**variables, contract.ENV_HOST_DISCOVERY_SCRIPT: printing}
    if sites and not os.environ.get(contract.ENV_ENCRYPT):
        variables = {**variables, contract.ENV_ENCRYPT: "sites"}
    if contract.ENV_HOST_DISCOVERY_SCRIPT not in variables:
        return ElasticHostsRun(run.slots, variables, first, words=words)
    # A host that joins later may have more slots than all hosts of the first answer.
    slots = min(run.slots, max([per_host, *first.values(), _MOST_SLOTS // (2 * run.slots)]))
    # Twice the hosts: all may be replaced at once, and the old ones stay until the new ones have the state.
    workers = max(2 * -(-run.slots // slots), min(2 * run.slots, _MOST_SLOTS // slots))
    hosts = ChangingHosts(workers, slots, values.ssh, _cooldown(cooldown), sites)
    return ElasticHostsRun(run.slots, variables, first, hosts, words)


def _cooldown(given: tuple[float, float] | None) -> HostCoolDown:
    """Return how long failed hosts are not used. Raises click.UsageError."""
    if given is None:
        return DEFAULT_COOLDOWN
    low, high = given
    if not 1 <= low <= high <= 3600:
        raise click.UsageError(
            f"--blacklist-cooldown-range {low:g} {high:g}: expected two numbers of seconds from 1 to 3600, the "
            "lower one first"
        )
    return HostCoolDown(failures=1, first_s=low, most_s=high)


def checked_discovery_script(script: Path) -> Path:
    """Return the absolute path of `script`. Raises click.UsageError if it cannot be executed."""
    path = script.absolute()
    if not path.is_file():
        raise click.UsageError(f"--host-discovery-script {script}: the file does not exist")
    if not os.access(path, os.X_OK):
        raise click.UsageError(f"--host-discovery-script {script} is not executable; chmod +x {script}")
    return path


def _initial_slots(script: Path, per_host: int) -> dict[str, int]:
    """Run the discovery script once; return slots by host name. Raises click.UsageError if its output is invalid.

    If the script fails, the answer is empty, and the run calls it again.
    """
    try:
        output = run_discovery_script(shlex.quote(f"{script}"), FIRST_ANSWER_WITHIN_S, threading.Event())
    except ConfigurationError:
        return {}
    try:
        return parse_hosts(output, per_host)
    except ConfigurationError as exc:
        raise click.UsageError(f"--host-discovery-script {script}: {exc}") from exc
