"""Programs that start ranks themselves: each of several ranks would start a world of its own."""

import re
import shlex
from collections.abc import Sequence
from pathlib import PurePosixPath

MPI = frozenset({"mpirun", "mpiexec", "orterun", "prterun"})
_OTHERS = frozenset({"torchrun", "deepspeed", "horovodrun"})
_MODULES = {
    "torch.distributed.run": "torchrun",
    "torch.distributed.launch": "torchrun",
    "accelerate.commands.launch": "accelerate launch",
    "deepspeed.launcher.runner": "deepspeed",
}
_NODES = re.compile(r"--(?:nnodes|num_machines|num_nodes)(?:=(.+)|)")
_BEFORE = re.compile(r"exec|env|time|nohup|\w+=.*")
_SHELLS = frozenset({"sh", "bash", "dash"})


def launcher_in(command: Sequence[str]) -> str:
    """The launcher that the command starts, itself or in a shell's text; empty: none that stays alone."""
    found = next((found for words in _commands(command) if (found := _launcher(words))), "")
    if found or not _is_script(command) or '"$@"' not in command[2]:
        return found
    # A shell that sets variables in front of the command: torchrun may find the other nodes by them.
    inner = launcher_in(command[4:])
    return "" if inner == "torchrun" and "PET_NNODES=" in command[2] else inner


def _is_script(words: Sequence[str]) -> bool:
    return len(words) > 2 and PurePosixPath(words[0]).name in _SHELLS and bool(re.fullmatch(r"-\w*c", words[1]))


def _commands(command: Sequence[str]) -> list[list[str]]:
    """The command, or those of a shell's text, without what stands before a program's name."""
    words = list(command)
    if _is_script(words):
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
