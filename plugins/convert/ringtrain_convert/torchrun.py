"""Analysis of torchrun's command lines (program, ranks per node, variables), and variables of other operators, which
are set from ours when a rank starts, because only the agent knows them."""

import re
import shlex
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any, NamedTuple

from ringtrain_operator.errors import Invalid, Problem, shown

# Options without a value.
_FLAGS = {"--standalone", "--run-path", "--virtual-local-rank", "--module", "--no-python", "-m"}
_SHELLS = {"sh", "bash"}
_PYTHON = re.compile(r"python(\d+(\.\d+)?)?")
_MODULES = {"torch.distributed.run", "torch.distributed.launch"}
_PER_NODE = "--nproc-per-node"
TORCHRUN_OPTION = f"torchrun's {_PER_NODE}"
# Characters outside of single quotes that a shell expands.
_EXPANDED = re.compile(r"[$`*?\[~]")
_QUOTED = re.compile(r"""("(?:\\.|[^"\\])*")|'[^']*'""")

# Read as options by a torchrun that a script starts.
TORCHRUN = {
    "PET_NNODES": "$WORLD_SIZE",
    "PET_NODE_RANK": "$RANK",
    "PET_MASTER_ADDR": "$MASTER_ADDR",
    "PET_MASTER_PORT": "$MASTER_PORT",
}
# Default of the training operator, for all its kinds.
_DEFAULT_PORT = 23456
# Fields of an elasticPolicy, with their variables.
_ELASTIC = {"rdzvId": "PET_RDZV_ID", "maxRestarts": "PET_MAX_RESTARTS"}


@dataclass(frozen=True)
class Torchrun:
    """Parsed torchrun command. `program`: command of each rank. `per_node`: --nproc-per-node, a number or auto, gpu,
    cpu; empty: absent.

    `own`: torchrun's own words.
    """

    program: tuple[str, ...]
    per_node: str
    own: tuple[str, ...]


def read_torchrun(command: Sequence[str]) -> Torchrun | None:
    """Parse the command; None if it does not start with torchrun, directly or as a shell's single command.

    Also None if a shell does more than start torchrun: other commands, redirections, variables in the program's words.
    """
    words, masked = list(command), [""] * len(command)
    if len(words) == 3 and PurePosixPath(words[0]).name in _SHELLS and words[1] == "-c":
        words, masked = _single_command(words[2])
    begun = _torchrun_starter(words)
    if not begun:
        return None
    used, program, per_node = _torchrun_options(words, begun)
    if program:
        program = [_rank_interpreter(words[0]), *program[1:]]
    if any(_EXPANDED.search(word) for word in masked[used:]):
        return None
    return Torchrun((*program, *words[used:]), per_node, tuple(words[:used]))


def _torchrun_starter(words: Sequence[str]) -> int:
    """Return the number of words that call torchrun; 0 if they call another program."""
    if not words:
        return 0
    name = PurePosixPath(words[0]).name
    if name == "torchrun":
        return 1
    module = words.index("-m") + 1 if "-m" in words else len(words)
    options = all(word.startswith("-") for word in words[1 : module - 1])
    is_module = module < len(words) and words[module] in _MODULES
    return module + 1 if _PYTHON.fullmatch(name) and options and is_module else 0


def _rank_interpreter(starter: str) -> str:
    """Return the Python for ranks, which is torchrun's own: its interpreter, or that of its folder."""
    path = PurePosixPath(starter)
    if _PYTHON.fullmatch(path.name):
        return starter
    return str(path.parent / "python3") if "/" in starter else "python"


def _torchrun_options(words: Sequence[str], begun: int) -> tuple[int, list[str], str]:
    """Return the number of torchrun's own words, the words before the program, and --nproc-per-node."""
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
        if len(option) > len("--np") and _PER_NODE.startswith(option):  # argparse accepts abbreviations
            per_node = value
    return used, program, per_node


def _single_command(text: str) -> tuple[list[str], list[str]]:
    """Return the words of a shell's single command, and the same without single-quoted text; empty for other text."""
    if "\n" in text.strip():
        return [], []
    try:
        words, masked = (
            _split_torchrun_command(text),
            _split_torchrun_command(_QUOTED.sub(lambda found: found[1] or "''", text)),
        )
    except ValueError:  # an unterminated quote
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
    """Return the command of a rank of a PyTorchJob, and the number of ranks in a pod: torchrun's number if torchrun
    starts the program, else one."""
    elastic = spec.get("elasticPolicy") or {}
    of_policy = Given(elastic.get("nProcPerNode"), "spec.elasticPolicy.nProcPerNode")
    asked = first_given(of_policy, Given(spec.get("nprocPerNode"), "spec.nprocPerNode"))
    wanted = str(asked.value or "auto")
    if found := read_torchrun(command):
        notes += _elastic_notes(elastic, {"nProcPerNode"})
        notes.append(f"{' '.join(found.own)} is left out, and PET_* are not set: the agent starts every rank")
        asked = first_given(Given(found.per_node, TORCHRUN_OPTION), asked)
        if asked.value is None and not gpus_among(devices):
            message = "has no nprocPerNode; torchrun then starts one process for each CPU of the node; write the number"
            raise Invalid([Problem("spec", message)])
        return list(found.program), torchrun_ranks(str(asked.value or "auto"), gpus_among(devices), asked.path)
    given = {**TORCHRUN, "PET_NPROC_PER_NODE": quoted_command_word(wanted)}
    if wanted.isdecimal() and int(wanted) > 1:
        given["WORLD_SIZE"] = f"$((WORLD_SIZE * {wanted}))"
    rendezvous = _rendezvous_variables(elastic) if elastic else {}
    notes += _elastic_notes(elastic, {"nProcPerNode", *rendezvous})
    given |= {name: value for of_field in rendezvous.values() for name, value in of_field.items()}
    return give_torchrun_variables(command, given, notes), 1


