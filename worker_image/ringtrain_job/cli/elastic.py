"""The options of `ringtrain run` for a world that changes while its ranks run."""

import functools
import os
import shlex
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, TypeVar, cast

import click

from ringtrain.errors import ConfigurationError
from ringtrain.shared import contract
from ringtrain.shared.hosts import LOCAL, Host, own_names
from ringtrain_job.cli.elastic_hosts import ChangingHosts
from ringtrain_job.cli.horovod_values import HorovodrunValues
from ringtrain_job.launcher.discovery import FIRST_ANSWER_WITHIN_S, run_discovery_script
from ringtrain_job.launcher.hosts import DEFAULT_COOLDOWN, HostCoolDown, parse_hosts

F = TypeVar("F", bound=Callable[..., Any])

# Newcomers of one machine come together: the script has named them in one go.
_JOIN_DELAY_S = 2
# Slots of all places for hosts: the launcher looks at each of them.
_MOST_SLOTS = 4096


@dataclass(frozen=True)
class ElasticCommandOptions:
    """What was given on the command line; None: not given."""

    min_ranks: int | None = None
    max_ranks: int | None = None
    discovery: Path | None = None
    on_loss: str | None = None
    replace_timeout_s: float | None = None
    resets: int | None = None

    @property
    def given(self) -> bool:
        """Whether the job is elastic: any of the options says so."""
        return any(value is not None for value in vars(self).values())


