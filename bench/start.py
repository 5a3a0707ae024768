"""Where the time goes until a job trains, and from a killed rank until it trains again.

    python -m bench.start

Runs the digits example by `dtj local`, kills one of its four ranks as soon as it trains, and prints the medians
of some runs: each line is what passed since the line before.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import psutil

ROOT = Path(__file__).parents[1]
JOB = ROOT / "manifests" / "samples" / "digits-ring.yaml"
_DEADLINE_S = 120.0
TRAINS = b"epoch 1/"


def main() -> None:
    """Measure, and print a table in Markdown."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=5)
    options = parser.parse_args()
    runs = [measure() for _ in range(options.runs)]
    print("| until | s, median | least to most |\n| --- | --- | --- |")
    for what in runs[0]:
        found = [run[what] for run in runs]
        print(f"| {what} | {statistics.median(found):.2f} | {min(found):.2f} to {max(found):.2f} |")


def measure() -> dict[str, float]:
    """One run: seconds since the moment before, by what they ended with."""
    with tempfile.TemporaryDirectory(prefix="bench-start-") as name:
        folder = Path(name)
        (folder / "examples").symlink_to(ROOT / "examples")
        dtj = shutil.which("dtj", path=str(Path(sys.executable).parent)) or "dtj"
        began = time.time()
        with (folder / "out").open("wb") as out:
            process = subprocess.Popen([dtj, "local", str(JOB)], cwd=folder, stdout=out, stderr=out)
        try:
            trained = _until_trains(folder, 1)
            _kill_a_rank(process.pid)
            killed = time.time()
            again = _until_trains(folder, 2)
        finally:
            process.terminate()
            process.wait(_DEADLINE_S)
        first, second = _events(folder, 1), _events(folder, 2)
    return {
        "the launcher runs": first["Launcher"] - began,
        "all ranks are started": first["Running"] - first["Launcher"],
        "the first epoch is over": trained - first["Running"],
        "a rank is killed, and named": first["Failed"] - killed,
        "the next attempt's launcher runs": second["Launcher"] - first["Failed"],
        "all its ranks are started": second["Running"] - second["Launcher"],
        "its first epoch is over": again - second["Running"],
    }


def _until_trains(folder: Path, attempt: int) -> float:
    deadline = time.monotonic() + _DEADLINE_S
    while not any(TRAINS in log.read_bytes() for log in _files(folder, attempt, "job.log")):
        if time.monotonic() > deadline:
            raise TimeoutError(f"attempt {attempt} did not train within {_DEADLINE_S:g} s")
        time.sleep(0.01)
    return time.time()


def _kill_a_rank(pid: int) -> None:
    processes = psutil.Process(pid).children(recursive=True)
    ranks = [one for one in processes if "RINGTRAIN_RANK" in one.environ()]
    os.kill(max(ranks, key=lambda one: int(one.environ()["RINGTRAIN_RANK"])).pid, signal.SIGKILL)


def _events(folder: Path, attempt: int) -> dict[str, float]:
    """When the launcher of an attempt noted each kind of event."""
    (path,) = _files(folder, attempt, "events.jsonl")
    events = [json.loads(line) for line in path.read_text().splitlines()]
    return {event["kind"]: event["time"] for event in events}


def _files(folder: Path, attempt: int, name: str) -> Iterator[Path]:
    return folder.glob(f"runs/*/logs/default/digits/{attempt}/{name}")


if __name__ == "__main__":
    main()
