"""Messages between a rank and its agent on the rank's Unix socket; docs/contract.md lists them."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ringtrain.errors import ConfigurationError, quoted
from ringtrain_job.control.model import FORMATIONS

# 64 KiB: a rank's messages contain three numbers. The agent's, with the addresses of all ranks, are not read here.
MOST_BYTES = 64 << 10
_MOST_STEPS = 2**63 - 1


@dataclass(frozen=True)
class Ready:
    """Message: the rank has left `formation` (0: it was in none) and waits for a world.

    `lost_steps`: number of steps discarded by leaving. `unshared`: it has not sent state that it may be the only one to
    have. `adopted`: generation since which it has the whole state.
    """

    formation: int
    committed: int
    lost_steps: int
    unshared: bool = False
    adopted: int = 0


@dataclass(frozen=True)
class Joined:
    """Message: the ranks of `formation` have completed the rendezvous."""

    formation: int


@dataclass(frozen=True)
class Committed:
    """Message: the rank has committed `step`."""

    step: int


FromRank = Ready | Joined | Committed


def parse_slot_message(line: bytes) -> FromRank:
    """Parse a message of a rank. ConfigurationError contains the problem. Unknown fields are ignored."""
    try:
        message = json.loads(line)
    except (ValueError, RecursionError):
        raise ConfigurationError(f"{_shown_slot_message(line)} is no JSON; expected one object a line") from None
    if not isinstance(message, dict):
        raise ConfigurationError(f"{_shown_slot_message(line)} is no JSON object")
    match message.get("type"):
        case "ready":
            return Ready(
                _slot_message_number(message, "formation", FORMATIONS - 1),
                _slot_message_number(message, "committed", _MOST_STEPS),
                _slot_message_number(message, "lost_steps", _MOST_STEPS),
                message.get("unshared") is True,
                _slot_message_number(message, "adopted", FORMATIONS - 1) if "adopted" in message else 0,
            )
        case "joined":
            return Joined(_slot_message_number(message, "formation", FORMATIONS - 1))
        case "committed":
            return Committed(_slot_message_number(message, "step", _MOST_STEPS))
    raise ConfigurationError(f"type {quoted(str(message.get('type')))}: expected ready, joined or committed")


def slot_world_message(formation: int, environment: Mapping[str, str]) -> dict[str, Any]:
    """Return the message: the rank is a member of `formation`, whose variables are `environment`."""
    return {"type": "world", "formation": formation, "environment": dict(environment)}


def slot_change_message(formation: int, urgent: bool, leaving: Sequence[int] = ()) -> dict[str, Any]:
    """Return the message: `formation` is being prepared; leave now (`urgent`) or at the next commit, at which the ranks
    `leaving` of the current generation hand over their state."""
    return {"type": "change", "formation": formation, "urgent": urgent, "leaving": list(leaving)}


def slot_leave_message(reason: str) -> dict[str, Any]:
    """Return the message: the slot is no longer requested; end with code 0."""
    return {"type": "leave", "reason": reason}


def slot_error_message(text: str) -> dict[str, Any]:
    """Return the message: the rank's message was invalid."""
    return {"type": "error", "message": text}


def _slot_message_number(message: Mapping[str, Any], field: str, most: int) -> int:
    value = message.get(field)
    if type(value) is not int or not 0 <= value <= most:
        found = quoted(str(value)) if field in message else "absent"
        raise ConfigurationError(f"{field} of {message['type']} is {found}: expected an integer from 0 to {most}")
    return value


def _shown_slot_message(line: bytes) -> str:
    return quoted(line[:80].decode(errors="replace"))
