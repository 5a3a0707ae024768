"""Detection of commands, such as torchrun, that start ranks themselves and must not run once per rank."""

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


def launcher_of(command: Sequence[str]) -> str:
    """Return the launcher that `command` or its shell script runs on one node, such as torchrun; empty if none."""
    found = next((found for words in _commands(command) if (found := _launcher(words))), "")
    if found or not _is_script(command) or '"$@"' not in command[2]:
        return found
    # A shell may set variables before the command, by which torchrun finds the other nodes.
    inner = launcher_of(command[4:])
    return "" if inner == "torchrun" and "PET_NNODES=" in command[2] else inner


def _is_script(words: Sequence[str]) -> bool:
    return len(words) > 2 and PurePosixPath(words[0]).name in _SHELLS and bool(re.fullmatch(r"-\w*c", words[1]))


def _commands(command: Sequence[str]) -> list[list[str]]:
    """Return the command, or each command of a shell script, without variables, `exec` etc. before the program."""
    words = list(command)
    if _is_script(words):
        lexer = shlex.shlex(words[2].replace("\\\n", " ").replace("\n", " ; "), posix=True, punctuation_chars=True)
        lexer.whitespace_split = True
        try:
            words = list(lexer)
        except ValueError:  # an unclosed quote
            return []
    found: list[list[str]] = [[]]
    for word in words:
        if set(word) <= set(";&|"):
            found.append([])
        elif found[-1] or not _BEFORE.fullmatch(word):
            found[-1].append(word)
    return found


def _launcher(words: Sequence[str]) -> str:
    if not words or _has_several_nodes(words):
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


def _has_several_nodes(words: Sequence[str]) -> bool:
    """Return whether a launcher's options name several nodes. Then its ranks form one world."""
    for word, following in zip(words, [*words[1:], ""], strict=True):
        if (found := _NODES.fullmatch(word)) is not None:
            return (found[1] or following) not in ("1", "1:1")
    return False
