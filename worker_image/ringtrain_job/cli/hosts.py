"""Which hosts a run has, and how many ranks each of them gets."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import click

from ringtrain.errors import ConfigurationError, shown
from ringtrain.shared.hosts import LOCAL, Host, read_hostfile, read_hosts
from ringtrain.shared.slurm import node_names, tasks_of_nodes

# From here on, ids of steps are those that SLURM gives its own: the script of a job, the shell of salloc.
_OWN_STEPS = 0xFFFF_FF00


def find_hosts(text: str, hostfile: str | None, ranks: int, allocated: Sequence[Host] = ()) -> list[Host]:
    """The hosts of `ranks` ranks with as many slots as each gets ranks, from `-H text`, a hostfile, or what is
    `allocated`; without any of them it is this machine. Raises a usage error."""
    if text and hostfile:
        raise click.UsageError(f"-H {text} and --hostfile {hostfile}: both say where ranks are; leave one out")
    if hosts := given_hosts(text, hostfile, ranks):
        return place_ranks(hosts, ranks, f"--hostfile {hostfile}" if hostfile else f"-H {text}")
    if allocated:
        return place_ranks(
            list(allocated), ranks, "SLURM's job has " + ",".join(f"{h.name}:{h.slots}" for h in allocated)
        )
    return [Host(LOCAL, ranks)]


def given_hosts(text: str, hostfile: str | None, ranks: int) -> list[Host]:
    """All hosts of `-H text` or of a hostfile, whether they get ranks or not. Raises a usage error."""
    try:
        if hostfile and not text:
            return read_hostfile("--hostfile", hostfile, ranks)
        return read_hosts("-H", text, ranks)
    except ConfigurationError as exc:
        raise click.UsageError(str(exc)) from exc


def allocated_hosts(env: Mapping[str, str]) -> list[Host]:
    """The nodes that SLURM has given the job, with a slot for each task; none outside of a job, or in a step that
    srun has started: that one has its place. Raises a usage error."""
    if not env.get("SLURM_JOB_NODELIST") or _is_task(env):
        return []
    try:
        nodes, tasks = node_names("SLURM_JOB_NODELIST", env), tasks_of_nodes("SLURM_TASKS_PER_NODE", env)
        if len(nodes) != len(tasks):
            raise ConfigurationError(
                f"SLURM_TASKS_PER_NODE is {shown(env['SLURM_TASKS_PER_NODE'])} for {len(nodes)} nodes"
            )
        return [Host(*place) for place in zip(nodes, tasks, strict=True)]
    except ConfigurationError as exc:
        raise click.UsageError(f"{exc}; or say with -np and -H where ranks are") from exc


def note_on_tasks(env: Mapping[str, str]) -> list[str]:
    """A line where srun has started this command several times."""
    tasks = env.get("SLURM_STEP_NUM_TASKS", "1")
    if tasks == "1" or not _is_task(env):
        return []
    return [
        f"srun has started this command {tasks} times, and each is a run of its own; without srun, in the job's "
        "script, ringtrain run starts ranks on all nodes of the job"
    ]


def _is_task(env: Mapping[str, str]) -> bool:
    step = env.get("SLURM_STEP_ID", "")
    return step.isdecimal() and int(step) < _OWN_STEPS


def place_ranks(hosts: list[Host], ranks: int, said: str) -> list[Host]:
    """Hosts with as many slots as they get ranks: each is filled before the next one. `said`: where they are from.

    Raises a usage error where there are too few slots, or hosts would have different numbers of ranks.
    """
    merged: dict[str, Host] = {}
    for host in hosts:
        known = merged.get(host.name)
        if bool(host.site) != bool(hosts[0].site) or (known is not None and known.site != host.site):
            raise click.UsageError(
                f"{said}: {host.name} is at {host.site or 'no site'}, and {(known or hosts[0]).name} at "
                f"{(known or hosts[0]).site or 'no site'}; expected one site of each host, or none at all"
            )
        merged[host.name] = host if known is None else replace(known, slots=known.slots + host.slots)
    total = sum(host.slots for host in merged.values())
    if total < ranks:
        raise click.UsageError(f"{said}: {total} slots for {ranks} ranks; expected {hosts[0].name}:{ranks}")
    placed, left = [], ranks
    for host in merged.values():
        if count := min(host.slots, left):
            placed.append(replace(host, slots=count))
            left -= count
    counts = [host.slots for host in placed]
    if len(set(counts)) > 1:
        shares = ", ".join(f"{host.name} {host.slots}" for host in placed)
        raise click.UsageError(
            f"{said}: -np {ranks} ranks would be {shares}; expected the same number on each host, as "
            f"-np {min(counts) * len(placed)}, or hosts with other slots"
        )
    return placed
