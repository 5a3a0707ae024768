"""What a rank and its agent say to each other on the rank's Unix socket; docs/contract.md has the table."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ringtrain.errors import ConfigurationError, quoted
from ringtrain_job.control.model import FORMATIONS

# 64 KiB: a rank's messages have three numbers; the agent's, which have addresses of all ranks, are not read here.
MOST_BYTES = 64 << 10
_MOST_STEPS = 2**63 - 1


@dataclass(frozen=True)
class Ready:
    """The rank has left `formation` (0: it was in none) and waits for a world. `lost_steps`: what leaving cost.
    `unshared`: it has not given to others what it alone may hold. `adopted`: the formation since which it has all
    of the state."""

    formation: int
    committed: int
    lost_steps: int
    unshared: bool = False
    adopted: int = 0


@dataclass(frozen=True)
class Joined:
    """The ranks of `formation` have met."""

    formation: int


@dataclass(frozen=True)
class Committed:
    """The rank has committed `step`."""

    step: int


FromRank = Ready | Joined | Committed


def parse_slot_message(line: bytes) -> FromRank:
    """What a rank says in `line`; ConfigurationError says what is wrong with it. Further fields are ignored."""
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
    """The rank is a member of `formation`, whose variables are `environment`."""
    return {"type": "world", "formation": formation, "environment": dict(environment)}


def slot_change_message(formation: int, urgent: bool, leaving: Sequence[int] = ()) -> dict[str, Any]:
    """`formation` is being prepared: leave now (`urgent`), or at the next commit, when the ranks `leaving` of the
    present one hand over what they hold."""
    return {"type": "change", "formation": formation, "urgent": urgent, "leaving": list(leaving)}


def slot_leave_message(reason: str) -> dict[str, Any]:
    """The rank is not wanted any more: end with code 0."""
    return {"type": "leave", "reason": reason}


def slot_error_message(text: str) -> dict[str, Any]:
    """What the rank said could not be taken."""
    return {"type": "error", "message": text}


def _slot_message_number(message: Mapping[str, Any], field: str, most: int) -> int:
    value = message.get(field)
    if type(value) is not int or not 0 <= value <= most:
        found = quoted(str(value)) if field in message else "absent"
        raise ConfigurationError(f"{field} of {message['type']} is {found}: expected an integer from 0 to {most}")
    return value


def _shown_slot_message(line: bytes) -> str:
    return quoted(line[:80].decode(errors="replace"))
