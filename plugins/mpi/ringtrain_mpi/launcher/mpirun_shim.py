"""Replacement for `mpirun` in the PATH of a launcher's script: executes the real mpirun with the job's options."""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from ringtrain.errors import ConfigurationError
from ringtrain_job.control.model import CannotRun
from ringtrain_mpi.implementation import MpiImplementation, MpirunVersion
from ringtrain_mpi.launcher.command_line import MpirunLine, is_mpirun
from ringtrain_mpi.rsh_client import WRAPPED
from ringtrain_mpi.shim import write_shim

LINE = "RINGTRAIN_MPI_COMMAND"
_NAMES = ("mpirun", "mpiexec", "mpiexec.hydra", "prterun", "orterun")
# A program's absolute path within a shell's text.
_PATH = re.compile(r"(?<![\w./}-])/[\w./+-]+")
_SHELLS = ("sh", "bash", "dash", "zsh", "ksh")
_PROFILE_S = 30.0


def named_mpirun(command: Sequence[str]) -> str | None:
    """Return the first existing mpirun that a script's command names by absolute path; None if it names none."""
    paths = (path for word in command for path in _PATH.findall(word))
    return next((path for path in paths if is_mpirun(path) and shutil.which(path)), None)


def mpirun_login_path(command: Sequence[str]) -> str | None:
    """Return the PATH that the login shell `command` would set; None if it is not a login shell or fails."""
    if not _mpirun_login_shell(command)[0]:
        return None
    words = [command[0], "-lc", 'printf "\\n%s" "$PATH"']
    try:
        answer = subprocess.run(
            words, capture_output=True, text=True, timeout=_PROFILE_S, stdin=subprocess.DEVNULL, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return answer.stdout.rpartition("\n")[2] or None


def mpirun_by_shim(command: Sequence[str], mpirun: str, directory: Path) -> list[str]:
    """Return a script's `command` with the path `mpirun` replaced by the shim in `directory`. For a login shell, whose
    /etc/profile resets PATH, the script also sets PATH."""
    shim = str(directory / Path(mpirun).name)
    words = [_PATH.sub(lambda found: shim if found[0] == mpirun else found[0], word) for word in command]
    is_login, text = _mpirun_login_shell(command)
    if is_login and text < len(words):
        words[text] = f"PATH={shlex.quote(str(directory))}:$PATH; export PATH\n{words[text]}"
    return words


def _mpirun_login_shell(command: Sequence[str]) -> tuple[bool, int]:
    """Return a pair: whether `command` starts a login shell, and the index of the script text in it (its length if it
    has none)."""
    if Path(command[0]).name not in _SHELLS:
        return False, len(command)
    position, is_login, has_text = 1, False, False
    while position < len(command) and command[position].startswith(("-", "+")):
        word = command[position]
        is_login |= word == "--login" or bool(re.match(r"-\w*l", word))
        has_text |= bool(re.match(r"-\w*c", word))
        position += 2 if re.fullmatch(r"[-+]\w*o", word) else 1
    return is_login, position if has_text else len(command)


def write_mpirun_shims(directory: Path, line: MpirunLine) -> dict[str, str]:
    """Create the shims of mpirun and ssh in `directory`; return the variables with which a script finds them.

    A bash whose script or /etc/profile resets PATH finds them as functions.
    """
    directory.mkdir(exist_ok=True)
    names = {*_NAMES, Path(line.mpirun.path).name}
    for name in names:
        write_shim(directory / name, "ringtrain_mpi.launcher.mpirun_shim")
    # A script's own ssh to a host of the hostfile: workers have no sshd, so the agent starts the command.
    write_shim(directory / "ssh", "ringtrain_mpi.ssh_client")
    functions = {
        f"BASH_FUNC_{name}%%": f'() {{  {shlex.quote(str(directory / name))} "$@"\n}}'
        for name in sorted({*names, "ssh"})
        if name.isidentifier()  # a bash started as sh complains about other names
    }
    path = f"{directory}{os.pathsep}{os.environ.get('PATH', os.defpath)}"
    return {**functions, LINE: json.dumps(asdict(line)), "PATH": path}


def main(arguments: list[str]) -> int:
    """Execute the real mpirun with the script's `arguments` and the options that the job needs. Return an exit code
    only if that fails."""
    shared = json.loads(os.environ[LINE])
    mpirun = shared["mpirun"]
    mpirun["implementation"] = MpiImplementation(mpirun["implementation"])
    line = MpirunLine(**{**shared, "mpirun": MpirunVersion(**mpirun), "options": tuple(shared["options"])})
    os.environ[WRAPPED] = "1"
    try:
        os.execv(line.mpirun.path, _mpirun_words(line, arguments))
    except ConfigurationError as exc:
        print(f"ringtrain: {exc}", file=sys.stderr)
        return 64


def _mpirun_words(line: MpirunLine, arguments: Sequence[str]) -> list[str]:
    if not any(not word.startswith("-") for word in arguments):
        return [line.mpirun.path, *arguments]  # --version and similar
    try:
        return line.words(arguments, variables=os.environ)
    except CannotRun:
        # Another -np than the job's: the agents refuse it, and the job's status shows the reason.
        return line.words(arguments, as_declared=False, variables=os.environ)
