"""`make bench-scale`: a real launcher and 10 to 10,000 simulated agents; writes launcher.json."""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT / "tests")]

from bench.scale.agents import Seen, Tally  # noqa: E402
from bench.scale.crowd import Crowd  # noqa: E402
from bench.scale.launcher import Launcher, allow_files  # noqa: E402
from ringtrain_job.agent.config import AgentConfig  # noqa: E402

RESULTS = Path(__file__).parent / "launcher.json"
_DEADLINE_S = 240.0
_BEATS_S = 30.0
_LOGS_S = 5.0
_LINES = 50

Json = dict[str, Any]


def main() -> None:
    """Measure each number of agents, and write or renew its row under `--label`."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--agents", type=int, nargs="+", default=[10, 100, 1000, 4000, 10000])
    parser.add_argument("--slots", type=int, default=8)
    parser.add_argument("--label", default="now")
    parser.add_argument("--output", type=Path, default=RESULTS)
    options = parser.parse_args()
    if len(options.agents) == 1:
        _measure_one(options.agents[0], options.slots, options.label, options.output)
        return
    for agents in options.agents:  # each in a process of its own: gRPC's connections outlive an event loop
        words = ["--slots", str(options.slots), "--label", options.label, "--output", str(options.output)]
        subprocess.run([sys.executable, "-m", "bench.scale.run", "--agents", str(agents), *words], check=True)


def _measure_one(agents: int, slots: int, label: str, output: Path) -> None:
    files = allow_files()
    with tempfile.TemporaryDirectory(prefix="bench-scale-") as folder:
        row = asyncio.run(_measure(Path(folder), agents, slots))
    row |= {"open_files": files, "load_average": round(os.getloadavg()[0], 2)}
    row |= {"time": datetime.now(UTC).isoformat(timespec="seconds")}
    print(json.dumps({label: row}), flush=True)
    known = json.loads(output.read_text()) if output.exists() else {}
    known.setdefault(label, {})[str(agents)] = row
    output.write_text(json.dumps(known, indent=2) + "\n")


async def _measure(folder: Path, count: int, slots: int) -> Json:
    launcher = Launcher(folder, count, slots)
    config = AgentConfig.from_env(launcher.agent_environment)
    crowd = await Crowd.begin(launcher.agent_environment, count)
    found: Json = {"agents": count, "slots": slots}
    try:
        await _until_listening(launcher)
        alone = launcher.rss_mib
        steps: list[Callable[[], Awaitable[Json]]] = [
            lambda: _start(launcher, crowd, count, alone),
            lambda: _heartbeats(launcher, crowd),
            lambda: _logs(launcher, crowd),
            lambda: _restart(launcher, crowd, count),
            lambda: _kill_one(launcher, crowd, count, config.timeout_s / 4),
        ]
        for step in steps:
            found |= await step()
    except TimeoutError as error:
        found["stopped_at"] = f"{error}; {await crowd.tally()}; {launcher.said()[-500:]}"
    finally:
        launcher.kill()
        await crowd.close()
    return found


async def _start(launcher: Launcher, crowd: Crowd, count: int, alone: float) -> Json:
    """From the first agent's dialling until the last one has the order to start its ranks."""
    began, spent = time.monotonic(), launcher.cpu_s
    await crowd.dial()
    registered = await _until("all registered", crowd, lambda tally: tally.registered, count)
    started = await _until("all started", crowd, lambda tally: tally.started, count)
    await _calm(launcher)
    return {
        "all_registered_s": round(registered.last - began, 2),
        "all_started_s": round(started.last - began, 2),
        "start_cpu_s": round(launcher.cpu_s - spent, 2),
        "start_order_kib": round((await crowd.tally()).order_bytes / count / 1024, 1),
        "rss_mib": launcher.rss_mib,
        "rss_kib_per_agent": round((launcher.rss_mib - alone) * 1024 / count, 1),
        "threads": launcher.threads,
    }


async def _heartbeats(launcher: Launcher, crowd: Crowd) -> Json:
    spent, began, before = launcher.cpu_s, time.monotonic(), (await crowd.tally()).heartbeats
    await asyncio.sleep(_BEATS_S)
    beats = (await crowd.tally()).heartbeats - before
    used, seconds = launcher.cpu_s - spent, time.monotonic() - began
    return {
        "heartbeats_per_s": round(beats / seconds, 1),
        "heartbeats_cpu_percent": round(100 * used / seconds, 2),
        "heartbeat_cpu_us": round(1e6 * used / max(beats, 1)),
    }


async def _logs(launcher: Launcher, crowd: Crowd) -> Json:
    """Every agent has a call under way all the time; so many lines of 100 bytes are acknowledged in a second."""
    spent, began = launcher.cpu_s, time.monotonic()
    await crowd.log(began + _LOGS_S, _LINES)
    seconds, used = time.monotonic() - began, launcher.cpu_s - spent
    lines = max((await crowd.tally()).lines, 1)
    return {"log_lines_per_s": round(lines / seconds), "log_cpu_us_per_line": round(1e6 * used / lines, 2)}


async def _restart(launcher: Launcher, crowd: Crowd, count: int) -> Json:
    await crowd.forget()
    began = time.monotonic()
    launcher.restart()
    registered = await _until("all registered again", crowd, lambda tally: tally.registered, count)
    await _calm(launcher)
    return {"restart_s": round(registered.last - began, 2), "restart_cpu_s": round(launcher.cpu_s, 2)}


async def _kill_one(launcher: Launcher, crowd: Crowd, count: int, timeout_s: float) -> Json:
    began = time.monotonic()
    await crowd.kill_one()
    stopped = await _until("all told to stop", crowd, lambda tally: tally.stopped, count - 1)
    return {
        "verdict_after_timeout_s": round(stopped.first - began - timeout_s, 2),
        "all_told_after_timeout_s": round(stopped.last - began - timeout_s, 2),
    }


async def _until_listening(launcher: Launcher) -> None:
    deadline = time.monotonic() + _DEADLINE_S
    while "waiting for workers" not in launcher.said():
        if time.monotonic() > deadline:
            raise TimeoutError("the launcher does not listen")
        await asyncio.sleep(0.05)


async def _until(what: str, crowd: Crowd, wanted: Callable[[Tally], Seen], count: int) -> Seen:
    deadline = time.monotonic() + _DEADLINE_S
    while (seen := wanted(await crowd.tally())).count < count:
        if time.monotonic() > deadline:
            raise TimeoutError(f"not within {_DEADLINE_S:g} s: {what} ({seen.count} of {count})")
        await asyncio.sleep(0.1)
    return seen


async def _calm(launcher: Launcher) -> None:
    """Wait until what follows a change is done: the use of CPU does not fall any more."""
    before, last = launcher.cpu_s, float("inf")
    for _ in range(20):
        await asyncio.sleep(1.0)
        now = launcher.cpu_s
        if now - before > 0.9 * last:
            return
        before, last = now, now - before


if __name__ == "__main__":
    main()
