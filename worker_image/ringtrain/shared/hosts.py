"""Parser of lists of hosts with their numbers of ranks: `a:2,b:2`, or a hostfile."""

import re
import socket
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from ringtrain.errors import ConfigurationError

LOCAL: Final = "localhost"
# A name that begins with a dash would be an option of ssh.
_HOST: Final = re.compile(r"[A-Za-z0-9_:][A-Za-z0-9_.@%:-]*")
_LINE: Final = re.compile(
    r"(?P<host>\S+)(?:\s+slots\s*=\s*(?P<slots>\S+))?(?:\s+max_slots\s*=\s*\S+)?(?:\s+site\s*=\s*(?P<site>\S+))?"
)
_SLOTS: Final = re.compile(r":\d*$")
# Like the values of labels of Kubernetes nodes.
_SITE: Final = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?")


@dataclass(frozen=True)
class Host:
    """Host with `slots`, the number of ranks to run there, and the name of its site, if any."""

    name: str
    slots: int
    site: str = ""

    @property
    def is_here(self) -> bool:
        """Return whether this host is the local machine."""
        return self.name in own_names()


def own_names() -> frozenset[str]:
    """Return the names by which a list of hosts may mean the local machine."""
    name = socket.gethostname()
    return frozenset({LOCAL, "127.0.0.1", "::1", name, name.partition(".")[0]})


def is_host_name(text: str) -> bool:
    """Return whether `text` is safe and valid as a host name for ssh."""
    return _HOST.fullmatch(text) is not None


def read_hosts(option: str, text: str, ranks: int) -> list[Host]:
    """Return the hosts in `text`, such as `a:2,b:2` or `a:2@site1,b:2@site2`. `option`: named in errors.

    Raises ConfigurationError, with an example for `ranks` ranks.
    """
    hosts = []
    for entry in filter(None, map(str.strip, text.split(","))):
        place, at, site = entry.rpartition("@")
        if not _SLOTS.search(place):  # a user's name
            place, at, site = entry, "", ""
        hosts.append(_parsed_host(f"{option} {text}", *_host_entry_parts(place), ranks, site if at else None))
    return hosts


def read_hostfile(option: str, path: str, ranks: int) -> list[Host]:
    """Return the hosts in a file with lines such as `host slots=2`. Raises ConfigurationError for an invalid line, an
    unreadable file or one without hosts."""
    try:
        lines = Path(path).read_text().splitlines()
    except (OSError, UnicodeError) as exc:
        why = exc.strerror if isinstance(exc, OSError) else "it is not text"
        raise ConfigurationError(f"{option} {path}: {why}") from exc
    hosts = []
    for number, line in enumerate(lines, 1):
        if not (text := line.partition("#")[0].strip()):
            continue
        source, found = f"{option} {path}, line {number}", _LINE.fullmatch(text)
        if found is None:
            raise ConfigurationError(
                f"{source}: {line!r} is not a host; expected HOST slots=N, such as localhost slots={ranks}"
            )
        # A name with several colons and without brackets is an IPv6 address.
        whole = found["host"].count(":") > 1 and not found["host"].startswith("[")
        name, count = (found["host"], "") if whole else _host_entry_parts(found["host"])
        if count and found["slots"]:
            raise ConfigurationError(f"{source}: {text!r} has two numbers of slots; expected one")
        hosts.append(_parsed_host(source, name, count or found["slots"] or "", ranks, found["site"]))
    if not hosts:
        raise ConfigurationError(
            f"{option} {path}: the file has no host; expected lines such as localhost slots={ranks}"
        )
    return hosts


def _host_entry_parts(entry: str) -> tuple[str, str]:
    if entry.startswith("["):  # an IPv6 address
        host, _, rest = entry[1:].partition("]")
        return host, rest.removeprefix(":")
    host, _, count = entry.partition(":")
    return host, count


def _parsed_host(source: str, name: str, count: str, ranks: int, site: str | None) -> Host:
    if count and not count.isdecimal():
        raise ConfigurationError(f"{source}: {count!r} is not a number of slots; expected {name}:{ranks}")
    if not is_host_name(name):
        raise ConfigurationError(f"{source}: {name!r} is not a host name; expected localhost:{ranks}")
    if site is not None and not _SITE.fullmatch(site):
        raise ConfigurationError(f"{source}: {site!r} is not a site name; expected {name}:{ranks}@site1")
    return Host(name, int(count or 1), site or "")
