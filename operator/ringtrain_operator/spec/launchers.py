"""Programs that start ranks themselves: under the ring backend each rank would start a world of its own."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Sequence
from pathlib import PurePosixPath

from ..errors import Problem
from .job import JobSpec
from .template import containers_of

_MPI = frozenset({"mpirun", "mpiexec", "orterun", "prterun"})
_OTHERS = frozenset({"torchrun", "deepspeed", "horovodrun"})
_MODULES = {
    "torch.distributed.run": "torchrun",
    "torch.distributed.launch": "torchrun",
    "accelerate.commands.launch": "accelerate launch",
    "deepspeed.launcher.runner": "deepspeed",
}
# With these a launcher is told of the other nodes, and the launchers make one world.
_SPANS_NODES = re.compile(r"--(nnodes|node[-_]rank|rdzv[-_]\w+|num_machines|machine_rank)(=|$)")
_SHELLS = frozenset({"sh", "bash", "dash"})


def launcher_in(command: Sequence[str]) -> str:
    """The launcher that the command starts with, itself or in a shell's text; empty: none that stays alone."""
    words = list(command)
    if len(words) > 2 and PurePosixPath(words[0]).name in _SHELLS and re.fullmatch(r"-\w*c", words[1]):
        try:
            words = shlex.split(words[2])
        except ValueError:  # a quote without its end
            return ""
    if words[:1] == ["exec"]:
        words = words[1:]
    if not words or any(_SPANS_NODES.match(word) for word in words):
        return ""
    name = PurePosixPath(words[0]).name
    if name in _MPI | _OTHERS:
        return name
    if name == "accelerate" and words[1:2] == ["launch"]:
        return "accelerate launch"
    if re.fullmatch(r"python[\d.]*", name) and "-m" in words[:-1]:
        at = words.index("-m")
        return _MODULES.get(words[at + 1], "") if all(word.startswith("-") for word in words[1:at]) else ""
    return ""


def launcher_problems(spec: JobSpec) -> Iterator[Problem]:
    """A launcher as the program of a ring job with several ranks."""
    if spec.backend != "ring" or spec.slots * spec.worker.replicas < 2:
        return
    main = containers_of(spec.worker.template)[0]
    found = launcher_in([*(main.get("command") or []), *(main.get("args") or [])])
    if not found:
        return
    mpi = "; for a program of MPI set spec.backend: mpi" if found in _MPI | {"horovodrun"} else ""
    yield Problem(
        "spec.worker.template.spec.containers[0].command",
        f"starts {found}, and every rank would start a world of its own: leave {found} and its options out and "
        f"write the program that it starts (python train.py), which the agent starts once per rank{mpi}",
    )
