"""A rank of an elastic job that trains nothing: it speaks the protocol of the agent's socket, and no more.

It prints what it is told. With the agent's socket in its environment it lives through formations; without, it is
a plain program that finds its world in its environment. Files in the directory DIRECTORY tell it what to do, each
for the slot in its name: `end-3` (end with 0), `fail-3` (end with 3), `deaf-3` (never leave a world), `flee-3`
(leave the world now, as after a lost peer), `slow-3` (do not say that it is ready), `stay-3` (do not end when told
to leave), `child-3` (start a process in a session of its own), `adopted-3` (say that it has all of
the state since its last world), `idle-3` (commit nothing in worlds that it enters from now on).
"""

import json
import os
import select
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

SLOT = os.environ.get("RINGTRAIN_SLOT", "")
DIRECTORY = Path(os.environ.get("DIRECTORY", "."))
_STEP_S = 0.02


def told(word: str) -> bool:
    return (DIRECTORY / f"{word}-{SLOT}").exists()


def say(*words: object) -> None:
    print(*words, "pid", os.getpid(), flush=True)


class Agent:
    """The other end of the socket."""

    def __init__(self, path: str) -> None:
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.connect(path)
        self.received = b""

    def send(self, **message: Any) -> None:
        self.socket.sendall(json.dumps(message).encode() + b"\n")

    def next(self, timeout_s: float | None) -> dict[str, Any] | None:
        """The next message; None when there is none in time."""
        end = None if timeout_s is None else time.monotonic() + timeout_s
        while b"\n" not in self.received:
            left = None if end is None else max(0.0, end - time.monotonic())
            if not select.select([self.socket], [], [], left)[0]:
                return None
            data = self.socket.recv(65536)
            if not data:
                sys.exit("the agent is gone")
            self.received += data
        line, self.received = self.received.split(b"\n", 1)
        return json.loads(line)


def end_if_told() -> None:
    if told("end"):
        say("ends")
        sys.exit(0)
    if told("fail"):
        sys.exit(3)


def in_world(agent: Agent, step: int) -> tuple[int, int]:
    """Steps until a change is due; the last committed step, and how many steps were lost."""
    due, idle = False, told("idle")
    while True:
        message = agent.next(_STEP_S)
        end_if_told()
        if told("flee"):
            (DIRECTORY / f"flee-{SLOT}").unlink()
            return step, 1
        if message is not None and message["type"] == "change":
            say("change", message["formation"], "urgent" if message["urgent"] else "later")
            if message["urgent"] and not told("deaf"):
                return step, 1
            due = True
        if not idle:
            step += 1
            agent.send(type="committed", step=step)
        if due and not told("deaf"):
            return step, 0


def live(path: str) -> None:
    agent = Agent(path)
    if told("child"):
        say("child", subprocess.Popen(["sleep", "1000"], start_new_session=True).pid)
    formation = step = lost = 0
    while told("slow"):
        time.sleep(_STEP_S)
    while True:
        adopted = formation if told("adopted") else 0
        had = {"committed": step, "lost_steps": lost, "unshared": lost > 0, "adopted": adopted}
        agent.send(type="ready", formation=formation, **had)
        while (message := agent.next(_STEP_S)) is None or message["type"] == "change":
            end_if_told()
        if message["type"] == "leave":
            say("leaves:", message["reason"])
            while told("stay"):
                time.sleep(_STEP_S)
            return
        os.environ.update(message["environment"])
        formation = int(message["formation"])
        say_world()
        agent.send(type="joined", formation=formation)
        step, lost = in_world(agent, step)


def say_world() -> None:
    named = ("RINGTRAIN_FORMATION", "RINGTRAIN_RANK", "RINGTRAIN_SIZE", "RINGTRAIN_GENERATION")
    formation, rank, size, generation = (os.environ[name] for name in named)
    say("formation", formation, "rank", rank, "of", size, "generation", generation)


def main() -> None:
    if path := os.environ.get("RINGTRAIN_AGENT_SOCKET"):
        assert "RINGTRAIN_RANK" not in os.environ, "a rank that lives on is told its place"
        live(path)
        return
    say_world()
    while True:
        end_if_told()
        time.sleep(_STEP_S)


if __name__ == "__main__":
    main()