def _rendezvous_variables(elastic: Mapping[str, Any]) -> dict[str, dict[str, str]]:
    """Return the variables for each field of an elasticPolicy, through which a torchrun in a script finds its peers
    (pytorch/elastic.go of the training operator). The host of c10d is a node of the job, here worker 0; another backend
    is a service."""
    backend = str(elastic.get("rdzvBackend") or "c10d")
    made = {"rdzvBackend": {"PET_RDZV_BACKEND": quoted_command_word(backend)}}
    if backend == "c10d" or not elastic.get("rdzvHost"):
        made["rdzvBackend"]["PET_RDZV_ENDPOINT"] = "$MASTER_ADDR:$MASTER_PORT"
    else:
        endpoint = f"{elastic['rdzvHost']}:{elastic.get('rdzvPort') or _DEFAULT_PORT}"
        made |= {"rdzvHost": {"PET_RDZV_ENDPOINT": quoted_command_word(endpoint)}, "rdzvPort": {}}
    if pairs := elastic.get("rdzvConf"):
        words = ",".join(f"{pair.get('key')}={pair.get('value')}" for pair in pairs)
        made["rdzvConf"] = {"PET_RDZV_CONF": quoted_command_word(words)}
    for key, name in _ELASTIC.items():
        if elastic.get(key) is not None:
            made[key] = {name: quoted_command_word(elastic[key])}
    return made


def _elastic_notes(elastic: Mapping[str, Any], used: Collection[str]) -> Iterator[str]:
    """Yield a note for each unused field of an elasticPolicy."""
    for name in sorted(set(elastic) - set(used)):
        why = (
            "the rendezvous is at worker 0, by MASTER_ADDR and MASTER_PORT"
            if name.startswith("rdzv")
            else "the job has its workers from start to end, and starts again where one is lost; see spec.elastic"
        )
        yield f"spec.elasticPolicy.{name} is left out: {why}"


def gpus_among(devices: Mapping[str, int]) -> int:
    """Count the GPUs among a pod's devices, without network adapters, of which there may be more."""
    named = [count for name, count in devices.items() if "gpu" in name.lower()]
    # Parts of a GPU (nvidia.com/mig-1g.5gb) are GPUs to CUDA.
    return max(named or [count for name, count in devices.items() if name.startswith("nvidia.com/")], default=0)


class Given(NamedTuple):
    """A value, None if it is not given, and the field that has it."""

    value: Any
    path: str


def first_given(*places: Given) -> Given:
    """Return the first that is given, else the last."""
    return next((one for one in places if one.value), places[-1]._replace(value=None))


def torchrun_ranks(wanted: str, gpus: int, path: str) -> int:
    """Return the number of ranks for torchrun's --nproc-per-node and this number of `gpus`. Raises Invalid."""
    if wanted.isdecimal():
        return int(wanted[:19])
    if gpus and wanted in ("auto", "gpu"):
        return gpus
    what = "as many processes as the node has GPUs" if wanted == "gpu" else "one process for each CPU of the node"
    raise Invalid([Problem(path, f"is {shown(wanted)}: {what}, which can't be seen from here; write the number")])


def give_torchrun_variables(command: Sequence[str], variables: Mapping[str, str], notes: list[str]) -> list[str]:
    """Return the command, started with `variables`, whose values a shell expands from the agent's variables."""
    if not variables:
        return list(command)
    notes.append(f"{', '.join(variables)} are set from the agent's variables by a sh in front of the command")
    text = " ".join(f'{name}="{value}"' for name, value in variables.items())
    return ["sh", "-c", f'export {text}; exec "$@"', "sh", *command]


def quoted_command_word(value: object) -> str:
    """Quote `value` for use between a shell's double quotes."""
    return re.sub(r'([\\"$`])', r"\\\1", str(value))


def expanded_by_kubernetes(container: Mapping[str, object], names: Sequence[str]) -> str:
    """Return the first `$(NAME)` of `names` in a container, which Kubernetes would expand before the agent sets it;
    empty if there is none."""
    text = str([container.get(field) for field in ("command", "args", "env")])
    found = re.search(rf"\$\(({'|'.join(map(re.escape, names))})\)", text)
    return found[0] if found else ""
