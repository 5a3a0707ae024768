"""Parser of SLURM's variables for the nodes of a job and the number of tasks on each."""

import re
from collections.abc import Iterator, Mapping

from ringtrain.errors import ConfigurationError, shown

_ENTRY = re.compile(r"(?:[^,\[]|\[[^\]]*\])+")
_RANGES = re.compile(r"\[([^\]]*)\]")
_RANGE = re.compile(r"(\d+)(?:-(\d+))?")
_TASKS = re.compile(r"(\d+)(?:\(x(\d+)\))?")


def node_names(variable: str, env: Mapping[str, str]) -> list[str]:
    """Return the nodes in a variable in SLURM's short form, such as `gpu[01-03,7],login`.

    Raises ConfigurationError, which names `variable`.
    """
    text = env.get(variable, "")
    names = [name for entry in _ENTRY.findall(text) for name in _expanded_node_names(entry, variable, text)]
    if not names:
        raise ConfigurationError(f'{variable} is "{shown(text)}"; expected names of nodes, such as gpu[01-04]')
    return names


def tasks_of_nodes(variable: str, env: Mapping[str, str]) -> list[int]:
    """Return the number of tasks on each node, from SLURM's short form: `2(x3),1` is [2, 2, 2, 1]."""
    counts: list[int] = []
    for entry in env.get(variable, "").split(","):
        if not (found := _TASKS.fullmatch(entry)):
            text = shown(env.get(variable, ""))
            raise ConfigurationError(f'{variable} is "{text}"; expected numbers of tasks, such as 2(x3),1')
        counts += [int(found[1])] * int(found[2] or 1)
    return counts


def _expanded_node_names(entry: str, variable: str, text: str) -> Iterator[str]:
    if not (bracket := _RANGES.search(entry)):
        yield entry
        return
    for part in bracket[1].split(","):
        if not (found := _RANGE.fullmatch(part)):
            raise ConfigurationError(f'{variable} is "{shown(text)}", where "{shown(part)}" is not a range of numbers')
        first, last = found[1], found[2] or found[1]
        for number in range(int(first), int(last) + 1):
            rest = f"{entry[: bracket.start()]}{number:0{len(first)}d}{entry[bracket.end() :]}"
            yield from _expanded_node_names(rest, variable, text)
