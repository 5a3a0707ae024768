"""`ssh` for scripts in an MPI job's launcher: runs commands on workers through agents, and on other hosts with the real
ssh."""

import os
import sys
from pathlib import Path

from ringtrain_mpi.rsh_client import FAILED, NotStarted, Usage, run_rsh


def main(arguments: list[str]) -> int:
    """Run a command on a worker through its agent, and return its exit code; execute the image's ssh for all other
    calls."""
    try:
        return run_rsh(arguments, is_daemon=False)
    except (Usage, NotStarted) as exc:
        program = next((found for folder in os.get_exec_path() if _is_another_ssh(found := Path(folder, "ssh"))), None)
        if program is None:
            print(f"ssh: {exc}; the image has no ssh program for hosts that are not workers", file=sys.stderr)
            return FAILED
        os.execv(program, ["ssh", *arguments])


def _is_another_ssh(program: Path) -> bool:
    """Return whether the file `program` is executable and not this replacement of ssh."""
    try:
        return os.access(program, os.X_OK) and __name__.encode() not in program.read_bytes()[:4096]
    except OSError:
        return False
