"""Hostfile and environment variables with which the launcher runs mpirun, for each MPI implementation."""

import re
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ringtrain_job.control.model import Registration
from ringtrain_mpi.implementation import MpiImplementation, MpirunVersion
from ringtrain_mpi.intel import intel_installation_variables, intel_mpi_variables_passed_on
from ringtrain_mpi.settings import HOME

# Prefix of the names of workers whose address is not unique.
_SHARING = "ringtrain-worker-"


def mpirun_host_names(workers: Sequence[Registration], own_address: str) -> list[str]:
    """Return a hostfile name for each worker: the IP address that its agent registered, if that address is unique.

    Two kinds of workers get a name that only `ringtrain rsh` resolves: workers that share an address (one machine, or
    the network of one node), and a worker with the launcher's address, where mpirun would start the ranks itself.
    """
    count = Counter(worker.address for worker in workers)
    return [
        worker.address
        if count[worker.address] == 1 and worker.address != own_address
        else f"{_SHARING}{worker.worker_index}"
        for worker in workers
    ]


def mpirun_hostfile(slots: Mapping[str, int], implementation: MpiImplementation) -> str:
    """Return the text of the hostfile. The order of its lines places rank r on worker r // (slots per worker), unless
    the user maps otherwise.

    `slots`: slots of each worker, by its name for mpirun.
    """
    if implementation is MpiImplementation.OPEN_MPI:
        return "".join(f"{host} slots={count}\n" for host, count in slots.items())
    return "".join(f"{host}:{count}\n" for host, count in slots.items())


@dataclass(frozen=True)
class MpirunPaths:
    """Files that the launcher creates for mpirun. `rsh`: program that replaces ssh. `socket`: socket by which `rsh`
    calls the launcher."""

    hostfile: Path
    rsh: Path
    socket: Path


def mpirun_environment(
    mpirun: MpirunVersion, paths: MpirunPaths, slots: Mapping[str, int], inherited: Mapping[str, str]
) -> dict[str, str]:
    """Return the environment of `mpirun`. `slots`: number of ranks by host. The user's MPI variables override ours,
    except those that say how daemons are started."""
    if mpirun.implementation is MpiImplementation.OPEN_MPI:
        defaults, ours = _open_mpi_environment(paths)
        if any(name.startswith(_SHARING) for name in slots):
            # Open MPI 5 builds its hierarchical collectives from the ranks that share a node. Daemons with one host
            # name sometimes disagree on that: then an allreduce never ended.
            defaults["OMPI_MCA_coll_han_priority"] = "0"
    elif mpirun.implementation is MpiImplementation.MPICH:
        defaults, ours = {}, _mpich_environment(paths)
    else:
        defaults, ours = _intel_mpi_environment(paths, max(slots.values()))
        ours |= intel_installation_variables(mpirun.path, inherited)
    return {**HOME, **defaults, **inherited, **ours, "RINGTRAIN_RSH_SOCKET": str(paths.socket)}


def _open_mpi_environment(paths: MpirunPaths) -> tuple[dict[str, str], dict[str, str]]:
    """Return Open MPI's variables: those that the user may override, and fixed ones. Version 4 reads OMPI_MCA_…,
    version 5 PRTE_MCA_…; without the latter, version 5 would run all ranks on the launcher and report success."""
    defaults = {
        # Pods run under any user id; mpirun's warning about root does not apply to a container's root.
        "OMPI_ALLOW_RUN_AS_ROOT": "1",
        "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
        "PRTE_ALLOW_RUN_AS_ROOT": "1",
        "PRTE_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
        # Ranks of other pods share the node's cores: a bound rank would share its core with their ranks.
        "OMPI_MCA_hwloc_base_binding_policy": "none",
        "PRTE_MCA_hwloc_default_binding_policy": "none",
    }
    ours = {
        "OMPI_MCA_plm": "rsh",
        "PRTE_MCA_plm": "ssh",
        "OMPI_MCA_plm_rsh_agent": str(paths.rsh),
        "PRTE_MCA_plm_ssh_agent": str(paths.rsh),
        # Workers have no certificate to start each other's daemons: the launcher starts all.
        "OMPI_MCA_plm_rsh_no_tree_spawn": "1",
        "PRTE_MCA_plm_ssh_no_tree_spawn": "1",
        # The daemon remains the process that `ringtrain rsh` runs: it ends with the call, and the call with it.
        "OMPI_MCA_orte_leave_session_attached": "1",
        "PRTE_MCA_prte_leave_session_attached": "1",
        # All at once: the default of 128 at a time would delay larger jobs.
        "OMPI_MCA_plm_rsh_num_concurrent": "1024",
        "PRTE_MCA_plm_ssh_num_concurrent": "1024",
        "OMPI_MCA_orte_default_hostfile": str(paths.hostfile),
        "PRTE_MCA_prte_default_hostfile": str(paths.hostfile),
        # Addresses are those that the agents registered; names need not resolve.
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
        # A script's `-f hostfile` provides only the hosts; without this variable each gets a rank per core.
        "I_MPI_PERHOST": str(slots),
        # Ranks of other pods share the node's cores: a bound rank would share its core with their ranks.
        "I_MPI_PIN": "0",
    }
    ours = {
        "I_MPI_HYDRA_BOOTSTRAP": "ssh",
        "I_MPI_HYDRA_BOOTSTRAP_EXEC": str(paths.rsh),
        "I_MPI_HYDRA_HOST_FILE": str(paths.hostfile),
        # More than 16 daemons would start each other, for which workers have no certificate.
        "I_MPI_HYDRA_BRANCH_COUNT": "1024",
    }
    return defaults, ours


# Open MPI 4 passes the launcher's own settings to its daemons in this form.
_OF_THE_LAUNCHER = re.compile(r' -mca (?:plm|plm_rsh_agent|orte_default_hostfile) "[^"]*"')


# Address to which Intel's daemon connects although mpirun was started with -localhost.
_UPSTREAM = re.compile(r"(?<= --upstream-host )\S+")


def mpirun_daemon_command(command: str, own_address: str) -> str:
    """Return the daemon's `command` without paths of files that exist only on the launcher.

    Open MPI 4's daemon ends if it does not find the remote shell of its command line, although it does not use it.
    `own_address`: replaces the launcher's host name, which workers may be unable to resolve.
    """
    return _UPSTREAM.sub(own_address, _OF_THE_LAUNCHER.sub("", command))


def placing_options(implementation: MpiImplementation, own_address: str, variables: Collection[str]) -> list[str]:
    """Return options for mpirun that no variable can set. `variables`: names of the variables in its environment."""
    if implementation is MpiImplementation.OPEN_MPI:
        return []
    # Without -localhost, Hydra's proxies would connect to the launcher's host name, which they may be unable to
    # resolve. Without -genvnone, the launcher's environment would replace the workers' (PATH, devices, …); `-genv`
    # still adds to it. As with Open MPI, ranks get the launcher's values of Intel MPI's own variables.
    passed = intel_mpi_variables_passed_on(variables) if implementation is MpiImplementation.INTEL else ["-genvnone"]
    return ["-localhost", own_address, *passed]
