"""Contenders side by side: all ranks of all contenders are up, one contender runs at a time, and they take turns.

A busy moment of the machine then hits everyone alike, and medians of many turns are compared.
"""

import contextlib
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bench.hosts import Hosts

_LEAST_TURNS = 2
REPOSITORY = Path(__file__).parents[1]


@dataclass
class Samples:
    """Measurements of one contender in one case. `times`: seconds of the slowest rank, by repetition."""

    times: list[float] = field(default_factory=list)
    cpu_s: float = 0.0
    wire_bytes: int = 0

    def summary(self) -> dict[str, float]:
        low, _, high = statistics.quantiles(self.times, n=4) if len(self.times) > 1 else self.times * 3
        return {
            "median_s": statistics.median(self.times),
            "quartile1_s": low,
            "quartile3_s": high,
            "repetitions": len(self.times),
            "cpu_s": self.cpu_s / len(self.times),
            "wire_bytes": self.wire_bytes / len(self.times),
        }


class Hung(RuntimeError):
    """A rank has not answered for so long that it never will."""


class Gang:
    """The ranks of one contender, waiting for commands."""

    # More than the longest turn takes. Open MPI 4.1.4 over TCP hung in an allreduce of 256 MiB between four ranks.
    answer_s = 180.0
    has_ended = False

    def __init__(self, contender: str, hosts: Hosts, env: dict[str, str]) -> None:
        self.contender = contender
        self._hosts = hosts
        self._directory = tempfile.TemporaryDirectory()
        path = str(Path(self._directory.name) / "socket")
        self._server = socket.socket(socket.AF_UNIX)
        self._server.bind(path)
        self._server.listen(hosts.ranks)
        self._log = open(Path(self._directory.name) / "log", "w+")  # noqa: SIM115
        worker = [sys.executable, "-m", "bench.worker", contender, path]
        self._processes = [
            subprocess.Popen(command, env=os.environ | env | more, cwd=REPOSITORY, stdout=self._log, stderr=self._log)
            for command, more in hosts.commands(contender, worker)
        ]
        self._streams = self._accept()

    def _accept(self) -> list[Any]:
        self._server.settimeout(60)
        streams: dict[int, Any] = {}
        try:
            while len(streams) < self._hosts.ranks:
                connection = self._server.accept()[0]
                connection.settimeout(self.answer_s)
                stream = connection.makefile("rw")
                streams[json.loads(stream.readline())["rank"]] = stream
        except (TimeoutError, ValueError) as error:
            self._log.seek(0)
            output = self._log.read()
            self.close()
            raise RuntimeError(f"{self.contender} did not start: {output[-3000:]}") from error
        return [streams[rank] for rank in range(self._hosts.ranks)]

    def run(self, repetitions: int, warm_up: int, what: dict[str, Any], into: Samples) -> None:
        before = self._hosts.sent_bytes()
        command = {"do": "run", "repetitions": repetitions, "warm_up": warm_up, "what": what}
        for stream in self._streams:
            stream.write(json.dumps(command) + "\n")
            stream.flush()
        answers = [self._answer(stream, what) for stream in self._streams]
        into.times += [max(times) for times in zip(*(a["times"] for a in answers), strict=True)]
        into.cpu_s += sum(a["cpu_s"] for a in answers)
        # The warm-up is on the wire too.
        into.wire_bytes += (self._hosts.sent_bytes() - before) * repetitions // (repetitions + warm_up)

    def ask(self, what: dict[str, Any]) -> list[Any]:
        """Return what each rank says, by rank."""
        for stream in self._streams:
            stream.write(json.dumps({"do": "ask", "what": what}) + "\n")
            stream.flush()
        return [self._answer(stream, what) for stream in self._streams]

    def _answer(self, stream: Any, what: dict[str, Any]) -> Any:
        try:
            line = stream.readline()
        except TimeoutError as error:
            raise Hung(f"{self.contender} has not answered for {self.answer_s:g} s in {what}") from error
        if not line:
            self._log.seek(0)
            raise RuntimeError(f"{self.contender} failed in {what}: {self._log.read()[-3000:]}")
        return json.loads(line)

    def end(self) -> None:
        """End its processes, which do not answer. It takes part in nothing more."""
        self.has_ended = True
        self._streams = []
        for process in self._processes:
            process.terminate()

    def close(self) -> None:
        for stream in getattr(self, "_streams", []):
            with contextlib.suppress(OSError):
                stream.write('{"do": "stop"}\n')
                stream.flush()
        for process in self._processes:
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self._server.close()
        self._log.close()
        self._directory.cleanup()


@contextlib.contextmanager
def gangs(contenders: dict[str, dict[str, str]], hosts: Hosts) -> Iterator[list[Gang]]:
    """Gangs by name with their environment. One that can't start is left out, and said."""
    started: list[Gang] = []
    try:
        for contender, env in contenders.items():
            try:
                started.append(Gang(contender, hosts, env))
            except (RuntimeError, OSError) as error:
                print(f"{contender} is left out: {error}", file=sys.stderr)
        yield started
    finally:
        for gang in started:
            gang.close()


@dataclass(frozen=True)
class Rounds:
    """Numbers of timed and of warm-up repetitions in a contender's turn, and limits on the turns.

    Turns end after `seconds` in all. There are at least two turns, however long they take, and at most `turns`.
    """

    seconds: float
    repetitions: int
    warm_up: int = 2
    turns: int = 12


def contest(running: list[Gang], rounds: Rounds, what: dict[str, Any]) -> dict[str, dict[str, float]]:
    """Let all take turns; return their summaries by name.

    A peer that hangs is ended, said, and takes part in nothing more. Raises Hung for one of ours.
    """
    samples = {gang.contender: Samples() for gang in running}
    started = time.monotonic()
    for turn in range(rounds.turns):
        spent = time.monotonic() - started
        if turn >= _LEAST_TURNS and spent + spent / turn > rounds.seconds:
            break
        for gang in running if turn % 2 == 0 else reversed(running):
            if gang.has_ended:
                continue
            try:
                gang.run(rounds.repetitions, rounds.warm_up, what, samples[gang.contender])
            except Hung as error:
                if gang.contender.startswith("ringtrain"):
                    raise
                print(f"{gang.contender} is left out from here on: {error}", file=sys.stderr)
                gang.end()
    return {gang.contender: samples[gang.contender].summary() for gang in running if not gang.has_ended}
