"""Variables for Intel MPI, which Intel's images set in an entrypoint that does not run in a job's pods."""

import os
import shlex
from collections.abc import Collection, Mapping
from pathlib import Path

# Prefixes of the launcher's variables that configure Intel MPI and its network in ranks. Excluded: mpirun's own
# variables, and installation paths, which each pod sets itself.
_PREFIXES = ("I_MPI_", "FI_")
_NOT_FOR_RANKS = ("I_MPI_HYDRA_", "I_MPI_INFO_", "I_MPI_PERHOST", "I_MPI_MPIRUN", "I_MPI_ROOT", "FI_PROVIDER_PATH")
_DAEMON = "hydra_bstrap_proxy"


def intel_mpi_variables_passed_on(variables: Collection[str]) -> list[str]:
    """Return mpirun's options that pass the launcher's I_MPI_ and FI_ variables to all ranks."""
    names = [name for name in sorted(variables) if name.startswith(_PREFIXES)]
    names = [name for name in names if not name.startswith(_NOT_FOR_RANKS)]
    return ["-genvlist", ",".join(names)] if names else ["-genvnone"]


def intel_daemon_variables(command: str, inherited: Mapping[str, str]) -> dict[str, str]:
    """Return Intel MPI's library paths for a daemon and its ranks; empty if `command` is not Intel's daemon."""
    words = shlex.split(command)
    return intel_installation_variables(words[0], inherited) if words and Path(words[0]).name == _DAEMON else {}


def intel_installation_variables(program: str, inherited: Mapping[str, str]) -> dict[str, str]:
    """Return variables with the library paths of the Intel MPI that contains `program`; empty if I_MPI_ROOT is set.

    These are the variables that its env/vars.sh sets: of 2021.11 and newer, and of older versions, whose folders have
    other names.
    """
    root = Path(os.path.normpath(program)).parents[1]
    if inherited.get("I_MPI_ROOT") or not (root / "lib").is_dir():
        return {}
    network = [folder for folder in (root / "opt/mpi/libfabric/lib", root / "libfabric/lib") if folder.is_dir()]
    libraries = [*network, root / "lib", root / "lib/release"]
    found = {"I_MPI_ROOT": root, "LD_LIBRARY_PATH": _search_intel_mpi(libraries, inherited, "LD_LIBRARY_PATH")}
    if network:
        found["FI_PROVIDER_PATH"] = _search_intel_mpi([network[0] / "prov"], inherited, "FI_PROVIDER_PATH")
    return {name: str(value) for name, value in found.items()}


def _search_intel_mpi(folders: list[Path], inherited: Mapping[str, str], name: str) -> str:
    own = inherited.get(name)
    return os.pathsep.join([*(str(folder) for folder in folders if folder.is_dir()), *([own] if own else [])])
