"""An agent and a launcher in one small object: processes in slots, and the worlds that they are told.

    with started_slots(function, 3) as slots:
        slots.form()                      # all that wait are formation 1
        slots.kill(1)                     # the others hear that a member was lost
        slots.start(1)                    # a new life
        slots.form()                      # when all that live have left the former world
        assert slots.results() == {...}

A slot's process runs a module-level function with `RINGTRAIN_AGENT_SOCKET` in its environment, and nothing of a
world.
"""

import contextlib
import json
import os
import queue
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from multiprocessing.context import BaseContext
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from ringtrain._core.process_groups.formations import own_agent
from support.gang import until
from support.ports import free_addresses
from support.ranks import DEADLINE_S, Outcome, Ranks, ask, started_ranks, tell

GENERATIONS = 1_000_000  # formations of an attempt


@dataclass
class Life:
    """One process of a slot. `words`: what it has said to its agent, those that were not asked for yet."""

    slot: int
    ranks: Ranks
    stop: contextlib.ExitStack
    address: str
    words: "queue.Queue[dict[str, Any]]" = field(default_factory=queue.Queue)
    connection: socket.socket | None = None
    waits: bool = False
    said: dict[str, Any] = field(default_factory=dict)  # its last `ready`

    @property
    def pid(self) -> int:
        return self.ranks.pid(0)

    @property
    def lives(self) -> bool:
        return self.ranks.processes[0].is_alive()

    def send(self, message: Mapping[str, Any]) -> None:
        with contextlib.suppress(OSError):  # it has just died
            self.connection.sendall(json.dumps(message).encode() + b"\n")


