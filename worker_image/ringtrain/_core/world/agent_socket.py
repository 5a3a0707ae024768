"""Connection of an elastic job's rank to its agent: a Unix socket with one JSON object per line.

rank to agent   ready (it has left its world and waits), joined, committed
agent to rank   world (the environment of the next one), leave, change (the next one is being prepared), error
"""

import contextlib
import json
import logging
import os
import socket
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from ringtrain.errors import ConfigurationError, RingtrainError, shown
from ringtrain.shared import contract
from ringtrain.shared.framing import line_of

log = logging.getLogger("ringtrain")

_COMMITTED_EVERY_S: Final = 1.0
# Far above any rank's environment: ten thousand addresses are 200 KiB.
_LONGEST_LINE: Final = 64 << 20


@dataclass(frozen=True)
class WorldReadiness:
    """Report of a rank that waits for its next world.

    `formation`: number of the world that the rank has left; 0 if none. `committed`: last committed step of the rank.
    `lost_steps`: number of uncommitted steps that are lost. `unshared`: whether the rank may have state that no other
    rank has received. `adopted`: number of the world since which the rank has the complete state; 0 if none.
    """

    formation: int = 0
    committed: int = 0
    lost_steps: int = 0
    unshared: bool = False
    adopted: int = 0


class AgentGone(RingtrainError):
    """Error: the agent has ended or refuses this process, so that this rank will not get another world."""


class RankAgentSocket:
    """A rank's connection to its agent. Thread-safe; a background thread reads from it until the process ends."""

    def __init__(self, path: str) -> None:
        """Connect to the agent at `path`. Raises ConfigurationError if no agent listens there."""
        self.path = path
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            self._socket.connect(path)
        except OSError as error:
            self._socket.close()
            raise ConfigurationError(
                f"{contract.ENV_AGENT_SOCKET} is {path}: {error.strerror}; the agent that started "
                "this rank must listen on this socket; unset the variable to train without an agent"
            ) from error
        self._changed = threading.Condition()
        self._answer: Mapping[str, Any] | None = None  # the reply to the last `ready`
        self._end_reason = ""  # why there will be no reply
        self._prepared = 0  # number of the newest world that is being prepared
        self._urgent = 0  # the newest one that is prepared because a member was lost
        self._formation = 0
        self._leaving: tuple[int, frozenset[int]] = (0, frozenset())  # number of the world, and the leaving ranks
        self._lost: Callable[[str], object] | None = None
        self._sent_at = 0.0
        threading.Thread(target=self._read, name="ringtrain-agent-socket", daemon=True).start()

    def next_world(self, readiness: WorldReadiness) -> Mapping[str, str]:
        """Report that this rank is ready, wait without limit for the next world, and return its environment variables.

        Raises SystemExit(0) if the agent no longer needs this rank, AgentGone if the agent has ended, which ends the
        rank too.
        """
        with self._changed:
            self._lost, self._answer = None, None
        self._send({"type": "ready", **vars(readiness)})
        with self._changed:
            self._changed.wait_for(lambda: self._answer is not None or self._end_reason)
            answer = self._answer
        if answer is None:
            raise AgentGone(f"this rank joins no further world: {self._end_reason}")
        if answer["type"] == "leave":
            log.info("the agent no longer needs this rank: %s", answer.get("reason", "no reason given"))
            raise SystemExit(0)
        return {str(name): str(value) for name, value in answer["environment"].items()}

    def call_on_loss(self, formation: int, lost: Callable[[str], object]) -> None:
        """Register `lost`, to be called with a message when a member of generation `formation` is lost.

        The agent reports this by preparing the next world; if it has done so already, `lost` is called at once.
        """
        with self._changed:
            self._formation, self._lost = formation, lost
            late = self._urgent > formation
        if late:
            lost(self._message())

    def joined(self, formation: int) -> None:
        """Report that all members of generation `formation` have joined."""
        self._send({"type": "joined", "formation": formation})

    def committed(self, step: int) -> None:
        """Report the number of the last committed step, at most once a second."""
        if time.monotonic() - self._sent_at >= _COMMITTED_EVERY_S:
            self._sent_at = time.monotonic()
            self._send({"type": "committed", "step": step})

    @property
    def change_pending(self) -> bool:
        """Return whether the agent is preparing the next world."""
        return self._prepared > self._formation

    @property
    def leaving(self) -> frozenset[int] | None:
        """Return the ranks that will not be in the next world; None if the agent has not sent them."""
        formation, ranks = self._leaving
        return ranks if formation > self._formation else None

    def close_in_child(self) -> None:
        """Close the socket in a forked child, so that the connection ends when the rank does."""
        self._socket.close()

    def _send(self, message: Mapping[str, Any]) -> None:
        # The reading thread detects an agent that has ended, and ends this process.
        with contextlib.suppress(OSError):
            self._socket.sendall(line_of(message))

    def _read(self) -> None:
        with contextlib.suppress(OSError), self._socket.makefile("rb") as lines:
            while line := lines.readline(_LONGEST_LINE):
                self._process_line(line)
        with self._changed:
            self._end_reason = self._end_reason or "the agent has closed its socket"
            self._changed.notify_all()

    def _process_line(self, line: bytes) -> None:
        try:
            message = json.loads(line)
            kind, formation = message["type"], int(message.get("formation", 0))
        except (ValueError, KeyError, TypeError, AttributeError):
            log.warning("%s: received an invalid message from the agent: %s", self.path, shown(line))
            return
        if kind == "change":
            self._leaving = (formation, frozenset(map(int, message.get("leaving", ()))))
            self._process_change(formation, bool(message.get("urgent")))
        elif kind in ("world", "leave"):
            with self._changed:
                self._answer = message
                self._changed.notify_all()
        elif kind == "error":
            with self._changed:
                self._end_reason = f"the agent answers: {shown(message.get('message'))}"
                self._changed.notify_all()

    def _process_change(self, formation: int, urgent: bool) -> None:
        with self._changed:
            self._prepared = max(self._prepared, formation)
            self._urgent = max(self._urgent, formation if urgent else 0)
            lost = self._lost if self._urgent > self._formation else None
        if lost is not None:
            lost(self._message())

    def _message(self) -> str:
        return f"a member of generation {self._formation} was lost; generation {self._urgent} is being prepared"


_lock = threading.Lock()
_connected: RankAgentSocket | None = None


def agent_of(env: Mapping[str, str]) -> RankAgentSocket | None:
    """Return the connection to this process's agent, opened by the first call; None if its world never changes."""
    global _connected
    path = env.get(contract.ENV_AGENT_SOCKET, "")
    with _lock:
        if _connected is not None and _connected.path == path:
            return _connected
        # With a rank in it, the environment describes the parent's world.
        if not path or contract.ENV_RANK in env:
            return None
        _connected = RankAgentSocket(path)
        return _connected


def _forget_agent_socket_in_child() -> None:
    """Close the connection to the agent in a forked process, which is not a rank."""
    global _lock, _connected
    _lock = threading.Lock()
    if _connected is not None:
        _connected.close_in_child()
        _connected = None


os.register_at_fork(after_in_child=_forget_agent_socket_in_child)
