"""Simulated agents in several processes: one process of them would be short of files, and of processor time.

A process gets one command a line on its stdin, as JSON, and answers each with a line on its stdout.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import sys
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
if __name__ == "__main__":
    sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

from bench.scale.agents import SimulatedAgent, Tally  # noqa: E402
from bench.scale.launcher import allow_files  # noqa: E402
from ringtrain_job.agent.config import AgentConfig  # noqa: E402

# An agent has a connection, and its channel has descriptors of its own: within 20,000 files with room.
_MOST_AGENTS = 2500


class Crowd:
    """`count` agents, in processes."""

    def __init__(self, processes: list[asyncio.subprocess.Process]) -> None:
        self._processes = processes

    @staticmethod
    async def begin(environment: Mapping[str, str], count: int) -> Crowd:
        """Start the processes on all cores but the launcher's. Agents do not dial before `dial`."""
        cores = set(range(1, os.cpu_count() or 1)) or {0}
        processes = []
        for first in range(0, count, _MOST_AGENTS):
            words = [sys.executable, "-m", "bench.scale.crowd", str(first), str(min(first + _MOST_AGENTS, count))]
            pipes = {"stdin": asyncio.subprocess.PIPE, "stdout": asyncio.subprocess.PIPE}
            process = await asyncio.create_subprocess_exec(*words, env=dict(environment), cwd=ROOT, **pipes)
            os.sched_setaffinity(process.pid, cores)
            processes.append(process)
        crowd = Crowd(processes)
        await crowd.tally()  # they have loaded everything
        return crowd

    async def dial(self) -> None:
        """Have all agents dial."""
        await self._tell("dial")

    async def log(self, until: float, lines: int) -> None:
        """Have every agent send calls of `lines` lines each until the time `until`."""
        await self._tell("log", until, lines)

    async def forget(self) -> None:
        """Count registrations anew."""
        await self._tell("forget")

    async def kill_one(self) -> None:
        """End one agent without a word."""
        await self._ask(self._processes[len(self._processes) // 2], "kill_one")

    async def tally(self) -> Tally:
        """Return the combined tally of all agents."""
        return Tally.sum([Tally.read(found) for found in await self._tell("tally")])

    async def close(self) -> None:
        """End all processes, and with them all agents."""
        for process in self._processes:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()

    async def _tell(self, *words: Any) -> list[Any]:
        return await asyncio.gather(*(self._ask(process, *words) for process in self._processes))

    async def _ask(self, process: asyncio.subprocess.Process, *words: Any) -> Any:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(json.dumps(words).encode() + b"\n")
        return json.loads(await process.stdout.readline())


class _Agents:
    """The agents of one process, and the commands that it gets."""

    def __init__(self, config: AgentConfig, first: int, end: int) -> None:
        self._tally = Tally.new()
        self._agents = [SimulatedAgent(config, index, self._tally) for index in range(first, end)]

    async def dial(self) -> None:
        for number, agent in enumerate(self._agents):
            agent.start()
            if number % 50 == 0:
                await asyncio.sleep(0)

    async def log(self, until: float, lines: int) -> None:
        await asyncio.gather(*(agent.log(until, lines) for agent in self._agents))

    async def forget(self) -> None:
        self._tally.registered.forget()

    async def kill_one(self) -> None:
        await self._agents.pop(len(self._agents) // 2).kill()

    async def tally(self) -> dict[str, Any]:
        return asdict(self._tally)


async def _serve(first: int, end: int) -> None:
    agents = _Agents(AgentConfig.from_env(os.environ), first, end)
    commands = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(commands), sys.stdin)
    while line := await commands.readline():
        name, *words = json.loads(line)
        print(json.dumps(await getattr(agents, name)(*words)), flush=True)


if __name__ == "__main__":
    allow_files()
    asyncio.run(_serve(int(sys.argv[1]), int(sys.argv[2])))
