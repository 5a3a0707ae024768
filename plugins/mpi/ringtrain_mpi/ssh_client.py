"""`ssh` in the launcher of an MPI job: runs commands on workers through their agents, else calls the image's own
ssh."""

import os
import sys
from pathlib import Path

from ringtrain_mpi.rsh_client import FAILED, NotStarted, Usage, run_rsh


def main(arguments: list[str]) -> int:
    """Run the command like ssh. Calls that this program cannot handle are passed to the image's ssh."""
    try:
        return run_rsh(arguments, is_daemon=False)
    except (Usage, NotStarted) as exc:
        program = next((found for folder in os.get_exec_path() if _is_another_ssh(found := Path(folder, "ssh"))), None)
        if program is None:
            print(f"ssh: {exc}; the image has no ssh for other hosts", file=sys.stderr)
            return FAILED
        os.execv(program, ["ssh", *arguments])


def _is_another_ssh(program: Path) -> bool:
    """Return whether `program` is another ssh than this one."""
    try:
        return os.access(program, os.X_OK) and __name__.encode() not in program.read_bytes()[:4096]
    except OSError:
        return False
