"""torchrun's command lines: which program is started, and how often on each node."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath

# Options without a value.
_FLAGS = {"--standalone", "--run-path", "--run_path"}
_SHELLS = {"sh", "bash"}


@dataclass(frozen=True)
class Torchrun:
    """`program`: what each rank runs. `per_node`: --nproc-per-node, a number or auto, gpu, cpu; empty: not given.

    `own`: torchrun's own words.
    """

    program: tuple[str, ...]
    per_node: str
    own: tuple[str, ...]


def read_torchrun(command: Sequence[str]) -> Torchrun | None:
    """What the command says, None if it does not start with torchrun, itself or in a shell's single command."""
    words = list(command)
    if len(words) == 3 and PurePosixPath(words[0]).name in _SHELLS and words[1] == "-c":
        words = shlex.split(words[2])
    if not words or PurePosixPath(words[0]).name != "torchrun":
        return None
    rest, program, per_node = words[1:], ["python", "-u"], ""
    while rest and rest[0].startswith("-"):
        option, _, value = rest.pop(0).partition("=")
        if option in ("-m", "--module"):
            program.append("-m")
        elif option in ("--no-python", "--no_python"):
            program = []
        elif option not in _FLAGS:
            value = value or (rest.pop(0) if rest else "")
        if option.replace("_", "-") == "--nproc-per-node":
            per_node = value
    return Torchrun((*program, *rest), per_node, tuple(words[: len(words) - len(rest)]))
