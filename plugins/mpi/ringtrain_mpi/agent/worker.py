"""Worker agent of an MPI job: the registry of ranks, mpirun's daemons, and their callbacks."""

import fcntl
import importlib.util
import logging
import os
import shutil
import signal
import socket
import tempfile
import threading
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from ringtrain.errors import ConfigurationError, counted
from ringtrain.shared import contract
from ringtrain.shared.processes import NO_PROGRAM, RankProcess, make_pipe, signal_group
from ringtrain.shared.rpc import add_service
from ringtrain_job.agent.config import AgentConfig
from ringtrain_job.agent.rank_env import generation_variables, pod_defaults, rank_variables, usable_cores
from ringtrain_job.agent.starters import RankSink
from ringtrain_job.control.model import RankPhase, RankState, Reason, World
from ringtrain_mpi.agent.children import MpiAgentMainThread, MpiDaemonChildren
from ringtrain_mpi.agent.daemons import DAEMONS, Deadlines, MpiDaemonContext, MpiDaemonService
from ringtrain_mpi.agent.rank_registry import Arrival, Departure, MpiRankRegistry
from ringtrain_mpi.implementation import MpiImplementation, mpi_library_of
from ringtrain_mpi.intel import intel_daemon_variables
from ringtrain_mpi.rank_wrapper import NODE_NAME, OWN_PRELOAD, REGISTRY, RankAssignment
from ringtrain_mpi.settings import HOME, MpiAgentSettings
from ringtrain_mpi.shim import write_shim

log = logging.getLogger(__name__)

WRAPPER = "RINGTRAIN_MPI_WRAPPER"
_WRAPPER_FILE, _REGISTRY_FILE = "rank", "registry"
# Variables of a rank that do not depend on its worker.
_EVERYWHERE = (
    "RANK",
    "WORLD_SIZE",
    "MASTER_ADDR",
    "MASTER_PORT",
    "JAX_COORDINATOR_ADDRESS",
    "JAX_NUM_PROCESSES",
    "JAX_PROCESS_ID",
    contract.ENV_GENERATION,
    contract.ENV_ATTEMPT,
    contract.ENV_TIMEOUT,
    contract.ENV_JOB_NAME,
    contract.ENV_JOB_NAMESPACE,
    contract.ENV_TOKEN_FILE,
    contract.ENV_CHECKPOINT_DIR,
    contract.ENV_RESTORE_FROM,
    contract.ENV_DATA_WORKERS_FILE,
)
_PREFIX: Final = "ringtrain-mpi-"
_LOCK: Final = "agent.lock"  # locked by the agent as long as it lives
_NODE_NAME_LIBRARY: Final = "ringtrain_mpi.agent._node_name"
# Limit on concurrent daemons, each of which occupies a thread of the agent's server. A job has one per worker.
MPI_DAEMONS = 4


