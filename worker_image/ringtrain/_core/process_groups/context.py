"""Functions on this process's world: `init`, `shutdown`, `rank`, `size` and similar ones."""

from __future__ import annotations

import atexit
import hashlib
import logging
import os
import threading
import weakref
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Protocol, TypeVar

from ringtrain import timeline
from ringtrain._core.communicators.exchange import SEGMENT_BYTES
from ringtrain._core.process_groups.formations import CARRIED, own_agent
from ringtrain._core.process_groups.rank_context import ENTERED, ProcessGroupContext
from ringtrain._core.process_groups.uncaught import shorten_lost_peers
from ringtrain._core.world.agent_socket import RankAgentSocket
from ringtrain._core.world.config import WorkerConfig
from ringtrain.errors import ConfigurationError, NotInitializedError, PeerLost
from ringtrain.report import report_joined
from ringtrain.run_config import report_versions
from ringtrain.shared import contract
from ringtrain.shared.environment import LONGEST_TIMEOUT_S
from ringtrain.shared.horovod_variables import with_counterparts
from ringtrain.shared.rank_settings import RankProcessSettings

log = logging.getLogger("ringtrain")
T = TypeVar("T")


_RANK_PROCESS = "_RINGTRAIN_RANK_PROCESS"  # set while this process is a rank; children inherit it

_lock = threading.Lock()
_context: ProcessGroupContext | None = None
_unfinished: weakref.WeakSet[Drained] = weakref.WeakSet()


class Drained(Protocol):
    """Interface of an operation that goes on in the background, and must end before this rank leaves the world."""

    def drain(self) -> None:
        """Wait for the operation to end, successfully or not."""


def drain_before_leaving(what: Drained) -> None:
    """Make `shutdown` wait for `what` to end, because other ranks depend on this rank's part in it."""
    _unfinished.add(what)


def init(
    timeout: float | None = None,
    *,
    config: WorkerConfig | None = None,
    tf_config: str | None = None,
    segment_bytes: int = SEGMENT_BYTES,
) -> None:
    """Join the world that the environment describes; return when every rank has joined.

    In an elastic job this call waits for the agent's message about the next world, and ends the process (SystemExit) if
    the rank is no longer needed. Otherwise it reads the variables of the agent, torchrun, `TF_CONFIG`, or an MPI
    launcher; without any of them this process is a world of one.

    `timeout`: seconds within which a peer must answer; default: `RINGTRAIN_TIMEOUT`. `config`: replaces the whole
    environment. `tf_config`: replaces the variable `TF_CONFIG`. `segment_bytes`: length of the segments of collectives,
    the same on all ranks, without effect on results.

    A second call does nothing. Raises ConfigurationError for a wrong variable or argument, PeerLost if a rank does not
    join in time.
    """
    global _context
    with _lock:
        if _context is not None:
            return
        agent = None if config else own_agent()
        env = {} if config else os.environ
        _context = _join_agents_world(
            agent, lambda: _timed_config(config or _group_worker_config(agent, tf_config), timeout), segment_bytes, env
        )
        found = _context.config
        atexit.register(shutdown)
        if config is None:
            report_versions()
        if config is None and found.place.size > 1:
            os.environ[_RANK_PROCESS] = f"{os.getpid()} {found.place.rank} {_rank_place(os.environ)}"
            if agent is None:
                report_joined()


def _timed_config(config: WorkerConfig, timeout: float | None) -> WorkerConfig:
    if timeout is None:
        return config
    if not 0 < timeout <= LONGEST_TIMEOUT_S:
        raise ConfigurationError(
            f"timeout is {timeout}; expected seconds, more than 0 and at most {LONGEST_TIMEOUT_S:g}"
        )
    return replace(config, waits=replace(config.waits, timeout_s=float(timeout)))


def _join_agents_world(
    agent: RankAgentSocket | None, find: Callable[[], WorkerConfig], segment_bytes: int, env: Mapping[str, str]
) -> ProcessGroupContext:
    """Join the world of the configuration from `find`. In an elastic job, try the next world if a member is lost."""
    while True:
        found, process = find(), RankProcessSettings.from_env(with_counterparts(env))
        _enable_log(process.log_level)
        _start_timeline(found, process.timeline)
        try:
            return _join_process_groups(found, process, segment_bytes, agent)
        except PeerLost as error:
            timeline.stop()
            if agent is None:
                raise
            log.warning("generation %d was lost before all ranks had joined: %s", found.numbers.formation, error)
        except BaseException:
            timeline.stop()
            raise


def _enable_log(level: str) -> None:
    """Enable ringtrain's log messages from `level` on; they go to stderr unless the script has set up logging."""
    if not level:
        return
    log.setLevel(level.upper())
    if not log.hasHandlers():
        log.addHandler(logging.StreamHandler())


def _join_process_groups(
    config: WorkerConfig, process: RankProcessSettings, segment_bytes: int, agent: RankAgentSocket | None
) -> ProcessGroupContext:
    if not process.tracebacks and config.place.size > 1:
        shorten_lost_peers()
    if agent is not None:
        CARRIED.formation = config.numbers.formation  # this rank is a member, even if it does not reach the others
    context = ProcessGroupContext(config, None, segment_bytes, agent)
    try:
        if process.mpi_check_in is not None:  # mpirun's rank has joined a world, though perhaps not MPI's
            process.mpi_check_in.write_text(f"ringtrain: world of {config.place.size}\n")
        if agent is not None:
            agent.joined(config.numbers.formation)
            context.join_formation(CARRIED)
    except BaseException:
        context.close()
        raise
    return context


