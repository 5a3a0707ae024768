"""What a launcher's script finds as `mpirun` in PATH: the real one, on the command line that the job needs."""

import json
import os
import re
import shutil
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from ringtrain.errors import ConfigurationError
from ringtrain_job.launcher.mpi.command_line import MpirunLine, is_mpirun
from ringtrain_job.mpi.implementation import Implementation, MpiCondition, Mpirun
from ringtrain_job.mpi.rsh_client import WRAPPED
from ringtrain_job.mpi.shim import write_shim

LINE = "RINGTRAIN_MPI_COMMAND"
_NAMES = ("mpirun", "mpiexec", "mpiexec.hydra", "prterun", "orterun")
# A program's absolute path within a shell's text.
_PATH = re.compile(r"(?<![\w./}-])/[\w./+-]+")


def named_mpirun(command: Sequence[str]) -> str | None:
    """The first mpirun that a script's command names by its absolute path, if the image has it there."""
    paths = (path for word in command for path in _PATH.findall(word))
    return next((path for path in paths if is_mpirun(path) and shutil.which(path)), None)


def by_shim(command: Sequence[str], mpirun: str, directory: Path) -> list[str]:
    """A script's `command` with the shim in `directory` wherever it names `mpirun` by this absolute path."""
    shim = str(directory / Path(mpirun).name)
    return [_PATH.sub(lambda found: shim if found[0] == mpirun else found[0], word) for word in command]


def write_mpirun_shims(directory: Path, line: MpirunLine) -> dict[str, str]:
    """Make the programs in `directory`; returns variables that they need."""
    directory.mkdir(exist_ok=True)
    names = {*_NAMES, Path(line.mpirun.path).name}
    for name in names:
        write_shim(directory / name, "ringtrain_job.launcher.mpi.mpirun_shim")
    # A script's own ssh to a host of the hostfile: workers have no sshd, and the agent starts the command there.
    write_shim(directory / "ssh", "ringtrain_job.mpi.ssh_client")
    return {LINE: json.dumps(asdict(line)), "PATH": f"{directory}{os.pathsep}{os.environ.get('PATH', os.defpath)}"}


def main(arguments: list[str]) -> int:
    """Become the real mpirun with `arguments`."""
    shared = json.loads(os.environ[LINE])
    mpirun = shared["mpirun"]
    mpirun["implementation"] = Implementation(mpirun["implementation"])
    line = MpirunLine(**{**shared, "mpirun": Mpirun(**mpirun), "options": tuple(shared["options"])})
    os.environ[WRAPPED] = "1"
    try:
        os.execv(line.mpirun.path, _words(line, arguments))
    except ConfigurationError as exc:
        print(f"ringtrain: {exc}", file=sys.stderr)
        return 64


def _words(line: MpirunLine, arguments: Sequence[str]) -> list[str]:
    if not any(not word.startswith("-") for word in arguments):
        return [line.mpirun.path, *arguments]  # --version and the like
    try:
        return line.words(arguments, variables=os.environ)
    except MpiCondition:
        # Another -np than the job's: the agents say so, with the reason in the job's status.
        return line.words(arguments, as_declared=False, variables=os.environ)
