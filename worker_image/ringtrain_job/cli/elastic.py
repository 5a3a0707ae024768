"""Options of `ringtrain run` for elastic runs, in which ranks may join and leave."""

import functools
import os
import shlex
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, TypeVar, cast

import click

from ringtrain.errors import ConfigurationError, counted
from ringtrain.shared import contract
from ringtrain.shared.hosts import LOCAL, Host, own_names
from ringtrain_job.cli.elastic_hosts import ChangingHosts
from ringtrain_job.cli.horovod_values import HorovodrunValues
from ringtrain_job.launcher.discovery import FIRST_ANSWER_WITHIN_S, run_discovery_script
from ringtrain_job.launcher.hosts import DEFAULT_COOLDOWN, HostCoolDown, parse_hosts

F = TypeVar("F", bound=Callable[..., Any])

# Time for joining ranks to collect: those of one machine start together.
_JOIN_DELAY_S = 2
# Limit of the slots of all hosts: the launcher examines each of them.
_MOST_SLOTS = 4096


@dataclass(frozen=True)
class ElasticCommandOptions:
    """Options for elastic runs as given on the command line; None if not given."""

    min_ranks: int | None = None
    max_ranks: int | None = None
    discovery: Path | None = None
    on_loss: str | None = None
    replace_timeout_s: float | None = None
    resets: int | None = None

    @property
    def given(self) -> bool:
        """Whether the run is elastic: at least one of the options is given."""
        return any(value is not None for value in vars(self).values())


