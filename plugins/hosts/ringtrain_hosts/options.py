"""Options of `ringtrain run` for several hosts, and those of horovodrun."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import click

from ringtrain.shared.hosts import Host
from ringtrain_hosts.elastic_hosts import run_on_changing_hosts
from ringtrain_hosts.elastic_plan import ElasticHostsRun, checked_discovery_script, elastic_hosts_run
from ringtrain_hosts.horovod_options import CHECK_BUILD, OPTIONS
from ringtrain_hosts.horovod_values import HorovodrunValues, horovodrun_values
from ringtrain_hosts.hosts import allocated_hosts, find_hosts, given_hosts, task_notes
from ringtrain_hosts.several_hosts import run_on_hosts
from ringtrain_hosts.ssh import SrunOptions
from ringtrain_job.cli.elastic import elastic_run
from ringtrain_job.cli.run_extension import RunPlan, RunRequest, RunStart, require_ranks

_HOSTS: Final = click.Option(
    ("-H", "--hosts"),
    default="",
    metavar="HOST:N,...",
    help="Hosts, reached over ssh [default: this machine, or SLURM's nodes]. HOST:N@SITE,... defines hosts that share "
    "a fast network. Maturity: Beta for other hosts, Experimental for sites.",
)
_DISCOVERY: Final = click.Option(
    ("--host-discovery-script", "discovery"),
    type=click.Path(path_type=Path),
    metavar="PROGRAM",
    help="Program that prints the hosts to use, one host:slots per line. It runs repeatedly; ranks are "
    "added or removed to match. Hosts other than this machine are reached by ssh. Maturity: Beta.",
)
_ONE_COMMAND: Final = "one `ringtrain run -H HOST:N,...` starts the ranks of all hosts"


@dataclass(frozen=True)
class _GivenHosts:
    """Hosts as given by options: `-H text` or a hostfile."""

    text: str
    hostfile: str | None

    @property
    def shown(self) -> str:
        """The option as written; empty without one."""
        return f"-H {self.text}" if self.text else f"--hostfile {self.hostfile}" if self.hostfile else ""


class HostOptions:
    """Extension of `ringtrain run` for several hosts, with horovodrun's options."""

    options: Sequence[click.Option] = (_HOSTS, CHECK_BUILD, *(option.option() for option in OPTIONS), _DISCOVERY)
    help = (
        "Other hosts are reached by ssh without a password; they need Python, ringtrain and this directory at the same "
        "paths. In the script of a SLURM job, ranks run on its nodes, reached by srun; -np is the number of its tasks "
        "by default."
    )
    sections: Mapping[str, Sequence[str]] = {
        "Other hosts": (
            *("--hosts", "--hostfile", "--host-discovery-script", "--slots-per-host", "--blacklist-cooldown-range"),
            *("--start-timeout", "--network-interface", "--network-interfaces", "--ssh-port", "--ssh-identity-file"),
        )
    }
    hints: Mapping[str, str] = {
        "--nnodes": "torchrun's; write -H HOST:N,HOST:N for ranks on several hosts, nothing for one",
        "--node-rank": f"torchrun's; {_ONE_COMMAND}",
        "--local-addr": "torchrun's; write --network-interface NAME if other hosts must use a certain address",
        **dict.fromkeys(
            ("--num-machines", "--machine-rank", "--main-process-ip", "--main-process-port"),
            f"accelerate's; {_ONE_COMMAND}",
        ),
    }

    @property
    def ignored(self) -> tuple[str, Mapping[str, Sequence[str]]]:
        """Options that are accepted and have no effect, by reason."""
        reasons: dict[str, list[str]] = {}
        for option in OPTIONS:
            if not option.means:
                reasons.setdefault(option.here, []).append(option.shown)
        return "Options of horovodrun that are accepted and do nothing here", reasons

    def plan(self, request: RunRequest) -> RunPlan:
        """Return the plan of a run on the hosts that the options, a discovery script or a SLURM job define."""
        values, script = horovodrun_values(request.given), request.given["discovery"]
        hosts = _GivenHosts(request.given["hosts"], values.of("hostfile"))
        is_elastic = request.elastic.given or script is not None
        allocated = [] if hosts.shown or is_elastic else allocated_hosts(os.environ)
        ranks = request.ranks or sum(host.slots for host in allocated) or require_ranks(request.ranks)
        if is_elastic:
            return _elastic_plan(request, ranks, hosts, values)
        several = allocated if len(allocated) > 1 else ()
        placed = find_hosts(hosts.text, hosts.hostfile, ranks, several)
        is_local = all(host.is_here for host in placed)
        reach = SrunOptions(values.ssh.interfaces) if allocated else values.ssh

        def start(variables: Mapping[str, str], command: Sequence[str], verbose: bool) -> int:
            return run_on_hosts(placed, reach, variables, command, verbose)

        return _plan(ranks, ranks, placed, values, start=None if is_local else start)


def _elastic_plan(request: RunRequest, ranks: int, hosts: _GivenHosts, values: HorovodrunValues) -> RunPlan:
    script: Path | None = request.given["discovery"]
    elastic = elastic_run(ranks, request.elastic)
    if script is not None and hosts.shown:
        raise click.UsageError(
            f"{hosts.shown} and --host-discovery-script {script}: both define the hosts; use one of them"
        )
    fixed = given_hosts(hosts.text, hosts.hostfile, ranks)
    run = elastic_hosts_run(elastic, values, fixed, None if script is None else checked_discovery_script(script))
    common: dict[str, Any] = {"variables": run.variables, "words": run.words, "log_slots": run.log_slots}
    if run.hosts is None:
        return _plan(ranks, run.slots, find_hosts(hosts.text, hosts.hostfile, run.slots), values, **common)
    return _plan(
        ranks,
        run.slots,
        [Host(name, count) for name, count in run.first.items()],
        values,
        start=lambda place, command, verbose: _run_elastic(run, place, command, verbose),
        **common,
    )


def _run_elastic(run: ElasticHostsRun, variables: Mapping[str, str], command: Sequence[str], verbose: bool) -> int:
    assert run.hosts is not None
    return run_on_changing_hosts(run.hosts, variables, command, verbose, run.words)


def _plan(
    ranks: int,
    slots: int,
    placed: Sequence[Host],
    values: HorovodrunValues,
    *,
    variables: Mapping[str, str] | None = None,
    words: Sequence[str] = (),
    log_slots: int | None = None,
    start: RunStart | None = None,
) -> RunPlan:
    return RunPlan(
        ranks,
        slots,
        variables={**values.variables, **(variables or {})},
        words=words,
        notes=(*values.notes, *task_notes(os.environ)),
        hosts=len(placed),
        others=tuple(host.name for host in placed if not host.is_here),
        is_here=any(host.is_here for host in placed),
        link=lambda files: values.link_outputs(files, log_slots or slots),
        start=start,
    )


EXTENSION: Final = HostOptions()