class MpiWorkerAgent:
    """Agent of an MPI job: accepts the ranks and the daemons of mpirun. Call `begin` before mpirun starts."""

    def __init__(
        self, config: AgentConfig, settings: MpiAgentSettings, pod: RankSink, main: MpiAgentMainThread
    ) -> None:
        self._config = config
        self._needs_init = settings.needs_init
        self._pod = pod
        self._world: World | None = None
        self._begun = threading.Event()
        self._assigned: dict[int, RankProcess] = {}
        self._starters: dict[int, str] = {}
        # Failures of refused ranks. If such a rank runs nevertheless, it has failed, whatever its exit code.
        self._refused: dict[int, RankState] = {}
        self._directory = _make_mpi_agent_directory(settings.directory)
        self._shared = _mpi_directory_in_memory()
        write_shim(self._directory / _WRAPPER_FILE, "ringtrain_mpi.rank_wrapper")
        self.children = MpiDaemonChildren(main)
        self._registry = MpiRankRegistry(self._directory / _REGISTRY_FILE, main, self)

    def close(self) -> None:
        """Stop accepting ranks, and delete the agent's directories."""
        self._registry.close()
        self.children.close()
        for directory in (self._directory, self._shared):
            shutil.rmtree(directory, ignore_errors=True)

    def begin(self, world: World) -> None:
        """Permit ranks of `world` to start. Call it when all agents have registered with the launcher."""
        self._world = world
        self._refused.clear()
        self._begun.set()

    def pause(self) -> None:
        """Refuse new ranks until `begin` is called again."""
        self._begun.clear()

    def await_begun(self) -> None:
        """Wait until `begin` is called, because requests of mpirun may arrive earlier. Raises ConfigurationError after
        a deadline."""
        if not self._begun.wait(self._config.call_s):
            raise ConfigurationError("the job has not begun: the launcher still waits for other agents")

    def environment(self, command: str) -> Mapping[str, str]:
        """Return variables for the daemon that `command` starts and for its ranks: the pod's, and the paths of the
        registry."""
        defaults = pod_defaults(self._config.slots, usable_cores())
        directories = _own_mpi_directories(self._directory, self._shared)
        name = node_name_variables(command, self._config.pod, os.environ)
        own = {**os.environ, **intel_daemon_variables(command, os.environ)}
        return {**HOME, **defaults, **directories, **own, **registry_variables(self._directory), **name}

    def register(self, server: Any) -> None:
        """Add the service that starts mpirun's daemons to the agent's gRPC server."""
        config = self._config
        deadlines = Deadlines(start_s=config.call_s, grace_s=config.grace_s)
        context = MpiDaemonContext(self.children, self.environment, self.await_begun)
        service = MpiDaemonService(config.job, config.secrets.token, context, deadlines)
        add_service(server, DAEMONS, service)

    def assign(self, arrival: Arrival) -> RankAssignment:
        """Accept a rank that mpirun has started here; return its pipes and variables, or raise ConfigurationError."""
        config, world = self._config, self._world
        if world is None or not self._begun.is_set() or self._pod.stopping:
            raise ConfigurationError("this agent accepts no ranks now: the generation of this rank has ended")
        if message := self._refusal(arrival, len(world.ring_addresses)):
            self._refused[arrival.rank] = problem = _mpi_rank_failed(arrival.rank, Reason.SLOTS_MISMATCH, message)
            self._pod.rank_ended(arrival.rank, 0, problem)
            raise ConfigurationError(message)
        log_read, log_write = make_pipe()
        report_read, report_write = make_pipe()
        os.set_blocking(report_write, False)
        self._starters[arrival.rank] = arrival.starter
        slot = world.members[arrival.rank].slot if world.members else arrival.rank
        self._assigned[arrival.rank] = process = RankProcess(slot, 0, log_read, report_read)
        self._pod.collect(process)
        own = range(config.first_rank, config.first_rank + config.slots)
        if world.members:
            variables = generation_variables(config, world, slot)
        else:
            variables = rank_variables(config, world, slot)
        check_in = self._directory / f"check-in-{arrival.rank}"
        check_in.unlink(missing_ok=True)  # left by a rank of an earlier generation
        if slot not in own:  # mapped by the user (--map-by node): MPI's own variables contain its place
            variables = {name: variables[name] for name in _EVERYWHERE if name in variables}
        return RankAssignment(log_write, report_write, self._pod.fitted(variables, world), str(check_in))

    def _refusal(self, arrival: Arrival, declared: int) -> str:
        """Return the reason to refuse a rank; empty to accept it. `declared`: the job's world size."""
        slots = self._config.slots
        if arrival.size != declared:
            return (
                f"mpirun has started a world of {counted(arrival.size, 'rank')}, but the job declares {declared} "
                f"({counted(declared // slots, 'worker')} x {counted(slots, 'slot')})"
            )
        if arrival.rank in self._assigned:
            return (
                f"mpirun started rank {arrival.rank} while rank {arrival.rank} of another mpirun is running; the job "
                f"declares {counted(declared, 'rank')}, so run one mpirun after the other"
            )
        return ""

    def started(self, rank: int, pid: int) -> None:
        """Record that the rank's program has started as process `pid`."""
        self._assigned[rank] = process = replace(self._assigned[rank], pid=pid)
        world = self._world
        assert world is not None, "assign comes first"
        life = world.members[rank].life if world.members else 0
        self._pod.rank_started(process, life, world.formation)

    def stop(self, rank: int) -> None:
        """Stop the rank, as mpirun has requested. Repeated requests have no effect."""
        self._pod.stop_ranks("ended by mpirun", [self._assigned[rank].rank])

    def ended(self, rank: int, departure: Departure) -> None:
        """Record the end of the rank's program or wrapper. mpirun kills the wrapper a second after a stop request."""
        process = self._assigned.pop(rank)
        if process.pid and not self._pod.saving:
            signal_group(process.pid, signal.SIGKILL)
        slot = process.rank
        problem = None if departure.told and not departure.asked else _mpi_rank_stopped(slot, -departure.code)
        if departure.exec_errno in NO_PROGRAM:
            problem = RankState(slot, RankPhase.FAILED, departure.code, reason=Reason.CANNOT_START)
        # With Open MPI, only rank 0 shows that MPI_Init was called; and no rank can call it without the others.
        size = len(self._world.ring_addresses) if self._world else self._config.world_size
        if departure.world == size:
            self._pod.ranks_joined()
        if departure.code == 0 and (rank == 0 or departure.world is not None):
            problem = self._without_init(slot, departure, self._starters[rank], size)
        self._pod.rank_ended(slot, departure.code, self._refused.get(rank, problem))

    def _without_init(self, slot: int, departure: Departure, starter: str, size: int) -> RankState | None:
        """Return a failure if the rank exited with 0 but never joined a world of `size`. Return None if the job allows
        that."""
        if self._needs_init is False or departure.world == size:
            return None
        found = _mpi_rank_without_init(slot, departure, starter, size)
        is_required = self._needs_init or found.reason is not Reason.NO_MPI_INIT
        return found if is_required else None


