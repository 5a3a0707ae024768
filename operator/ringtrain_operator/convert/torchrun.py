"""torchrun: which program its command lines start, how often on each node, and what it is told by variables; and
variables of other operators, set from ours where a rank starts, since only the agent knows them.
"""

import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any

from ..errors import Invalid, Problem, shown

# Options without a value.
_FLAGS = {"--standalone", "--run-path", "--virtual-local-rank", "--module", "--no-python", "-m"}
_SHELLS = {"sh", "bash"}
_PYTHON = re.compile(r"python(\d+(\.\d+)?)?")
_MODULES = {"torch.distributed.run", "torch.distributed.launch"}
_PER_NODE = "--nproc-per-node"
# In a shell's text, outside of single quotes: what makes of a word something else than the word.
_EXPANDED = re.compile(r"[$`*?\[~]")
_QUOTED = re.compile(r"""("(?:\\.|[^"\\])*")|'[^']*'""")

# A torchrun that a script starts takes these for its options.
TORCHRUN = {
    "PET_NNODES": "$WORLD_SIZE",
    "PET_NODE_RANK": "$RANK",
    "PET_MASTER_ADDR": "$MASTER_ADDR",
    "PET_MASTER_PORT": "$MASTER_PORT",
}
# Of an elasticPolicy, by the variable that says it.
_ELASTIC = {"rdzvId": "PET_RDZV_ID", "maxRestarts": "PET_MAX_RESTARTS"}


@dataclass(frozen=True)
class Torchrun:
    """`program`: what each rank runs. `per_node`: --nproc-per-node, a number or auto, gpu, cpu; empty: not given.

    `own`: torchrun's own words.
    """

    program: tuple[str, ...]
    per_node: str
    own: tuple[str, ...]


def read_torchrun(command: Sequence[str]) -> Torchrun | None:
    """What the command says, None if it does not start with torchrun, itself or in a shell's single command.

    None as well where a shell has more to do than to start torchrun: other commands, redirections, variables
    among the program's words.
    """
    words, masked = list(command), [""] * len(command)
    if len(words) == 3 and PurePosixPath(words[0]).name in _SHELLS and words[1] == "-c":
        words, masked = _single_command(words[2])
    begun = _torchrun_starter(words)
    if not begun:
        return None
    used, program, per_node = _torchrun_options(words, begun)
    if any(_EXPANDED.search(word) for word in masked[used:]):
        return None
    return Torchrun((*program, *words[used:]), per_node, tuple(words[:used]))


def _torchrun_starter(words: Sequence[str]) -> int:
    """How many words call torchrun; 0: they call something else."""
    if not words:
        return 0
    name = PurePosixPath(words[0]).name
    if name == "torchrun":
        return 1
    module = words.index("-m") + 1 if "-m" in words else len(words)
    options = all(word.startswith("-") for word in words[1 : module - 1])
    is_module = module < len(words) and words[module] in _MODULES
    return module + 1 if _PYTHON.fullmatch(name) and options and is_module else 0


def _torchrun_options(words: Sequence[str], begun: int) -> tuple[int, list[str], str]:
    """How many words are torchrun's own, what stands before the program, and --nproc-per-node."""
    used, program, per_node = begun, ["python", "-u"], ""
    while used < len(words) and words[used].startswith("-"):
        given, equals, value = words[used].partition("=")
        used += 1
        if given == "--":
            break
        if not given.startswith("--") and len(given) > 2:  # -r3: a short option and its value
            continue
        option = given.replace("_", "-")
        if option in ("-m", "--module"):
            program.append("-m")
        elif option == "--no-python":
            program = []
        elif option not in _FLAGS and not equals and used < len(words):
            value = words[used]
            used += 1
        if len(option) > len("--np") and _PER_NODE.startswith(option):  # argparse takes beginnings of names
            per_node = value
    return used, program, per_node


