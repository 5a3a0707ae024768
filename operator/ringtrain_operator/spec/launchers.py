"""Programs that start ranks themselves: under the ring backend each rank would start a world of its own."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Sequence
from pathlib import PurePosixPath

from ..errors import Problem
from .job import JobSpec
from .template import containers_of

MPI = frozenset({"mpirun", "mpiexec", "orterun", "prterun"})
_OTHERS = frozenset({"torchrun", "deepspeed", "horovodrun"})
_MODULES = {
    "torch.distributed.run": "torchrun",
    "torch.distributed.launch": "torchrun",
    "accelerate.commands.launch": "accelerate launch",
    "deepspeed.launcher.runner": "deepspeed",
}
_NODES = re.compile(r"--(?:nnodes|num_machines)(?:=(.+)|)")
_BEFORE = re.compile(r"exec|env|time|nohup|\w+=.*")
_SHELLS = frozenset({"sh", "bash", "dash"})


def launcher_in(command: Sequence[str]) -> str:
    """The launcher that the command starts, itself or in a shell's text; empty: none that stays alone."""
    return next((found for words in _commands(command) if (found := _launcher(words))), "")


def _commands(command: Sequence[str]) -> list[list[str]]:
    """The command, or those of a shell's text, without what stands before a program's name."""
    words = list(command)
    if len(words) > 2 and PurePosixPath(words[0]).name in _SHELLS and re.fullmatch(r"-\w*c", words[1]):
        lexer = shlex.shlex(words[2].replace("\\\n", " ").replace("\n", " ; "), posix=True, punctuation_chars=True)
        lexer.whitespace_split = True
        try:
            words = list(lexer)
        except ValueError:  # a quote without its end
            return []
    found: list[list[str]] = [[]]
    for word in words:
        if set(word) <= set(";&|"):
            found.append([])
        elif found[-1] or not _BEFORE.fullmatch(word):
            found[-1].append(word)
    return found


def _launcher(words: Sequence[str]) -> str:
    if not words or _has_other_nodes(words):
        return ""
    name = PurePosixPath(words[0]).name
    if name in MPI | _OTHERS:
        return name
    if name == "accelerate" and words[1:2] == ["launch"]:
        return "accelerate launch"
    if re.fullmatch(r"python[\d.]*", name) and "-m" in words[:-1]:
        at = words.index("-m")
        return _MODULES.get(words[at + 1], "") if all(word.startswith("-") for word in words[1:at]) else ""
    return ""


def _has_other_nodes(words: Sequence[str]) -> bool:
    """Whether the launcher is told that there are others, with which it makes one world."""
    for word, following in zip(words, [*words[1:], ""], strict=True):
        if (found := _NODES.fullmatch(word)) is not None:
            return (found[1] or following) not in ("1", "1:1")
    return False


def launcher_problems(spec: JobSpec) -> Iterator[Problem]:
    """A launcher as the program of a ring job with several ranks."""
    if spec.backend != "ring" or spec.slots * spec.worker.replicas < 2:
        return
    main = containers_of(spec.worker.template)[0]
    found = launcher_in([*(main.get("command") or []), *(main.get("args") or [])])
    if not found:
        return
    mpi = "; for a program of MPI set spec.backend: mpi" if found in MPI | {"horovodrun"} else ""
    yield Problem(
        "spec.worker.template.spec.containers[0].command",
        f"starts {found}, and every rank would start a world of its own: leave {found} and its options out and "
        f"write the program that it starts (python train.py), which the agent starts once per rank{mpi}",
    )