class Slots:
    """Processes by slot. `env`: variables of all. `context`: how they are started. `sites`: of each slot."""

    def __init__(
        self,
        function: Callable[..., Any],
        args: tuple[Any, ...],
        env: Mapping[str, str],
        directory: Path,
        context: BaseContext | None = None,
        sites: Sequence[str] = (),
    ) -> None:
        self._sites = sites
        self._function, self._args, self._env, self._directory = function, args, dict(env), directory
        self.living: dict[int, Life] = {}
        self.formation = 0
        self.members: list[int] = []
        self.committed = 0  # the commit that worlds are told of
        self._told: set[int] = set()
        self._lives = 0
        self._context = context

    def start(self, slot: int) -> None:
        """Start a process in a slot that has none."""
        self._lives += 1
        path = self._directory / f"{slot}-{self._lives}"
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(str(path))
        listener.listen(1)
        stop = contextlib.ExitStack()
        stop.callback(listener.close)
        env = {"RINGTRAIN_TIMEOUT": "60", "SLOT": f"{slot}", **self._env, "RINGTRAIN_AGENT_SOCKET": str(path)}
        started = started_ranks(self._function, 1, *self._args, env_of=lambda _: env, context=self._context)
        ranks = stop.enter_context(started)
        life = self.living[slot] = Life(slot, ranks, stop, free_addresses(1)[0])
        threading.Thread(target=_serve, args=(listener, life), daemon=True).start()

    def await_ready(self, slot: int, deadline_s: float = DEADLINE_S) -> dict[str, Any]:
        """Wait until the process of `slot` waits for a world; return what it has said then."""
        life = self.living[slot]
        end = time.monotonic() + deadline_s
        while not life.waits:
            assert life.lives, f"slot {slot} has ended: {life.ranks.outcomes()}"
            assert time.monotonic() < end, f"slot {slot} has not left formation {self.formation}"
            with contextlib.suppress(queue.Empty):
                word = life.words.get(timeout=0.2)
                if word["type"] == "ready":
                    life.waits, life.said = True, word
        return life.said

    def formed(self, *going_on: int) -> list[Any]:
        """Form a world of all that live; the next thing that the process of each says, by slot."""
        self.form(*going_on)
        return [self.message(slot) for slot in sorted(self.living)]

    def form(self, *going_on: int, slots: list[int] | None = None) -> int:
        """Let the slots `going_on` go on; make the next formation of `slots` (default: all that live), when all of
        them wait; survivors first.
        """
        self.go_on(*going_on)
        chosen = sorted(self.living) if slots is None else slots
        for slot in chosen:
            self.await_ready(slot)
        self.formation += 1
        self._told.clear()
        self.members = sorted(chosen, key=lambda slot: (self.living[slot].said["formation"] == 0, slot))
        for rank, slot in enumerate(self.members):
            self.tell_world(slot, rank)
        return self.formation

    def tell_world(self, slot: int, rank: int) -> None:
        """Tell one member its world."""
        addresses = [self.living[member].address for member in self.members]
        environment = {
            "RINGTRAIN_RANK": rank,
            "RINGTRAIN_SIZE": len(self.members),
            "RINGTRAIN_LOCAL_RANK": rank,
            "RINGTRAIN_LOCAL_SIZE": len(self.members),
            "RINGTRAIN_CROSS_RANK": 0,
            "RINGTRAIN_CROSS_SIZE": 1,
            "RINGTRAIN_RING_ADDRESSES": ",".join(addresses),
            "RINGTRAIN_ATTEMPT": 1,
            "RINGTRAIN_FORMATION": self.formation,
            "RINGTRAIN_COMMITTED": self.committed,
            "RINGTRAIN_GENERATION": GENERATIONS + self.formation,
            **self._env,
        }
        if self._sites:
            environment["RINGTRAIN_SITES"] = ",".join(self._sites[member] for member in self.members)
        life = self.living[slot]
        life.waits = False
        life.send(
            {
                "type": "world",
                "formation": self.formation,
                "environment": {name: str(value) for name, value in environment.items()},
            }
        )

    def tell_change(
        self, urgent: bool = False, slots: list[int] | None = None, leaving: Sequence[int] | None = None
    ) -> None:
        """Say that the next formation is being prepared, without the slots `leaving`."""
        change = {"type": "change", "formation": self.formation + 1, "urgent": urgent}
        if leaving is not None:
            change["leaving"] = [self.members.index(slot) for slot in leaving]
        for slot in self.members if slots is None else slots:
            if slot in self.living:
                self.living[slot].send(change)
                self._told.add(slot)

    def go_on(self, *slots: int) -> None:
        """Let the processes of `slots` go on, which wait in `await_go_on`."""
        for slot in slots:
            self.living[slot].ranks.answer(0, "change" if slot in self._told else "go on")

    def leave(self, slot: int) -> Outcome:
        """End a slot that waits; how it ended."""
        self.await_ready(slot)
        self.living[slot].send({"type": "leave", "reason": "scaled down"})
        return self.ended(slot)

    def kill(self, slot: int, number: int = signal.SIGKILL, urgent: bool = True) -> None:
        """Send a signal to a slot's process; where that ends it, wait for the end and tell the other members."""
        os.kill(self.living[slot].pid, number)
        if number != signal.SIGKILL:
            return
        self.ended(slot)
        if urgent:
            self.tell_change(urgent=True)

    def replace(self, slot: int) -> None:
        """Kill a slot's process and start another."""
        self.kill(slot)
        self.start(slot)

    def ended(self, slot: int) -> Outcome:
        """Wait until the process of a slot has ended, and how it did; the slot is free then."""
        life = self.living.pop(slot)
        (outcome,) = life.ranks.outcomes()
        life.stop.close()
        return outcome

    def results(self) -> dict[int, Any]:
        """Return the function's result in each slot; fail the test if one raised."""
        results = {}
        for slot in sorted(self.living):
            outcome = self.ended(slot)
            assert outcome.ok, f"slot {slot} (exit {outcome.exit_code}): {outcome.error}\n{outcome.traceback}"
            results[slot] = outcome.value
        return results

    def message(self, slot: int) -> Any:
        """The next thing that the slot's process has said with `support.ranks.tell`."""
        return self.living[slot].ranks.message(0)


@contextlib.contextmanager
def started_slots(
    function: Callable[..., Any],
    slots: int,
    *args: Any,
    env: Mapping[str, str] | None = None,
    context: BaseContext | None = None,
    sites: Sequence[str] = (),
) -> Iterator[Slots]:
    """Start `function(*args)` in slots 0 to `slots` - 1; nothing is left after the block. `sites`: of each."""
    with TemporaryDirectory(prefix="elastic-") as directory:
        made = Slots(function, args, env or {}, Path(directory), context, sites)
        try:
            for slot in range(slots):
                made.start(slot)
            yield made
        finally:
            for life in made.living.values():
                life.stop.close()


def await_go_on() -> None:
    """In a rank: wait for `Slots.go_on`, and until this process has heard what its slot was told of a change."""
    if ask() == "change":
        agent = own_agent()
        until("the agent's word", lambda: agent.change_pending)


def pause(said: Any, among: Sequence[Any] | None = None) -> None:
    """In a rank: tell `said`, and wait for `Slots.go_on`; if it is one of those, where some are given."""
    if among is None or said in among:
        tell(said)
        await_go_on()


def _serve(listener: socket.socket, life: Life) -> None:
    with contextlib.suppress(OSError):
        life.connection, _ = listener.accept()
        with life.connection.makefile("rb") as lines:
            for line in lines:
                life.words.put(json.loads(line))