def _single_command(text: str) -> tuple[list[str], list[str]]:
    """The words of a shell's single command, and the same without what is in single quotes; else nothing."""
    if "\n" in text.strip():
        return [], []
    try:
        words, masked = (
            _split_torchrun_command(text),
            _split_torchrun_command(_QUOTED.sub(lambda found: found[1] or "''", text)),
        )
    except ValueError:  # a quote without its end
        return [], []
    if any(word and set(word) <= set("();<>|&") for word in masked) or len(words) != len(masked):
        return [], []
    if words[:1] == ["exec"]:
        words, masked = words[1:], masked[1:]
    return words, masked


def _split_torchrun_command(text: str) -> list[str]:
    found = shlex.shlex(text, posix=True, punctuation_chars=True)
    found.whitespace_split = True
    found.commenters = ""
    return list(found)


def torch_ranks(
    command: list[str], spec: Mapping[str, Any], devices: Mapping[str, int], notes: list[str]
) -> tuple[list[str], int]:
    """The command of a rank of a PyTorchJob, and how many ranks a pod has: torchrun's where it starts the program,
    else one.
    """
    elastic = spec.get("elasticPolicy") or {}
    wanted = str(elastic.get("nProcPerNode") or spec.get("nprocPerNode") or "auto")
    used = {"nProcPerNode", *(_ELASTIC if not (found := read_torchrun(command)) else ())}
    notes += [
        f"spec.elasticPolicy.{name} is left out: the job has its workers from start to end, and starts again "
        "where one is lost; see spec.elastic"
        for name in sorted(set(elastic) - used)
    ]
    if found:
        notes.append(f"{' '.join(found.own)} is left out, and PET_* are not set: the agent starts every rank")
        return list(found.program), _torchrun_ranks(found.per_node or wanted, devices)
    given = {**TORCHRUN, "PET_NPROC_PER_NODE": quoted_command_word(wanted)}
    if wanted.isdecimal() and int(wanted) > 1:
        given["WORLD_SIZE"] = f"$((WORLD_SIZE * {wanted}))"
    if elastic:
        given |= {"PET_RDZV_BACKEND": quoted_command_word(elastic.get("rdzvBackend") or "c10d")}
        given |= {"PET_RDZV_ENDPOINT": "$MASTER_ADDR:$MASTER_PORT"}
        given |= {
            name: quoted_command_word(elastic[key]) for key, name in _ELASTIC.items() if elastic.get(key) is not None
        }
    return give_torchrun_variables(command, given, notes), 1


def _torchrun_ranks(wanted: str, devices: Mapping[str, int]) -> int:
    if wanted.isdecimal():
        return int(wanted[:19])
    if devices and wanted in ("auto", "gpu"):
        return max(devices.values())
    why = "one process for each CPU of the node, which can't be seen from here"
    raise Invalid([Problem("spec.nprocPerNode", f"is {shown(wanted)}: {why}; write the number")])


def give_torchrun_variables(command: Sequence[str], variables: Mapping[str, str], notes: list[str]) -> list[str]:
    """The command, started with `variables`, whose values a shell expands from those of the agent."""
    if not variables:
        return list(command)
    notes.append(f"{', '.join(variables)} are set from the agent's variables by a sh in front of the command")
    text = " ".join(f'{name}="{value}"' for name, value in variables.items())
    return ["sh", "-c", f'export {text}; exec "$@"', "sh", *command]


def quoted_command_word(value: object) -> str:
    """`value` as a shell has it between double quotes."""
    return re.sub(r'([\\"$`])', r"\\\1", str(value))


def expanded_by_kubernetes(container: Mapping[str, object], names: Sequence[str]) -> str:
    """The first `$(NAME)` of `names` in a container: the pod is made before the agent knows it. Empty: none."""
    text = str([container.get(field) for field in ("command", "args", "env")])
    found = re.search(rf"\$\(({'|'.join(map(re.escape, names))})\)", text)
    return found[0] if found else ""
