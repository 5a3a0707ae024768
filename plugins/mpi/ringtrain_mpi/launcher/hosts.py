"""What mpirun must know of the workers and of us: hostfile and environment, under every name it has had."""

import re
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ringtrain_job.control.model import Registration
from ringtrain_mpi.implementation import MpiImplementation, MpirunVersion
from ringtrain_mpi.intel import intel_installation_variables, intel_mpi_variables_passed_on
from ringtrain_mpi.settings import HOME

# What begins the names of workers whose address is not theirs alone.
_SHARING = "ringtrain-worker-"


def mpirun_host_names(workers: Sequence[Registration], own_address: str) -> list[str]:
    """A name for each worker: the address that its agent registered, which needs no name service.

    Not for workers on one address (on one machine, or in the network of one node), nor for one on the launcher's,
    where mpirun would start the ranks itself: they get names that mpirun only hands to `ringtrain rsh`.
    """
    count = Counter(worker.address for worker in workers)
    return [
        worker.address
        if count[worker.address] == 1 and worker.address != own_address
        else f"{_SHARING}{worker.worker_index}"
        for worker in workers
    ]


def mpirun_hostfile(slots: Mapping[str, int], implementation: MpiImplementation) -> str:
    """The workers in order, so that rank r is on worker r // slots unless the user maps otherwise.

    `slots`: of each worker, by its name for mpirun.
    """
    if implementation is MpiImplementation.OPEN_MPI:
        return "".join(f"{host} slots={count}\n" for host, count in slots.items())
    return "".join(f"{host}:{count}\n" for host, count in slots.items())


@dataclass(frozen=True)
class MpirunPaths:
    """Files that the launcher has made for mpirun. `rsh`: the executable in the place of ssh."""

    hostfile: Path
    rsh: Path
    socket: Path


def mpirun_environment(
    mpirun: MpirunVersion, paths: MpirunPaths, slots: Mapping[str, int], inherited: Mapping[str, str]
) -> dict[str, str]:
    """All variables of `mpirun`, with the `slots` of each host. The user's own settings of MPI win, except for how
    daemons are started."""
    if mpirun.implementation is MpiImplementation.OPEN_MPI:
        defaults, ours = _open_mpi_environment(paths)
        if any(name.startswith(_SHARING) for name in slots):
            # Open MPI 5 builds its hierarchical collectives on which ranks have a node in common. Daemons with one
            # host name don't all agree on that, now and then: an allreduce then never ended.
            defaults["OMPI_MCA_coll_han_priority"] = "0"
    elif mpirun.implementation is MpiImplementation.MPICH:
        defaults, ours = {}, _mpich_environment(paths)
    else:
        defaults, ours = _intel_mpi_environment(paths, max(slots.values()))
        ours |= intel_installation_variables(mpirun.path, inherited)
    return {**HOME, **defaults, **inherited, **ours, "RINGTRAIN_RSH_SOCKET": str(paths.socket)}


