"""Parser of torchrun's command lines, and variables of other operators that are set when a rank starts."""

import re
import shlex
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any

from ringtrain_convert.mpijob import whole_field
from ringtrain_convert.source_labels import texts_of
from ringtrain_operator.errors import counted

# Options without a value.
_FLAGS = {"--standalone", "--run-path", "--virtual-local-rank", "--module", "--no-python", "-m"}
_SHELLS = {"sh", "bash"}
_PYTHON = re.compile(r"python(\d+(\.\d+)?)?")
_MODULES = {"torch.distributed.run", "torch.distributed.launch"}
_PER_NODE = "--nproc-per-node"
# Only a range, such as 2:4, lets torchrun change the number of nodes.
_NODES = re.compile(r"""--nnodes[= ]+["']?([^\s"'\\]+)""")
# Characters outside of single quotes that a shell expands.
_EXPANDED = re.compile(r"[$`*?\[~]")
_QUOTED = re.compile(r"""("(?:\\.|[^"\\])*")|'[^']*'""")

# Devices of torch_xla, which joins processes by a variable of torchrun (torch_xla/_internal/rendezvous.py).
_XLA = re.compile(r"neuron|/tpu\b")

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
# Variables that the agent sets for a rank, and references to variables as Kubernetes expands them.
AGENT = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "TF_CONFIG")
_REFERENCE = re.compile(r"(?<!\$)\$\(([A-Za-z_]\w*)\)")


@dataclass(frozen=True)
class Torchrun:
    """A parsed torchrun command. `program`: each rank's command. `per_node`: value of --nproc-per-node, or empty.

    `own`: words before the program: torchrun and its options.
    """

    program: tuple[str, ...]
    per_node: str
    own: tuple[str, ...]


def read_torchrun(command: Sequence[str]) -> Torchrun | None:
    """Parse a torchrun command. Returns None if neither the command nor the only command of its shell is one.

    Also returns None if a shell has other commands or redirections, or if the program's words contain variables.
    """
    words, masked = list(command), [""] * len(command)
    if len(words) == 3 and PurePosixPath(words[0]).name in _SHELLS and re.fullmatch("-[eux]*c", words[1]):
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
    """Return how many words at the start call torchrun; 0 if they call another program."""
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
    """Return the path of the Python interpreter for ranks, which is the one that runs torchrun."""
    path = PurePosixPath(starter)
    if _PYTHON.fullmatch(path.name):
        return starter
    return str(path.parent / "python3") if "/" in starter else "python"


def _torchrun_options(words: Sequence[str], begun: int) -> tuple[int, list[str], str]:
    """Return three values: the number of words before the program, the words that a rank's command needs before the
    program (such as `python -u -m`), and the value of --nproc-per-node. `begun`: number of words that call torchrun."""
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
    """Return two lists with the words of a script's only command: complete, and with single-quoted text replaced by ''.
    Both lists are empty if the script is not a single command."""
    text = text.replace("\\\n", " ")
    if "\n" in text.strip():
        return [], []
    try:
        words = _split_torchrun_command(text)
        masked = _split_torchrun_command(_QUOTED.sub(lambda found: found[1] or "''", text))
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
    """Return the command of a PyTorchJob's rank, and the ranks per pod: torchrun's number, or 1 if it is unknown."""
    elastic = spec.get("elasticPolicy") or {}
    wanted = str(elastic.get("nProcPerNode") or spec.get("nprocPerNode") or "auto")
    ranks, program = counted_torchrun(command, wanted, devices, notes)
    if ranks:
        notes += _elastic_notes(elastic, {"nProcPerNode"})
        return program, ranks
    given = {**TORCHRUN, "PET_NPROC_PER_NODE": quoted_command_word(wanted)}
    if wanted.isdecimal() and int(wanted) > 1:
        given["WORLD_SIZE"] = f"$((WORLD_SIZE * {wanted}))"
    rendezvous = _rendezvous_variables(elastic) if elastic else {}
    notes += _elastic_notes(elastic, {"nProcPerNode", *rendezvous})
    given |= {name: value for of_field in rendezvous.values() for name, value in of_field.items()}
    return give_torchrun_variables(command, given, notes), 1


def counted_torchrun(
    command: Sequence[str], wanted: str, devices: Mapping[str, int], notes: list[str]
) -> tuple[int, list[str]]:
    """Return how many ranks a torchrun command starts in a pod, and the command of a rank.

    `wanted`: --nproc-per-node if the command does not set it. Returns (0, []) if `command` does not run torchrun, or if
    torchrun must start the ranks.
    """
    found = read_torchrun(command)
    if found is None:
        return 0, []
    ranks, per_node = torchrun_ranks(found.per_node or wanted, gpus_among(devices)), found.per_node or wanted
    of_xla = [name for name in devices if _XLA.search(name)]
    of_agent = {name for word in found.program for name in _REFERENCE.findall(word)} & {*AGENT, *TORCHRUN}
    if ranks and not of_agent and not of_xla:
        notes.append(f"{' '.join(found.own)} is left out, and PET_* are not set: the agent starts every rank")
        return ranks, list(found.program)
    reads = f"its program reads {', '.join(sorted(of_agent))} of the node"
    if of_xla:
        reads = f"with {of_xla[0]}, torch_xla needs TORCHELASTIC_RUN_ID, which only torchrun sets"
    why = reads if ranks else f"the number of its processes ({per_node}) is known only on the node"
    notes.append(f"torchrun stays the process of each pod, and slotsPerWorker is 1: {why}")
    return 0, []


