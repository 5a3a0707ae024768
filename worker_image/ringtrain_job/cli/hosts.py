"""Which hosts a run has, and how many ranks each of them gets."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import click

from ringtrain.errors import ConfigurationError, shown
from ringtrain.shared.slurm import node_names, tasks_of_nodes
from ringtrain_job.launcher.hosts import is_host_name, own_names

_LINE = re.compile(
    r"(?P<host>\S+)(?:\s+slots\s*=\s*(?P<slots>\S+))?(?:\s+max_slots\s*=\s*\S+)?(?:\s+site\s*=\s*(?P<site>\S+))?"
)
_SLOTS = re.compile(r":\d*$")
# As the values of labels of Kubernetes' nodes.
_SITE = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?")
# From here on, ids of steps are those that SLURM gives its own: the script of a job, the shell of salloc.
_OWN_STEPS = 0xFFFF_FF00


@dataclass(frozen=True)
class Host:
    """A host, its slots, and the name of its site, if it has one."""

    name: str
    slots: int
    site: str = ""

    @property
    def is_here(self) -> bool:
        """Whether the name is one of this machine."""
        return self.name in own_names()


def find_hosts(text: str, hostfile: str | None, ranks: int, allocated: Sequence[Host] = ()) -> list[Host]:
    """The hosts of `ranks` ranks with as many slots as each gets ranks, from `-H text`, a hostfile, or what is
    `allocated`; without any of them it is this machine. Raises a usage error."""
    if text and hostfile:
        raise click.UsageError(f"-H {text} and --hostfile {hostfile}: both say where ranks are; leave one out")
    if hostfile:
        return place_ranks(read_hostfile(hostfile, ranks), ranks, f"--hostfile {hostfile}")
    hosts = parse_hosts(text, ranks)
    if hosts:
        return place_ranks(hosts, ranks, f"-H {text}")
    if allocated:
        return place_ranks(
            list(allocated), ranks, "SLURM's job has " + ",".join(f"{h.name}:{h.slots}" for h in allocated)
        )
    return [Host("localhost", ranks)]


def given_hosts(text: str, hostfile: str | None, ranks: int) -> list[Host]:
    """All hosts of `-H text` or of a hostfile, whether they get ranks or not. Raises a usage error."""
    return read_hostfile(hostfile, ranks) if hostfile and not text else parse_hosts(text, ranks)


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


def parse_hosts(text: str, ranks: int) -> list[Host]:
    """The hosts of `a:2,b:2`, or `a:2@site1,b:2@site2`. Raises a usage error, which shows what `ranks` ranks would
    need."""
    hosts = []
    for entry in filter(None, map(str.strip, text.split(","))):
        place, at, site = entry.rpartition("@")
        if not _SLOTS.search(place):  # a user's name
            place, at, site = entry, "", ""
        hosts.append(_host(f"-H {text}", *_parts(place), ranks, site if at else None))
    return hosts


def read_hostfile(path: str, ranks: int) -> list[Host]:
    """The hosts of a file with lines `host slots=2`. Raises a usage error that names the line."""
    try:
        lines = Path(path).read_text().splitlines()
    except (OSError, UnicodeError) as exc:
        why = exc.strerror if isinstance(exc, OSError) else "it is no text"
        raise click.UsageError(f"--hostfile {path}: {why}") from exc
    hosts = []
    for number, line in enumerate(lines, 1):
        if not (text := line.partition("#")[0].strip()):
            continue
        said, found = f"--hostfile {path}, line {number}", _LINE.fullmatch(text)
        if found is None:
            raise click.UsageError(f"{said}: {line!r}; expected host slots={ranks}")
        # Of more colons than one the name is an IPv6 address, where it stands in no brackets.
        whole = found["host"].count(":") > 1 and not found["host"].startswith("[")
        name, count = (found["host"], "") if whole else _parts(found["host"])
        if count and found["slots"]:
            raise click.UsageError(f"{said}: {text!r} says twice how many slots there are")
        hosts.append(_host(said, name, count or found["slots"] or "", ranks, found["site"]))
    if not hosts:
        raise click.UsageError(
            f"--hostfile {path}: there is no host in it; expected lines as localhost slots={ranks}"
        )
    return hosts


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


def _parts(entry: str) -> tuple[str, str]:
    if entry.startswith("["):  # an IPv6 address
        host, _, rest = entry[1:].partition("]")
        return host, rest.removeprefix(":")
    host, _, count = entry.partition(":")
    return host, count


def _host(said: str, name: str, count: str, ranks: int, site: str | None) -> Host:
    if count and not count.isdecimal():
        raise click.UsageError(f"{said}: {count!r} is not a number of slots; expected {name}:{ranks}")
    if not is_host_name(name):
        raise click.UsageError(f"{said}: {name!r} is no name of a host; expected localhost:{ranks}")
    if site is not None and not _SITE.fullmatch(site):
        raise click.UsageError(f"{said}: {site!r} is no name of a site; expected {name}:{ranks}@site1")
    return Host(name, int(count or 1), site or "")
