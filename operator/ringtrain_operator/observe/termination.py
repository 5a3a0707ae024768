"""The termination message of docs/contract.md, as agents and launchers leave it."""

from __future__ import annotations

import json
from typing import Any

from ..contract import TERMINATION_MESSAGE_VERSION
from .model import PodView
from .storable import storable


def termination_of(pod: PodView, attempt: int) -> dict[str, Any]:
    """The pod's termination message; empty if it left none, or one of another attempt."""
    try:
        words = storable(json.loads(pod.termination_message))
    except (ValueError, RecursionError):
        return {}
    if not isinstance(words, dict) or words.get("version") != TERMINATION_MESSAGE_VERSION:
        return {}
    return words if words.get("attempt") == attempt else {}


def failure_in(pod: PodView, attempt: int) -> dict[str, Any]:
    """The failure that the pod's termination message names; empty if it names none."""
    told = termination_of(pod, attempt).get("failure")
    return told if isinstance(told, dict) else {}