def elastic_section(spec: Mapping[str, Any], workers: int, notes: list[str]) -> dict[str, Any]:
    """Return `spec.elastic` for the elasticPolicy of a PyTorchJob; empty if the job's size never changes."""
    policy, path = spec.get("elasticPolicy") or {}, "spec.elasticPolicy"
    names = [name for name in ("minReplicas", "maxReplicas") if policy.get(name) is not None]
    sizes = [whole_field(policy[name], f"{path}.{name}") for name in names]
    if not sizes or sizes[0] == sizes[-1] == workers:
        return {}
    found = _NODES.search(" ".join(texts_of(spec.get("pytorchReplicaSpecs"))))
    if found and ":" not in found[1]:
        differs = found[1].isdecimal() and int(found[1]) != workers
        own = f"; the job has {counted(workers, 'pod')}: make both equal" if differs else ""
        notes.append(f"{path} is left out: torchrun has {found[0]}, so the number of nodes never changes{own}")
        return {}
    least, most = sizes[0], sizes[-1]  # one stands for both (pytorch_defaults.go)
    if not least <= workers <= most:
        notes.append(f"{path} is left out: the job has {counted(workers, 'pod')}, expected {least} to {most}")
        return {}
    notes.append(f"{path} becomes elastic: with {least} to {most} workers, and onLoss: Restart, as torchrun does")
    return {"elastic": {"minReplicas": least, "maxReplicas": most, "onLoss": "Restart"}}


def _rendezvous_variables(elastic: Mapping[str, Any]) -> dict[str, dict[str, str]]:
    """Return, by field of an elasticPolicy, the variables by which a torchrun in a script finds its peers."""
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
    """Yield a note about fields of an elasticPolicy that are not used, one for each reason."""
    left = set(elastic) - {*used, "minReplicas", "maxReplicas", "metrics"}
    if "maxRestarts" in left:
        why = "the whole gang starts again, runPolicy.backoffLimit times at most"
        yield f"spec.elasticPolicy (maxRestarts) is left out: {why}"
    if others := ", ".join(sorted(left - {"maxRestarts"})):
        why = "the rendezvous is at worker 0, by MASTER_ADDR and MASTER_PORT"
        yield f"spec.elasticPolicy ({others}) is left out: {why}"


def gpus_among(devices: Mapping[str, int]) -> int:
    """Return the number of GPUs among a pod's devices. Network adapters are devices, too, and do not count."""
    named = [count for name, count in devices.items() if "gpu" in name.lower()]
    # Parts of a GPU (nvidia.com/mig-1g.5gb) are GPUs to CUDA.
    return max(named or [count for name, count in devices.items() if name.startswith("nvidia.com/")], default=0)


def torchrun_ranks(wanted: str, gpus: int) -> int:
    """Return the number of ranks for --nproc-per-node `wanted` and a number of GPUs; 0 if only the node knows it."""
    if wanted.isdecimal():
        return int(wanted[:19])
    return gpus if wanted in ("auto", "gpu") else 0


def hosts_of_ranks(fields: str) -> str:
    """Return a shell's text for a comma-separated list of hosts. `fields`: their places from 1, as cut's option -f."""
    return f"$(echo $RINGTRAIN_RING_ADDRESSES, | cut -d, -f{fields} | sed 's/:[0-9]*,/,/g; s/:[0-9]*$//; s/,$//')"


def give_torchrun_variables(command: Sequence[str], variables: Mapping[str, str], notes: list[str]) -> list[str]:
    """Return the command with `variables` set before it. A shell expands the agent's variables in their values.

    The shell also expands `$(NAME)` of these and of the agent's variables, which Kubernetes expands in the source.
    """
    words = {number: _expanded_word(word, variables) for number, word in enumerate(command, 1)}
    expanded = {number: word for number, word in words.items() if word}
    text = "export " + " ".join(f'{name}="{value}"' for name, value in variables.items()) + "; " if variables else ""
    if expanded:
        names = sorted({name for number in expanded for name in _REFERENCE.findall(command[number - 1])})
        notes.append(f"{', '.join(f'$({name})' for name in names)} in the command: a sh in front of it expands them")
        text += "set -- " + " ".join(f'"{word or f"${{{number}}}"}"' for number, word in words.items()) + "; "
    if variables:
        are = "is" if len(variables) == 1 else "are"
        notes.append(f"{', '.join(variables)} {are} set from the agent's variables by a sh in front of the command")
    plain = [_REFERENCE.sub(r"${\1}", word) if expanded.get(number) else word for number, word in enumerate(command, 1)]
    return ["sh", "-c", f'{text}exec "$@"', "sh", *plain] if text else list(command)


def _expanded_word(word: str, variables: Collection[str]) -> str:
    """Return the word for a shell's double quotes; empty if it refers to no variable or to an unknown one."""
    parts = _REFERENCE.split(word)
    names = parts[1::2]
    if not names or set(names) - {*AGENT, *variables}:
        return ""
    texts = [quoted_command_word(part) for part in parts[::2]]
    return texts[0] + "".join(f"${{{name}}}{text}" for name, text in zip(names, texts[1:], strict=True))


def quoted_command_word(value: object) -> str:
    """Return `value` escaped so that it can stand between a shell's double quotes."""
    return re.sub(r'([\\"$`])', r"\\\1", str(value))


def expanded_by_kubernetes(container: Mapping[str, object], names: Sequence[str]) -> str:
    """Return the first `$(NAME)` in a container that Kubernetes would expand too early; empty if there is none."""
    text = str([container.get(field) for field in ("command", "args", "env")])
    found = re.search(rf"\$\(({'|'.join(map(re.escape, names))})\)", text)
    return found[0] if found else ""