def _open_mpi_environment(paths: MpirunPaths) -> tuple[dict[str, str], dict[str, str]]:
    """Open MPI 4 (ORTE) reads OMPI_MCA_…, Open MPI 5 (PRRTE) PRTE_MCA_…: with the old names alone, 5 would run all
    ranks on the launcher and report success."""
    defaults = {
        # Pods run under any user id; the root of a container is not the root that mpirun warns of.
        "OMPI_ALLOW_RUN_AS_ROOT": "1",
        "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
        "PRTE_ALLOW_RUN_AS_ROOT": "1",
        "PRTE_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
        # Ranks of other pods share the node's cores: a bound rank would share one of them with its neighbours.
        "OMPI_MCA_hwloc_base_binding_policy": "none",
        "PRTE_MCA_hwloc_default_binding_policy": "none",
    }
    ours = {
        "OMPI_MCA_plm": "rsh",
        "PRTE_MCA_plm": "ssh",
        "OMPI_MCA_plm_rsh_agent": str(paths.rsh),
        "PRTE_MCA_plm_ssh_agent": str(paths.rsh),
        # Workers hold no certificate with which they could start each other's daemons: the launcher starts all.
        "OMPI_MCA_plm_rsh_no_tree_spawn": "1",
        "PRTE_MCA_plm_ssh_no_tree_spawn": "1",
        # The daemon stays what `ringtrain rsh` runs: it ends with the call, and the call with it.
        "OMPI_MCA_orte_leave_session_attached": "1",
        "PRTE_MCA_prte_leave_session_attached": "1",
        # All at once: the default is 128 at a time, which larger jobs would notice.
        "OMPI_MCA_plm_rsh_num_concurrent": "1024",
        "PRTE_MCA_plm_ssh_num_concurrent": "1024",
        "OMPI_MCA_orte_default_hostfile": str(paths.hostfile),
        "PRTE_MCA_prte_default_hostfile": str(paths.hostfile),
        # Addresses are what the agents registered; a name that does not resolve must not matter.
        "OMPI_MCA_orte_keep_fqdn_hostnames": "1",
        "PRTE_MCA_prte_keep_fqdn_hostnames": "1",
    }
    return defaults, ours


def _mpich_environment(paths: MpirunPaths) -> dict[str, str]:
    return {
        "HYDRA_LAUNCHER": "ssh",
        "HYDRA_LAUNCHER_EXEC": str(paths.rsh),
        "HYDRA_HOST_FILE": str(paths.hostfile),
    }


def _intel_mpi_environment(paths: MpirunPaths, slots: int) -> tuple[dict[str, str], dict[str, str]]:
    defaults = {
        # A script's `-f hostfile` reads the hosts alone; where this is not set, each gets a rank for each core.
        "I_MPI_PERHOST": str(slots),
        # Ranks of other pods share the node's cores: a bound rank would share one of them with its neighbours.
        "I_MPI_PIN": "0",
    }
    ours = {
        "I_MPI_HYDRA_BOOTSTRAP": "ssh",
        "I_MPI_HYDRA_BOOTSTRAP_EXEC": str(paths.rsh),
        "I_MPI_HYDRA_HOST_FILE": str(paths.hostfile),
        # More than 16 daemons would start each other, for which workers hold no certificate.
        "I_MPI_HYDRA_BRANCH_COUNT": "1024",
    }
    return defaults, ours


# As Open MPI 4 hands the launcher's own settings to its daemons.
_OF_THE_LAUNCHER = re.compile(r' -mca (?:plm|plm_rsh_agent|orte_default_hostfile) "[^"]*"')


# By which Intel's daemon calls back, although mpirun was given -localhost.
_UPSTREAM = re.compile(r"(?<= --upstream-host )\S+")


def mpirun_daemon_command(command: str, own_address: str) -> str:
    """mpirun's `command` for a daemon, without files that only the launcher has: Open MPI 4's daemon ends if it
    does not find the remote shell that it was told of, although it starts nothing by it.

    `own_address`: the launcher's, in the place of its host name, which need not resolve in the workers.
    """
    return _UPSTREAM.sub(own_address, _OF_THE_LAUNCHER.sub("", command))


def placing_options(implementation: MpiImplementation, own_address: str, variables: Collection[str]) -> list[str]:
    """Options that only mpirun's command line can carry. `variables`: names of those that mpirun has."""
    if implementation is MpiImplementation.OPEN_MPI:
        return []
    # Hydra would have the proxies call back to the launcher's host name, which need not resolve in them; and it
    # would replace the workers' environment (PATH, devices, …) by the launcher's. `-genv` still adds to it.
    # Of Intel MPI's own variables ranks get the launcher's, as of Open MPI's.
    passed = intel_mpi_variables_passed_on(variables) if implementation is MpiImplementation.INTEL else ["-genvnone"]
    return ["-localhost", own_address, *passed]