def registry_variables(directory: Path) -> dict[str, str]:
    """Return variables with the paths of the rank wrapper and the registry socket in `directory`."""
    return {WRAPPER: str(directory / _WRAPPER_FILE), REGISTRY: str(directory / _REGISTRY_FILE)}


def _make_mpi_agent_directory(given: str) -> Path:
    if not given:
        return Path(tempfile.mkdtemp(prefix=_PREFIX))
    directory = Path(given)
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    return directory


def _mpi_directory_in_memory() -> Path:
    """Create this agent's directory in /dev/shm or, if that fails, in the folder of temporary files."""
    with suppress(OSError):
        return make_daemon_directory(Path("/dev/shm"))
    return Path(tempfile.mkdtemp(prefix=_PREFIX))


def _own_mpi_directories(files: Path, shared_memory: Path) -> dict[str, str]:
    """Return Open MPI's variables for its directories of files and shared memory. By default their names depend on the
    host name only, so that ranks of two workers on one host (`dtj local`, hostNetwork) would share them. The agent
    deletes these directories."""
    return {
        "OMPI_MCA_orte_tmpdir_base": str(files),
        "PRTE_MCA_prte_tmpdir_base": str(files),
        "OMPI_MCA_btl_vader_backing_directory": str(shared_memory),
        "OMPI_MCA_btl_sm_backing_directory": str(shared_memory),
    }


def _mpi_rank_without_init(rank: int, departure: Departure, starter: str, world_size: int) -> RankState:
    """Return the failure of a rank that exited with 0 without joining the world, with the probable reason."""
    library = mpi_library_of(departure.library)
    if library is not None and library.starts_by_hydra != MpiImplementation(starter).starts_by_hydra:
        message = (
            f"the program uses {departure.library} ({library.value}), but the mpirun of {starter} started it: every "
            f"rank ran in a world of one; set spec.mpi.implementation: {library.value} or build it for {starter}"
        )
        return _mpi_rank_failed(rank, Reason.WRONG_IMPLEMENTATION, message)
    if departure.world is not None:
        message = (
            f"rank {rank} joined a world of {counted(departure.world, 'rank')} instead of {world_size}: its MPI "
            f"library ({departure.library or 'unknown'}) does not work with this mpirun ({starter})"
        )
        return _mpi_rank_failed(rank, Reason.WRONG_IMPLEMENTATION, message)
    message = (
        f"the program exited with 0 but never called MPI_Init: it ran {counted(world_size, 'time')} independently, "
        f"not as one job of {counted(world_size, 'rank')}; set spec.mpi.requireInit: false if that is intended"
    )
    return _mpi_rank_failed(rank, Reason.NO_MPI_INIT, message)


def _mpi_rank_stopped(rank: int, number: int) -> RankState:
    """Return the state of a rank that mpirun has stopped by signal `number`. It is never the first cause of a
    failure."""
    name = signal.Signals(number).name
    return RankState(rank, RankPhase.STOPPED, 128 + number, name, message="ended by mpirun")


def _mpi_rank_failed(rank: int, reason: Reason, message: str) -> RankState:
    return RankState(rank, RankPhase.FAILED, 64, reason=reason, message=message)


def make_daemon_directory(parent: Path) -> Path:
    """Create this process's directory in `parent`, and delete directories that killed processes have left there.

    Raises OSError if `parent` cannot be used.
    """
    for found in parent.glob(f"{_PREFIX}*"):
        if _is_abandoned_mpi_directory(found):
            shutil.rmtree(found, ignore_errors=True)
    directory = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=parent))
    fcntl.flock(os.open(directory / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600), fcntl.LOCK_EX)
    return directory


def _is_abandoned_mpi_directory(directory: Path) -> bool:
    """Return whether the directory has a lock file that no process locks, so that it can be deleted."""
    with suppress(OSError), (directory / _LOCK).open("rb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return True
    return False


def node_name_variables(command: str, pod: str, inherited: Mapping[str, str]) -> dict[str, str]:
    """Return variables with which the daemon of `command` reports `pod` as its host name; empty if that is not needed.

    Open MPI 5's daemon (prted) reports the host's name to mpirun, from which PMIx derives the location of ranks.
    Workers on one host (`dtj local`, hostNetwork) would appear as one node: each daemon would expect all their ranks as
    its own and wait for them in MPI_Init forever. prted has no option for the name, so a preloaded library sets it. The
    ranks themselves see the real host name.
    """
    if "prted" not in command or socket.gethostname() == pod:
        return {}
    spec = importlib.util.find_spec(_NODE_NAME_LIBRARY)
    if spec is None or spec.origin is None:
        log.warning(
            "with Open MPI 5, workers with the same host name %s can block in MPI_Init, because ringtrain was "
            "installed without a C compiler; reinstall it where a C compiler is available",
            socket.gethostname(),
        )
        return {}
    own = inherited.get("LD_PRELOAD", "")
    return {NODE_NAME: pod, OWN_PRELOAD: own, "LD_PRELOAD": f"{spec.origin}:{own}".rstrip(":")}
