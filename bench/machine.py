"""Description of the machine that ran a benchmark, and versions of the software."""

import importlib.metadata
import os
import platform
import shutil
import subprocess
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from bench.contest import REPOSITORY

PACKAGES = ("numpy", "grpcio", "torch", "mpi4py")


def machine() -> dict[str, Any]:
    """Processor, kernel, versions, commit, load and time."""
    model = [line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("model name")]
    versions = {name: importlib.metadata.version(name) for name in PACKAGES}
    mpirun = shutil.which("mpirun")
    if mpirun is not None:
        versions["mpirun"] = _output([mpirun, "--version"]).partition("\n")[0].removeprefix("mpirun ")
    changed = _output(["git", "status", "--porcelain", "--untracked-files=no", "--", ":!bench/results"])
    return {
        "cores": len(os.sched_getaffinity(0)),
        "processor": model[0].partition(": ")[2] if model else platform.processor(),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "versions": versions,
        "commit": _output(["git", "rev-parse", "HEAD"]) + (" and changes" if changed else ""),
        "load_before": load(),
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def load() -> float:
    """Processes that ran or waited for a processor, over the last minute."""
    return round(os.getloadavg()[0], 2)


def _output(command: list[str]) -> str:
    """Return the stripped output of `command`; empty if it can't run or fails."""
    try:
        return subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return ""
