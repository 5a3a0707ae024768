"""Messages between a rank of an elastic job and its agent, sent on a Unix socket. See docs/contract.md."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ringtrain.errors import ConfigurationError, quoted
from ringtrain_job.control.model import GENERATIONS

# 64 KiB: a rank's messages contain three numbers. The agent's, with the addresses of all ranks, are not read here.
MOST_BYTES = 64 << 10
_MOST_STEPS = 2**63 - 1


@dataclass(frozen=True)
class Ready:
    """Message from a rank that has left generation `formation` (0: the rank was in none) and waits for a new world.

    `committed`: last committed step. `lost_steps`: number of steps discarded by leaving. `unshared`: whether the rank
    may have state that no other rank has received. `adopted`: generation since which the rank has the whole state.
    """

    formation: int
    committed: int
    lost_steps: int
    unshared: bool = False
    adopted: int = 0


@dataclass(frozen=True)
class Joined:
    """Message of a rank: all ranks of generation `formation` have completed their rendezvous."""

    formation: int


@dataclass(frozen=True)
class Committed:
    """Message of a rank: it has committed `step`."""

    step: int


FromRank = Ready | Joined | Committed


def parse_slot_message(line: bytes) -> FromRank:
    """Return the message of a rank in `line`. Raises ConfigurationError if it is malformed."""
    try:
        message = json.loads(line)
    except (ValueError, RecursionError):
        raise ConfigurationError(f"{_shown_slot_message(line)} is not JSON; expected one object per line") from None
    if not isinstance(message, dict):
        raise ConfigurationError(f"{_shown_slot_message(line)} is not a JSON object")
    match message.get("type"):
        case "ready":
            return Ready(
                _slot_message_number(message, "formation", GENERATIONS - 1),
                _slot_message_number(message, "committed", _MOST_STEPS),
                _slot_message_number(message, "lost_steps", _MOST_STEPS),
                message.get("unshared") is True,
                _slot_message_number(message, "adopted", GENERATIONS - 1) if "adopted" in message else 0,
            )
        case "joined":
            return Joined(_slot_message_number(message, "formation", GENERATIONS - 1))
        case "committed":
            return Committed(_slot_message_number(message, "step", _MOST_STEPS))
    raise ConfigurationError(
        f"the message's type is {quoted(str(message.get('type')))}; expected ready, joined or committed"
    )


def slot_world_message(generation: int, environment: Mapping[str, str]) -> dict[str, Any]:
    """Return the message that makes the rank a member of a generation. `environment`: the rank's variables."""
    return {"type": "world", "formation": generation, "environment": dict(environment)}


def slot_change_message(generation: int, urgent: bool, leaving: Sequence[int] = ()) -> dict[str, Any]:
    """Return the message that generation `generation` is being prepared, so that the rank must leave its world.

    `urgent`: whether to leave now, rather than at the next commit. `leaving`: ranks of the current world that hand over
    their state at that commit.
    """
    return {"type": "change", "formation": generation, "urgent": urgent, "leaving": list(leaving)}


def slot_leave_message(reason: str) -> dict[str, Any]:
    """Return the message that the next generation does not use the rank's slot: the rank must exit with code 0."""
    return {"type": "leave", "reason": reason}


def slot_error_message(text: str) -> dict[str, Any]:
    """Return the message that the agent could not process the rank's last message."""
    return {"type": "error", "message": text}


def _slot_message_number(message: Mapping[str, Any], field: str, most: int) -> int:
    value = message.get(field)
    if type(value) is not int or not 0 <= value <= most:
        found = quoted(str(value)) if field in message else "absent"
        raise ConfigurationError(f"{field} of {message['type']} is {found}: expected an integer from 0 to {most}")
    return value


def _shown_slot_message(line: bytes) -> str:
    return quoted(line[:80].decode(errors="replace"))