@dataclass(frozen=True)
class ElasticCommandRun:
    """An elastic run of at most `slots` ranks, and what launcher and agent are told. `first`: slots by host name
    at the beginning; `hosts`: how others are reached, None on this machine alone. `words`: the launcher's."""

    slots: int
    variables: dict[str, str]
    first: Mapping[str, int]
    hosts: ChangingHosts | None = None
    words: Sequence[str] = ()

    @property
    def log_slots(self) -> int:
        """How many slots have a log."""
        return self.slots if self.hosts is None else self.hosts.workers * self.hosts.slots

    def reach(self, values: HorovodrunValues, fixed: Sequence[Host]) -> "ElasticCommandRun":
        """This run on `fixed` hosts, or on those of its script, if one of them is another one or may be.

        Raises a usage error for what cannot be.
        """
        sites = {LOCAL if host.is_here else host.name: host.site for host in fixed if host.site}
        per_host, cooldown = values.of("slots_per_host") or 1, values.of("blacklist_cooldown_range")
        first = {host.name: host.slots for host in fixed} or self.first
        words = ["--slots-per-host", f"{per_host}"] if contract.ENV_HOST_DISCOVERY_SCRIPT in self.variables else []
        if not values.ssh.interfaces and all(name in own_names() for name in first):
            if sites:
                raise click.UsageError(
                    f"-H names sites ({', '.join(sites.values())}), and all hosts of the elastic run are this "
                    "machine, which is at one site; leave sites out"
                )
            return replace(self, first=first, words=words)
        script = "printf '%s\\n' " + shlex.join(f"{host.name}:{host.slots}" for host in fixed)
        if fixed and (total := sum(first.values())) < (begin := int(self.variables[contract.ENV_ELASTIC_START_RANKS])):
            raise click.UsageError(f"{', '.join(first)} have {total} slots for -np {begin} ranks")
        variables = {**self.variables, **({contract.ENV_HOST_DISCOVERY_SCRIPT: script} if fixed else {})}
        if sites and not os.environ.get(contract.ENV_ENCRYPT):
            variables[contract.ENV_ENCRYPT] = "sites"
        if contract.ENV_HOST_DISCOVERY_SCRIPT not in variables:
            return self
        # A host that comes later may have more slots than all of the first answer.
        slots = min(self.slots, max([per_host, *first.values(), _MOST_SLOTS // (2 * self.slots)]))
        # All hosts may be others from one answer to the next, and those before stay until these have the state.
        workers = max(2 * -(-self.slots // slots), min(2 * self.slots, _MOST_SLOTS // slots))
        hosts = ChangingHosts(workers, slots, values.ssh, _cooldown_option(cooldown), sites)
        return replace(self, variables=variables, first=first, hosts=hosts, words=words)


def _cooldown_option(given: tuple[float, float] | None) -> HostCoolDown:
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
    """`command` with the options, of which it gets one value, `elastic`."""

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
            help="How often the world may be made again before the run has failed [default: 99].",
        ),
        click.option(
            *("--replace-timeout", "replace_timeout_s"),
            type=seconds,
            metavar="SECONDS",
            help="How long to wait for a rank in place of a lost one before going on without it [default: 120].",
        ),
        click.option(
            "--on-loss",
            type=click.Choice(contract.ON_LOSS, case_sensitive=False),
            help="When a rank is lost. Replace: the others wait for a new one. Shrink: the others go on at once. "
            "Restart: all ranks are started again, for programs without ringtrain.elastic [default: Replace].",
        ),
        click.option(
            *("--host-discovery-script", "discovery"),
            type=click.Path(path_type=Path),
            metavar="PROGRAM",
            help="Program that prints on which hosts ranks are wanted, as lines host:slots. It is run again and "
            "again, and the world follows what it prints; other hosts are reached by ssh. Maturity: Beta.",
        ),
        click.option(
            *("--max-np", "--max-num-proc", "max_ranks"),
            type=count,
            metavar="N",
            help="Most ranks of a world [default: -np]. Maturity: Beta.",
        ),
        click.option(
            *("--min-np", "--min-num-proc", "min_ranks"),
            type=count,
            metavar="N",
            help="Fewest ranks of a world: with fewer the run waits, then ends [default: -np]. Maturity: Beta.",
        ),
    ):
        gathered = option(gathered)
    return cast(F, gathered)


def elastic_run(ranks: int, hosts: str, options: ElasticCommandOptions, per_host: int = 1) -> ElasticCommandRun | None:
    """What `options` make of a run of `ranks` ranks; None without any. Raises a usage error for what cannot be.

    `hosts`: the option that names them, with its value; empty without one. `per_host`: slots of a script's line
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
            f"{hosts} and --host-discovery-script {options.discovery}: both say where ranks are; leave one out"
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
    return ElasticCommandRun(high, variables, _first_answer(script, per_host) if script else {})


def _check_np_options(low: int, ranks: int, high: int) -> None:
    if low <= ranks <= high:
        return
    raise click.UsageError(
        f"-np {ranks}, with which the run begins, is not between --min-np {low} and --max-np {high}; where one of "
        "these is not given, -np takes its place"
    )


def _check_loss(on_loss: str, low: int, ranks: int, options: ElasticCommandOptions) -> None:
    if on_loss != "Shrink":
        return
    if low >= ranks:
        raise click.UsageError(
            f"--on-loss Shrink: of {ranks} ranks --min-np {low} lets none be lost; give a --min-np below -np"
        )
    if options.replace_timeout_s is not None:
        raise click.UsageError(
            "--replace-timeout and --on-loss Shrink: nobody waits for a lost rank then; leave one of them out"
        )


def _checked_discovery_script(script: Path) -> Path:
    """The absolute path of `script`, if it can be executed."""
    path = script.absolute()
    if not path.is_file():
        raise click.UsageError(f"--host-discovery-script {script}: there is no such file")
    if not os.access(path, os.X_OK):
        raise click.UsageError(f"--host-discovery-script {script} is not executable; chmod +x {script}")
    return path


def _first_answer(script: Path, per_host: int) -> dict[str, int]:
    """Slots by host name. A usage error for what can't be followed: the run would wait for another answer. A
    script that fails is asked again by the run."""
    try:
        output = run_discovery_script(shlex.quote(f"{script}"), FIRST_ANSWER_WITHIN_S, threading.Event())
    except ConfigurationError:
        return {}
    try:
        return parse_hosts(output, per_host)
    except ConfigurationError as exc:
        raise click.UsageError(f"--host-discovery-script {script}: {exc}") from exc
