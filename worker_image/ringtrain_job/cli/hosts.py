"""Which hosts a run has, and how many ranks each of them gets."""

import re
from dataclasses import dataclass, replace
from pathlib import Path

import click

from ringtrain_job.launcher.discovery import own_names

_LINE = re.compile(r"(?P<host>\S+)(?:\s+slots\s*=\s*(?P<slots>\S+))?(?:\s+max_slots\s*=\s*\S+)?")
# A name that begins with a dash would be an option of ssh.
_HOST = re.compile(r"[A-Za-z0-9_:][A-Za-z0-9_.@%:-]*")


@dataclass(frozen=True)
class Host:
    """A host and its slots."""

    name: str
    slots: int

    @property
    def is_here(self) -> bool:
        """Whether the name is one of this machine."""
        return self.name in own_names()


def find_hosts(text: str, hostfile: str | None, ranks: int) -> list[Host]:
    """The hosts of `ranks` ranks with as many slots as each gets ranks, from `-H text` or a hostfile; without
    either it is this machine. Raises a usage error."""
    if text and hostfile:
        raise click.UsageError(f"-H {text} and --hostfile {hostfile}: both say where ranks are; leave one out")
    if hostfile:
        return place_ranks(read_hostfile(hostfile, ranks), ranks, f"--hostfile {hostfile}")
    hosts = parse_hosts(text, ranks)
    return place_ranks(hosts, ranks, f"-H {text}") if hosts else [Host("localhost", ranks)]


def parse_hosts(text: str, ranks: int) -> list[Host]:
    """The hosts of `a:2,b:2`. Raises a usage error, which shows what `ranks` ranks would need."""
    return [_host(f"-H {text}", *_parts(entry), ranks) for entry in filter(None, map(str.strip, text.split(",")))]


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
        hosts.append(_host(said, name, count or found["slots"] or "", ranks))
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
        merged[host.name] = host if known is None else replace(known, slots=known.slots + host.slots)
    total = sum(host.slots for host in merged.values())
    if total < ranks:
        raise click.UsageError(f"{said}: {total} slots for {ranks} ranks; expected {hosts[0].name}:{ranks}")
    placed, left = [], ranks
    for host in merged.values():
        if count := min(host.slots, left):
            placed.append(Host(host.name, count))
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


def _host(said: str, name: str, count: str, ranks: int) -> Host:
    if count and not count.isdecimal():
        raise click.UsageError(f"{said}: {count!r} is not a number of slots; expected {name}:{ranks}")
    if not _HOST.fullmatch(name):
        raise click.UsageError(f"{said}: {name!r} is no name of a host; expected localhost:{ranks}")
    return Host(name, int(count or 1))
