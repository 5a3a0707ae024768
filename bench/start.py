"""Time of each phase until a job trains, and from a killed rank until the job trains again.

    python -m bench.start
    E2E_RUN="$PWD/.venv/bin/python -m bench.start --cluster" make e2e-local

Runs the digits example with `dtj local`, or with `--cluster` on the cluster of KUBECONFIG, where the operator must
be installed. Kills one of its four ranks as soon as the job trains. Prints the medians of several runs; each line is
the time since the line before. On a cluster the job runs once before, so that the nodes have its images; the nodes
are this machine, or containers on it.
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
from collections.abc import Iterable, Iterator
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
    parser.add_argument("--cluster", action="store_true", help="on the cluster of KUBECONFIG, not by `dtj local`")
    options = parser.parse_args()
    if options.cluster:
        measure_on_cluster()  # images and files are there from now on
    runs = [measure_on_cluster() if options.cluster else measure() for _ in range(options.runs)]
    print("| until | s, median | least to most |\n| --- | --- | --- |")
    for what in runs[0]:
        found = [run[what] for run in runs]
        print(f"| {what} | {statistics.median(found):.2f} | {min(found):.2f} to {max(found):.2f} |")


def measure_on_cluster() -> dict[str, float]:
    """One run on a cluster of this machine."""
    from bench.start_cluster import measure as measured  # elsewhere nothing of Kubernetes is needed

    return measured(JOB, TRAINS.decode())


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
            _kill_a_rank(psutil.Process(process.pid).children(recursive=True))
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


def _kill_a_rank(processes: Iterable[psutil.Process]) -> None:
    ranks = {_rank(process): process for process in processes}
    os.kill(ranks[max(ranks)].pid, signal.SIGKILL)


def _rank(process: psutil.Process) -> int:
    """-1 for what is no rank, or not for our eyes."""
    try:
        return int(process.environ().get("RINGTRAIN_RANK", -1))
    except psutil.Error:
        return -1


def _events(folder: Path, attempt: int) -> dict[str, float]:
    """Return the time of each kind of event that the launcher of an attempt recorded."""
    (path,) = _files(folder, attempt, "events.jsonl")
    events = [json.loads(line) for line in path.read_text().splitlines()]
    return {event["kind"]: event["time"] for event in events}


def _files(folder: Path, attempt: int, name: str) -> Iterator[Path]:
    return folder.glob(f"runs/*/logs/default/digits/{attempt}/{name}")


if __name__ == "__main__":
    main()