@dataclass(frozen=True)
class ElasticCommandRun:
    """Settings of an elastic run of at most `slots` ranks at a time.

    `variables`: environment variables of launcher and agents. `first`: number of slots by host name at the start.
    `hosts`: access to other hosts; None if the run uses this machine only. `words`: arguments of the launcher.
    """

    slots: int
    variables: dict[str, str]
    first: Mapping[str, int]
    hosts: ChangingHosts | None = None
    words: Sequence[str] = ()

    @property
    def log_slots(self) -> int:
        """Number of slots, each of which has a separate log."""
        return self.slots if self.hosts is None else self.hosts.workers * self.hosts.slots

    def reach(self, values: HorovodrunValues, fixed: Sequence[Host]) -> "ElasticCommandRun":
        """Return this run with access to its hosts over the network, unless all hosts are this machine.

        `fixed`: the hosts of -H or of a hostfile; empty if a script lists the hosts. `values`: horovodrun's options.
        Raises a usage error if the options contradict each other.
        """
        sites = {LOCAL if host.is_here else host.name: host.site for host in fixed if host.site}
        per_host, cooldown = values.of("slots_per_host") or 1, values.of("blacklist_cooldown_range")
        first = {host.name: host.slots for host in fixed} or self.first
        words = ["--slots-per-host", f"{per_host}"] if contract.ENV_HOST_DISCOVERY_SCRIPT in self.variables else []
        if not values.ssh.interfaces and all(name in own_names() for name in first):
            if sites:
                raise click.UsageError(
                    f"-H names sites ({', '.join(sites.values())}), but all hosts of the elastic run are this "
                    "machine, which is at one site; remove the sites"
                )
            return replace(self, first=first, words=words)
        script = "printf '%s\\n' " + shlex.join(f"{host.name}:{host.slots}" for host in fixed)
        if fixed and (total := sum(first.values())) < (begin := int(self.variables[contract.ENV_ELASTIC_START_RANKS])):
            raise click.UsageError(
                f"the hosts {', '.join(first)} have only {counted(total, 'slot')}, but -np is {begin}"
            )
        variables = {**self.variables, **({contract.ENV_HOST_DISCOVERY_SCRIPT: script} if fixed else {})}
        if sites and not os.environ.get(contract.ENV_ENCRYPT):
            variables[contract.ENV_ENCRYPT] = "sites"
        if contract.ENV_HOST_DISCOVERY_SCRIPT not in variables:
            return self
        # A host that joins later may have more slots than all hosts of the first answer.
        slots = min(self.slots, max([per_host, *first.values(), _MOST_SLOTS // (2 * self.slots)]))
        # Twice the hosts: all may be replaced at once, and the old ones stay until the new ones have the state.
        workers = max(2 * -(-self.slots // slots), min(2 * self.slots, _MOST_SLOTS // slots))
        hosts = ChangingHosts(workers, slots, values.ssh, _cooldown(cooldown), sites)
        return replace(self, variables=variables, first=first, hosts=hosts, words=words)


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


def elastic_options(command: F) -> F:
    """Add the options for elastic runs to `command` and return it; the command gets them as the argument `elastic`."""

    @functools.wraps(command)
    def gathered(**given: Any) -> Any:
        options = ElasticCommandOptions(
            **{field.name: given.pop(field.name) for field in fields(ElasticCommandOptions)}
        )
        return command(elastic=options, **given)

    count = click.IntRange(1, 1024)
    seconds = click.FloatRange(0, 604800, min_open=True)
    for option in (
        click.option(
            *("--reset-limit", "resets"),
            type=click.IntRange(0, 999_998),
            metavar="N",
            help="Maximum number of changes of the world [default: 99].",
        ),
        click.option(
            *("--replace-timeout", "replace_timeout_s"),
            type=seconds,
            metavar="SECONDS",
            help="Seconds to wait for a lost rank's replacement before continuing without it [default: 120].",
        ),
        click.option(
            "--on-loss",
            type=click.Choice(contract.ON_LOSS, case_sensitive=False),
            help="Action when a rank is lost. Replace: the other ranks wait for a new one. Shrink: they continue "
            "at once. Restart: all ranks start again, for programs without ringtrain.elastic [default: Replace].",
        ),
        click.option(
            *("--host-discovery-script", "discovery"),
            type=click.Path(path_type=Path),
            metavar="PROGRAM",
            help="Program that prints the hosts to use, one host:slots per line. It runs repeatedly; ranks are "
            "added or removed to match. Hosts other than this machine are reached by ssh. Maturity: Beta.",
        ),
        click.option(
            *("--max-np", "--max-num-proc", "max_ranks"),
            type=count,
            metavar="N",
            help="Maximum number of ranks [default: -np]. Maturity: Beta.",
        ),
        click.option(
            *("--min-np", "--min-num-proc", "min_ranks"),
            type=count,
            metavar="N",
            help="Minimum number of ranks. With fewer ranks the run waits, then ends [default: -np]. Maturity: Beta.",
        ),
    ):
        gathered = option(gathered)
    return cast(F, gathered)


def elastic_run(ranks: int, hosts: str, options: ElasticCommandOptions, per_host: int = 1) -> ElasticCommandRun | None:
    """Return the settings of an elastic run of initially `ranks` ranks; None without options. Raises click.UsageError
    for invalid options.

    `hosts`: text of the option with the hosts; empty without one. `per_host`: slots of a host that the script prints
    without a number.
    """
    if not options.given:
        return None
    low = ranks if options.min_ranks is None else options.min_ranks
    high = ranks if options.max_ranks is None else options.max_ranks
    _check_np_options(low, ranks, high)
    on_loss = options.on_loss or contract.ON_LOSS[0]
    _check_loss(on_loss, low, ranks, options)
    if options.discovery is not None and hosts:
        raise click.UsageError(
            f"{hosts} and --host-discovery-script {options.discovery}: both define the hosts; use one of them"
        )
    script = None if options.discovery is None else _checked_discovery_script(options.discovery)
    settings = {
        contract.ENV_ELASTIC: on_loss,
        contract.ENV_ELASTIC_MIN_RANKS: low,
        contract.ENV_ELASTIC_MAX_RANKS: high,
        contract.ENV_ELASTIC_START_RANKS: ranks,
        contract.ENV_ELASTIC_JOIN_DELAY: _JOIN_DELAY_S,
        contract.ENV_ELASTIC_REPLACE_TIMEOUT: options.replace_timeout_s,
        contract.ENV_ELASTIC_FORMATION_LIMIT: None if options.resets is None else options.resets + 1,
        contract.ENV_HOST_DISCOVERY_SCRIPT: script and shlex.quote(f"{script}"),
    }
    variables = {name: f"{value}" for name, value in settings.items() if value is not None}
    return ElasticCommandRun(high, variables, _initial_slots(script, per_host) if script else {})


def _check_np_options(low: int, ranks: int, high: int) -> None:
    if low <= ranks <= high:
        return
    raise click.UsageError(
        f"-np {ranks}, the number of ranks at the start, is not between --min-np {low} and --max-np {high}; each of "
        "these is -np by default"
    )


def _check_loss(on_loss: str, low: int, ranks: int, options: ElasticCommandOptions) -> None:
    if on_loss != "Shrink":
        return
    if low >= ranks:
        raise click.UsageError(
            f"--on-loss Shrink: with -np {ranks} and --min-np {low} no rank may be lost; use a --min-np below -np"
        )
    if options.replace_timeout_s is not None:
        raise click.UsageError(
            "--replace-timeout and --on-loss Shrink: with Shrink, ranks do not wait for a "
            "replacement; remove one of these options"
        )


def _checked_discovery_script(script: Path) -> Path:
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
