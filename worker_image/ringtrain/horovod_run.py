"""Arguments of `horovod.run`: the effect of some on local ranks, and the reasons why others are ignored."""

import logging
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from ringtrain.errors import ConfigurationError, counted
from ringtrain.shared import contract
from ringtrain.shared.hosts import read_hostfile, read_hosts

log = logging.getLogger("ringtrain")

_ELASTIC: Final = "run() starts a fixed number of ranks; horovodrun --min-np starts elastic ones"
_NO_SSH: Final = "run() starts its ranks on this machine"
IGNORED_ARGUMENTS: Final = {
    "min_num_proc": _ELASTIC,
    "max_num_proc": _ELASTIC,
    "min_np": _ELASTIC,
    "max_np": _ELASTIC,
    "slots": _ELASTIC,
    "reset_limit": _ELASTIC,
    "cooldown_range": _ELASTIC,
    "ssh_port": _NO_SSH,
    "ssh_identity_file": _NO_SSH,
    "network_interface": _NO_SSH,
    "network_interfaces": _NO_SSH,
    "disable_cache": "no check runs before the start, so there is no cache",
    "use_gloo": "ranks exchange over Ringtrain's own connections",
    "use_mpi": "ranks exchange over Ringtrain's own connections",
    "mpi_args": "run() does not use mpirun",
}


def warn_ignored_arguments(**given: object) -> None:
    """Log a warning for each argument that is not None. Each must be a key of `IGNORED_ARGUMENTS`."""
    for name, value in given.items():
        if value is not None:
            log.warning("run: the argument %s is ignored: %s", name, IGNORED_ARGUMENTS[name])


def checked_rank_count(requested: Any, hosts: str | None, hostfile: str | None) -> Any:
    """Return `requested`, the number of ranks. Checks that `hosts` or `hostfile` provides enough slots.

    Raises ConfigurationError if both `hosts` and `hostfile` are set, if a host is another machine, and if there are too
    few slots.
    """
    if hosts is not None and hostfile is not None:
        raise ConfigurationError(f"run: hosts={hosts!r} and hostfile={hostfile!r} are both set; pass one of them")
    if hosts is None and hostfile is None:
        return requested
    ranks = requested if isinstance(requested, int) else 1
    found = (
        read_hosts("run: hosts", hosts, ranks)
        if hosts is not None
        else read_hostfile("run: hostfile", str(hostfile), ranks)
    )
    if others := [host.name for host in found if not host.is_here]:
        raise ConfigurationError(
            f"run: {others[0]} is another machine, but run() starts ranks only on this one; use horovodrun -H or a job"
        )
    there = sum(host.slots for host in found)
    if isinstance(requested, int) and requested > there:
        raise ConfigurationError(
            f"run: np={requested}, but the hosts have only {counted(there, 'slot')}; pass hosts with at least "
            f"{counted(requested, 'slot')}"
        )
    return requested


def variables(start_timeout: float | None, verbose: Any) -> dict[str, str]:
    """Return environment variables that pass these arguments of `horovod.run` to the ranks."""
    found = {}
    if start_timeout is not None:
        found[contract.ENV_TIMEOUT] = f"{float(start_timeout):g}"
    if verbose is not None and int(verbose) >= 2:
        found[contract.ENV_LOG_LEVEL] = "info"
    return found


def output_directories(name: str | None, size: int) -> Sequence[Path | None]:
    """Create and return a folder for each rank's output in directory `name`. Raises ConfigurationError if that
    fails."""
    if name is None:
        return [None] * size
    digits = len(str(size - 1))
    folders = [Path(name) / f"rank.{rank:0{digits}d}" for rank in range(size)]
    try:
        for folder in folders:
            folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigurationError(
            f"run: output_filename is {name!r}: {error.strerror}; give a directory that you can write"
        ) from error
    return folders


def redirect_output(folder: Path) -> None:
    """Redirect stdout and stderr of this process, and of those that it starts, to files in `folder`."""
    for stream, number in ((sys.stdout, 1), (sys.stderr, 2)):
        stream.flush()
        path = folder / ("stdout" if number == 1 else "stderr")
        file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
        os.dup2(file, number)
        os.close(file)
