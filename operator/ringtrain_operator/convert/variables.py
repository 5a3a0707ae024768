"""Variables of other operators: set from ours where a rank starts, since only the agent knows them."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

# A torchrun that a script starts takes these for its options.
TORCHRUN = {
    "PET_NNODES": "$WORLD_SIZE",
    "PET_NODE_RANK": "$RANK",
    "PET_MASTER_ADDR": "$MASTER_ADDR",
    "PET_MASTER_PORT": "$MASTER_PORT",
}


def give(command: Sequence[str], variables: Mapping[str, str], notes: list[str]) -> list[str]:
    """The command, started with `variables`, whose values a shell expands from those of the agent."""
    if not variables:
        return list(command)
    notes.append(f"{', '.join(variables)} are set from the agent's variables by a sh in front of the command")
    text = " ".join(f'{name}="{value}"' for name, value in variables.items())
    return ["sh", "-c", f'export {text}; exec "$@"', "sh", *command]


def quoted(value: object) -> str:
    """`value` as a shell has it between double quotes."""
    return re.sub(r'([\\"$`])', r"\\\1", str(value))


def expanded_by_kubernetes(container: Mapping[str, object], names: Sequence[str]) -> str:
    """The first `$(NAME)` of `names` in a container: the pod is made before the agent knows it. Empty: none."""
    text = str([container.get(field) for field in ("command", "args", "env")])
    found = re.search(rf"\$\(({'|'.join(map(re.escape, names))})\)", text)
    return found[0] if found else ""
