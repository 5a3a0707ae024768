"""Hosts of a `ringtrain run`, from options or SLURM, and how many ranks each host gets."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import click

from ringtrain.errors import ConfigurationError, counted, shown
from ringtrain.shared.hosts import LOCAL, Host, read_hostfile, read_hosts
from ringtrain.shared.slurm import node_names, tasks_of_nodes

# First of the step ids that SLURM reserves for itself: the script of a job, the shell of salloc.
_OWN_STEPS = 0xFFFF_FF00


def find_hosts(text: str, hostfile: str | None, ranks: int, allocated: Sequence[Host] = ()) -> list[Host]:
    """Return the hosts on which `ranks` ranks run, each with its number of ranks as slots. Raises click.UsageError if
    that is impossible.

    The hosts come from `-H text`, a hostfile, or `allocated`; without any of them it is this machine.
    """
    if text and hostfile:
        raise click.UsageError(f"-H {text} and --hostfile {hostfile}: both define the hosts; use one of them")
    if hosts := given_hosts(text, hostfile, ranks):
        return place_ranks(hosts, ranks, f"--hostfile {hostfile}" if hostfile else f"-H {text}")
    if allocated:
        return place_ranks(
            list(allocated), ranks, "SLURM's job has " + ",".join(f"{h.name}:{h.slots}" for h in allocated)
        )
    return [Host(LOCAL, ranks)]


def given_hosts(text: str, hostfile: str | None, ranks: int) -> list[Host]:
    """Return the hosts of `-H text` or of a hostfile, with their slots. Raises click.UsageError for an invalid host."""
    try:
        if hostfile and not text:
            return read_hostfile("--hostfile", hostfile, ranks)
        return read_hosts("-H", text, ranks)
    except ConfigurationError as exc:
        raise click.UsageError(str(exc)) from exc


def allocated_hosts(env: Mapping[str, str]) -> list[Host]:
    """Return the nodes of the SLURM job in `env`, each with its number of tasks as slots. Raises click.UsageError for
    invalid variables.

    The list is empty outside of a job, and in a step of srun, which already runs on its node.
    """
    if not env.get("SLURM_JOB_NODELIST") or _is_in_step(env):
        return []
    try:
        nodes, tasks = node_names("SLURM_JOB_NODELIST", env), tasks_of_nodes("SLURM_TASKS_PER_NODE", env)
        if len(nodes) != len(tasks):
            raise ConfigurationError(
                f"SLURM_TASKS_PER_NODE is {shown(env['SLURM_TASKS_PER_NODE'])}, expected numbers for "
                f"{counted(len(nodes), 'node')}"
            )
        return [Host(*place) for place in zip(nodes, tasks, strict=True)]
    except ConfigurationError as exc:
        raise click.UsageError(f"{exc}; or define the hosts with -np and -H") from exc


def task_notes(env: Mapping[str, str]) -> list[str]:
    """Return a warning if srun has started this command more than once; otherwise an empty list."""
    tasks = env.get("SLURM_STEP_NUM_TASKS", "1")
    if tasks == "1" or not _is_in_step(env):
        return []
    return [
        f"srun has started this command {tasks} times, each as a separate run; use ringtrain run without srun in "
        "the job's script to start ranks on all nodes of the job"
    ]


def _is_in_step(env: Mapping[str, str]) -> bool:
    """Return whether srun has started this command as a task of a job step."""
    step = env.get("SLURM_STEP_ID", "")
    return step.isdecimal() and int(step) < _OWN_STEPS


def place_ranks(hosts: list[Host], ranks: int, said: str) -> list[Host]:
    """Return `hosts` with as many slots as ranks run on them. A host is filled before the next one is used.

    `said`: origin of the hosts, for errors. Raises a usage error if there are too few slots, or if hosts would get
    different numbers of ranks.
    """
    merged: dict[str, Host] = {}
    for host in hosts:
        known = merged.get(host.name)
        if bool(host.site) != bool(hosts[0].site) or (known is not None and known.site != host.site):
            raise click.UsageError(
                f"{said}: {host.name} is at {host.site or 'no site'}, and {(known or hosts[0]).name} at "
                f"{(known or hosts[0]).site or 'no site'}; expected a site for each host, or none"
            )
        merged[host.name] = host if known is None else replace(known, slots=known.slots + host.slots)
    total = sum(host.slots for host in merged.values())
    if total < ranks:
        raise click.UsageError(
            f"{said}: the hosts have {counted(total, 'slot')}, but -np is {ranks}; expected as many slots, "
            f"such as {hosts[0].name}:{ranks}"
        )
    placed, left = [], ranks
    for host in merged.values():
        if count := min(host.slots, left):
            placed.append(replace(host, slots=count))
            left -= count
    counts = [host.slots for host in placed]
    if len(set(counts)) > 1:
        shares = ", ".join(f"{host.name} {host.slots}" for host in placed)
        raise click.UsageError(
            f"{said}: -np {ranks} ranks would be placed as {shares}; expected the same number of ranks on each host: "
            f"pass -np {min(counts) * len(placed)}, for example, or change the numbers of slots"
        )
    return placed