def _group_worker_config(agent: RankAgentSocket | None, tf_config: str | None) -> WorkerConfig:
    """Return this rank's configuration from the environment; an elastic rank first waits for the agent's next world.

    Raises ConfigurationError if the environment belongs to another process, whose world is still active.
    """
    process, _, rest = os.environ.get(_RANK_PROCESS, "").partition(" ")
    number, _, place = rest.partition(" ")
    # Under mpirun alone no variable distinguishes two worlds.
    if process and process != str(os.getpid()) and place and place == _rank_place(os.environ):
        raise ConfigurationError(
            f"this process has the environment of rank {number} (process {process}) and is its child, but not a rank; "
            "call init() only in the rank, under if __name__ == '__main__' if the script starts processes, or pass "
            "the child another environment"
        )
    if agent is not None:
        os.environ.update(agent.next_world(CARRIED.readiness()))
    given = {} if tf_config is None else {"TF_CONFIG": tf_config}
    return WorkerConfig.from_env({**os.environ, **given})


def _rank_place(env: Mapping[str, str]) -> str:
    """Return a digest of the variables that define this process's rank; empty if none of them is set.

    The result is a digest, because the variables are long and the kernel limits the environment of a child.
    """
    names = (
        contract.ENV_RANK, contract.ENV_RING_ADDRESSES, contract.ENV_WORLD_FILE, "TF_CONFIG", "RANK", "MASTER_PORT"
    )  # fmt: skip
    place = "\0".join(env.get(name, "") for name in names)
    return hashlib.sha256(os.fsencode(place)).hexdigest() if place.strip("\0") else ""


def shutdown() -> None:
    """Leave the world. Ranks that wait for this one raise PeerLost. Without a world this does nothing.

    Called automatically when the interpreter exits.
    """
    global _context
    if _context is not None:
        for what in list(_unfinished):
            what.drain()
    with _lock:
        context, _context = _context, None
    if context is not None:
        atexit.unregister(shutdown)
        os.environ.pop(_RANK_PROCESS, None)
        if context.config.numbers.formation:
            context.leave_formation(CARRIED)
        context.close()
        timeline.stop()


def _forget_in_child() -> None:
    """Drop the world in a forked child, which is not a rank, so that its exit does not end the parent's world."""
    global _lock, _context
    if _context is not None:
        _context.disown()
    _lock, _context = threading.Lock(), None
    _unfinished.clear()


os.register_at_fork(after_in_child=_forget_in_child)


def _start_timeline(config: WorkerConfig, file: Path | None) -> None:
    if file is None:
        return
    try:
        # A single process has no address. All worlds of an elastic job write to one file.
        run = (
            f"attempt {config.numbers.attempt} of {_job_name(config)}"
            if config.numbers.formation
            else f"{config.addresses[0]} {config.numbers.generation}"
            if config.place.size > 1
            else f"process {os.getpid()}"
        )
        timeline.start(file, config.place.rank, run)
    except OSError as error:
        raise ConfigurationError(f"RINGTRAIN_TIMELINE is {file}: {error.strerror}") from error


def _job_name(config: WorkerConfig) -> str:
    """Return an identifier of the job: equal on all its ranks, different for other jobs, and without the token."""
    return hashlib.sha256(b"timeline" + (config.trust.token() or config.trust.job_uid.encode())).hexdigest()[:16]


def joins_survivors() -> bool:
    """Return whether members of this world have state from an earlier one that was not synced here yet.

    Objects are then constructed on this rank only, and receive their state from `elastic.State.sync`.
    """
    context = current_or_none()
    return context is not None and bool(context.former.survivors) and not context.state_is_synced


def is_initialized() -> bool:
    """Return whether this process has joined a world and not left it."""
    return current_or_none() is not None


def current() -> ProcessGroupContext:
    """Return the calling thread's world. Raises NotInitializedError if there is none."""
    context = ENTERED.get() or _context  # inlined: calling `current_or_none` costs 5 % of a short allreduce
    if context is None:
        raise NotInitializedError("ringtrain is not initialized; call ringtrain.init() first")
    return context


def attached(kind: type[T]) -> T:
    """Return this world's one object of type `kind`, which the first call creates. Raises NotInitializedError."""
    return current().attached(kind, kind)


def current_or_none() -> ProcessGroupContext | None:
    """Return the calling thread's world, or None if this process is in no world."""
    return ENTERED.get() or _context


def rank() -> int:
    """Return this process's rank in the world, from 0. Raises NotInitializedError without a world."""
    return current().config.place.rank


def size() -> int:
    """Return the number of ranks in the world. Raises NotInitializedError without a world."""
    return current().config.place.size


def local_rank() -> int:
    """Return this rank's index among the ranks of its host or pod, from 0. Raises NotInitializedError before
    `init()`."""
    return current().config.place.local_rank


def local_size() -> int:
    """Return the number of ranks on this host or in this pod. Raises NotInitializedError without a world."""
    return current().config.place.local_size


def site() -> str:
    """Return the name of this rank's site, such as a data centre; empty if the job has no sites.

    Raises NotInitializedError without a world.
    """
    config = current().config
    return config.sites[config.place.rank] if config.sites else ""


def sites() -> dict[str, list[int]]:
    """Return the ranks of each site, by the site's name, in the order of their first ranks.

    A site is a group of ranks with a fast network between them (`ringtrain run -H a:4@x,b:4@y`, or a label of nodes).
    Without sites all ranks are in one, whose name is empty. Maturity: Experimental.
    """
    return current().config.ranks_by_site


def cross_rank() -> int:
    """Return the index of this host or pod among those that have a rank with the same local rank, from 0."""
    return current().config.place.cross_rank


def cross_size() -> int:
    """Return the number of hosts or pods that have a rank with the same local rank."""
    return current().config.place.cross_size
