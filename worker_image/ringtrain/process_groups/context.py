"""This process's one world: made by `init`, gone with `shutdown`."""

from __future__ import annotations

import atexit
import contextlib
import hashlib
import itertools
import logging
import os
import threading
import weakref
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from ringtrain import contract, timeline
from ringtrain.communicators.base import Communicator
from ringtrain.communicators.choose import choose_communicator
from ringtrain.communicators.exchange import SEGMENT_BYTES, ExchangeCommunicator
from ringtrain.communicators.numbers import PER_SET, QUEUE, WORLD, further_number
from ringtrain.errors import ConfigurationError, NotInitializedError, PeerLost
from ringtrain.process_groups.executor import Executor
from ringtrain.process_groups.formations import CARRIED, Bound, Carried, Former, former_of, own_agent
from ringtrain.process_groups.group import ProcessGroup
from ringtrain.process_groups.uncaught import shorten_lost_peers
from ringtrain.transport.address import is_loopback
from ringtrain.transport.base import NoPeers, Transport
from ringtrain.world.agent_socket import AgentSocket
from ringtrain.world.config import WorkerConfig
from ringtrain.world.membership import Membership
from ringtrain.world.ring_config import RingConfig
from ringtrain.world.variables import LONGEST_TIMEOUT_S

if TYPE_CHECKING:
    from ringtrain.transport.tls import Tls

log = logging.getLogger("ringtrain")
T = TypeVar("T")


class Runner(Protocol):
    """Something of a world that runs collectives on a thread of its own."""

    def stop(self) -> None:
        """Begin nothing any more; what has not begun fails."""

    def wait_stopped(self, timeout_s: float) -> None:
        """Wait for what is under way. The world has been left, so that it ends."""

    def in_flight(self) -> str:
        """Name what users have begun by name and not got, for messages; empty if that is nothing."""


class RankContext:
    """A rank in its world: its configuration, its process groups, and what runs collectives in them."""

    def __init__(
        self,
        config: WorkerConfig,
        transport: Transport | None,
        segment_bytes: int = SEGMENT_BYTES,
        agent: AgentSocket | None = None,
    ) -> None:
        """`agent`: who says in an elastic job that a member was lost."""
        self.config = config
        self.former = Former(0, (None,) * config.size)
        self.state_is_synced = False  # in an elastic job, since this world was formed
        self._segment_bytes = segment_bytes
        ring = RingConfig(
            config.rank, config.size, config.addresses, config.generation, config.token(), config.timeout_s,
            config.stall_timeout_s, config.local_size,
        )  # fmt: skip
        warn_of_strangers(ring)
        began = None if agent is None else partial(_break_when_lost, agent, config.formation)
        self._member = Membership.join(ring, transport or _transport(ring, config), began)
        self._executor = Executor()  # of all groups of the public collectives: they keep one order
        self._runners: list[tuple[int, Runner]] = [(WORLD, self._executor)]  # with the set they belong to
        self._lock = threading.Lock()
        self._set_numbers = itertools.count(WORLD)
        self._sets: dict[int, tuple[int, ...]] = {}  # ranks by number
        self._set_objects: dict[int, weakref.ref[Any]] = {}  # what users hold, by set
        self._groups: dict[int, ProcessGroup] = {}  # of the public collectives, by set
        self._communicators: dict[int, Communicator] = {}  # all, by number
        self._further: Counter[int] = Counter()  # communicators of a set beside those of queue and collectives
        self._attached: dict[type[Any], Any] = {}
        self._closing = False
        try:
            self.add_set(tuple(range(config.size)))
            if config.check_in_file is not None:  # mpirun's rank has joined a world, though perhaps not MPI's
                config.check_in_file.write_text(f"ringtrain: world of {config.size}\n")
        except BaseException:
            self.close()
            raise

    def group(self, process_set: int = WORLD) -> ProcessGroup:
        """The group that the public collectives of a set run on."""
        return self._groups[process_set]

    def add_set(self, ranks: tuple[int, ...]) -> int:
        """Return the number of a new set; all ranks add the same sets in the same order."""
        number = next(self._set_numbers)  # never that of a set that was removed
        self._sets[number] = ranks
        if self.config.rank in ranks:
            self._groups[number] = self._open(number, number, self._executor)
        return number

    def added_sets(self) -> list[list[int]]:
        """The ranks of every set but that of all ranks."""
        return [list(ranks) for number, ranks in self._sets.items() if number != WORLD]

    def bind_set(self, process_set: Bound, number: int) -> None:
        """Have `process_set` be the set of that number, in the next world of an elastic job as well."""
        self._set_objects[number] = weakref.ref(process_set)
        process_set.bind(self, number)

    def unbound_set(self, ranks: Sequence[int]) -> int | None:
        """The set of these ranks that the former world has left to this one and nobody here holds yet."""
        for number, members in self._sets.items():
            if number != WORLD and number not in self._set_objects and list(members) == list(ranks):
                return number if self.config.formation else None
        return None

    def join_formation(self, carried: Carried) -> None:
        """Learn who comes from where, and make the process sets of the former world again. Collective.

        A set keeps its rank numbers; one with a rank that this world does not have is given up.
        """
        told = self.group().allgather_object(carried.told())
        self.former = former_of(told)
        kept: list[list[int]] = next((told[rank]["sets"] for rank in self.former.survivors), [])
        objects = {tuple(ranks): held for ranks, held in carried.sets}
        for ranks in kept:
            if max(ranks) >= self.config.size:
                log.warning("process set %s is given up: this world has %d ranks", ranks, self.config.size)
                continue
            number = self.add_set(tuple(ranks))
            held = objects.get(tuple(ranks))
            if held is not None and (process_set := held()) is not None:
                self.bind_set(process_set, number)

    def leave_formation(self, carried: Carried) -> None:
        """Note what the next world takes over from this one."""
        carried.formation = self.config.formation
        carried.sets = [
            (list(ranks), self._set_objects.get(number)) for number, ranks in self._sets.items() if number != WORLD
        ]

    def ranks_of_set(self, process_set: int) -> list[int] | None:
        """World ranks of a set; None if there is no such set."""
        ranks = self._sets.get(process_set)
        return None if ranks is None else list(ranks)

    def in_flight(self, process_set: int) -> str:
        """Name what this rank has begun by name in a set and not got; empty if that is nothing."""
        with self._lock:
            runners = [runner for number, runner in self._runners if number == process_set]
        return ", ".join(filter(None, (runner.in_flight() for runner in runners)))

    def remove_set(self, process_set: int) -> None:
        """Close what a set has; nothing may be under way in it."""
        ranks = self._sets.pop(process_set)
        self._set_objects.pop(process_set, None)
        if self.config.rank not in ranks:
            return
        self._groups.pop(process_set)
        with self._lock:
            stopped = [runner for number, runner in self._runners if number == process_set]
            self._runners = [entry for entry in self._runners if entry[0] != process_set]
        for runner in stopped:
            runner.stop()
        for runner in stopped:
            runner.wait_stopped(self.config.timeout_s)
        further = range(further_number(process_set, 0), further_number(process_set, PER_SET - 1) + 1)
        for number in [n for n in self._communicators if n == process_set or n in further]:
            self._communicators.pop(number).close()

    def open_group(self, process_set: int) -> ProcessGroup:
        """Return another group of a set's ranks, with an executor of its own. Its ranks open the same in the same
        order."""
        executor = Executor()
        with self._lock:
            self._further[process_set] += 1
            index = QUEUE + self._further[process_set]
            self._runners.append((process_set, executor))
        return self._open(process_set, further_number(process_set, index), executor)

    def open_queue_communicator(self, process_set: int) -> Communicator:
        """Return the communicator of a set's named queue. Once for each set, whenever its ranks need it."""
        return self._communicator(process_set, further_number(process_set, QUEUE))

    def describe_queue(self, process_set: int, details: Callable[[], str]) -> None:
        """Have `details` name what the queue of a set has in flight, for messages of ranks that wait."""
        self._member.offers.describe(further_number(process_set, QUEUE), details)

    def run_with_set(self, process_set: int, runner: Runner) -> None:
        """Stop `runner` when the set is removed or the world is left."""
        with self._lock:
            self._runners.append((process_set, runner))
            if self._closing:
                runner.stop()

    def attached(self, kind: type[T], make: Callable[[], T]) -> T:
        """The one `kind` that a higher layer keeps with this world; made when it is first asked for."""
        with self._lock:
            if kind not in self._attached:
                self._attached[kind] = make()
            found: T = self._attached[kind]
            return found

    @property
    def local_sizes(self) -> tuple[int, ...]:
        """How many ranks the host or pod of each rank has."""
        return self._member.local_sizes

    @property
    def is_lost(self) -> bool:
        """Whether this world has ended because a member was lost."""
        failure = self._member.failure_state.failure
        return failure is not None and failure.kind == "lost"

    @contextlib.contextmanager
    def entered(self) -> Iterator[RankContext]:
        """Make this the current world of the calling thread: so that one process can hold several ranks."""
        token = _entered.set(self)
        try:
            yield self
        finally:
            _entered.reset(token)

    def close(self) -> None:
        """Leave the world. What is under way fails. Calling it again does nothing."""
        with self._lock:
            self._closing = True
            runners = [runner for _, runner in self._runners]
        for runner in runners:
            runner.stop()
        self._member.leave()
        for runner in runners:
            runner.wait_stopped(self.config.timeout_s)
        with self._lock:
            opened, self._communicators = list(self._communicators.values()), {}
        for communicator in opened:
            communicator.close()

    def _open(self, process_set: int, number: int, executor: Executor) -> ProcessGroup:
        communicator = self._communicator(process_set, number)
        return ProcessGroup(communicator, executor, lambda: self.open_group(process_set))

    def _communicator(self, process_set: int, number: int) -> Communicator:
        network = ExchangeCommunicator(self._member, number, self._sets[process_set], self._segment_bytes)
        chosen = choose_communicator(self._member, number, network, self.config)
        with self._lock:
            if not self._closing:
                self._communicators[number] = chosen
                return chosen
        chosen.close()  # nobody else would: a queue has opened it while the world was left
        raise NotInitializedError("ringtrain was shut down while a communicator was opened")


_RANK_PROCESS = "_RINGTRAIN_RANK_PROCESS"  # set while this process is a rank, so that its children know

_lock = threading.Lock()
_context: RankContext | None = None
_entered: ContextVar[RankContext | None] = ContextVar("ringtrain_context", default=None)


def init(
    timeout: float | None = None, *, config: WorkerConfig | None = None, segment_bytes: int = SEGMENT_BYTES
) -> None:
    """Join the world that the environment describes; return when every rank has joined.

    In an elastic job the agent tells a rank its world when there is one: this call waits for it, and ends the
    process (SystemExit) where the rank is not wanted any more. Elsewhere the environment is the agent's,
    torchrun's, `TF_CONFIG`, or an MPI launcher's; without any of them this process is a world of one.

    `timeout`: seconds within which a peer must answer, in the place of `RINGTRAIN_TIMEOUT`. `config`: the
    configuration, in the place of what the environment says. `segment_bytes`: the length of the segments that
    collectives are cut into, the same on all ranks, without effect on results.

    A second call does nothing. Raises ConfigurationError for a variable or argument that is wrong, PeerLost when
    a rank does not come in time.
    """
    global _context
    with _lock:
        if _context is not None:
            return
        agent = None if config else own_agent()
        _context = _met(agent, lambda: _timed(config or _own_config(agent), timeout), segment_bytes)
        found = _context.config
        atexit.register(shutdown)
        if config is None and found.size > 1:
            os.environ[_RANK_PROCESS] = f"{os.getpid()} {found.rank} {_place(os.environ)}"


def _timed(config: WorkerConfig, timeout: float | None) -> WorkerConfig:
    if timeout is None:
        return config
    if not 0 < timeout <= LONGEST_TIMEOUT_S:
        raise ConfigurationError(
            f"timeout is {timeout}; expected seconds, more than 0 and at most {LONGEST_TIMEOUT_S:g}"
        )
    return replace(config, timeout_s=float(timeout))


def _met(agent: AgentSocket | None, find: Callable[[], WorkerConfig], segment_bytes: int) -> RankContext:
    """Join the world that `find` tells; in an elastic job the next one, where a member is lost before all met."""
    while True:
        found = find()
        _start_timeline(found)
        try:
            return _joined(found, segment_bytes, agent)
        except PeerLost as error:
            timeline.stop()
            if agent is None:
                raise
            log.warning("formation %d has not met: %s", found.formation, error)
        except BaseException:
            timeline.stop()
            raise


def _joined(config: WorkerConfig, segment_bytes: int, agent: AgentSocket | None) -> RankContext:
    if not config.tracebacks and config.size > 1:
        shorten_lost_peers()
    if agent is None:
        return RankContext(config, None, segment_bytes)
    CARRIED.formation = config.formation  # from here on this rank is in it, also if it does not meet the others
    context = RankContext(config, None, segment_bytes, agent)
    try:
        agent.joined(config.formation)
        context.join_formation(CARRIED)
    except BaseException:
        context.close()
        raise
    return context


def _break_when_lost(agent: AgentSocket, formation: int, member: Membership) -> None:
    """Have whatever waits for a member that was lost fail as soon as the agent says that one was."""
    agent.while_in(formation, member.break_off)


def _own_config(agent: AgentSocket | None) -> WorkerConfig:
    """What the environment says, in an elastic job after the agent has told this rank its next world.

    Raises ConfigurationError where the environment is another process's, whose world goes on.
    """
    process, _, rest = os.environ.get(_RANK_PROCESS, "").partition(" ")
    number, _, place = rest.partition(" ")
    # Under mpirun alone nothing here tells one world from another.
    if process and process != str(os.getpid()) and place.strip() and place == _place(os.environ):
        raise ConfigurationError(
            f"this process has rank {number}'s environment and is a child of it (process {process}); a rank is "
            "one process: call init() there alone, under if __name__ == '__main__' where a script starts "
            "processes, or give the child a world of its own"
        )
    if agent is not None:
        os.environ.update(agent.next_world(CARRIED.readiness()))
    return WorkerConfig.from_env(os.environ)


def _place(env: Mapping[str, str]) -> str:
    """The variables that put a process at its place in a world."""
    names = (contract.ENV_RANK, contract.ENV_RING_ADDRESSES, "TF_CONFIG", "RANK", "MASTER_PORT")
    return " ".join(env.get(name, "") for name in names)


def shutdown() -> None:
    """Leave the world. Peers that still wait for this rank raise PeerLost. Without a world it does nothing.

    Called by itself when the interpreter ends.
    """
    global _context
    with _lock:
        context, _context = _context, None
    if context is not None:
        atexit.unregister(shutdown)
        os.environ.pop(_RANK_PROCESS, None)
        if context.config.formation:
            context.leave_formation(CARRIED)
        context.close()
        timeline.stop()


def _forget_in_child() -> None:
    """A forked process is no rank: its end must not end the world of the one that it came from."""
    global _lock, _context
    _lock, _context = threading.Lock(), None


os.register_at_fork(after_in_child=_forget_in_child)


def _start_timeline(config: WorkerConfig) -> None:
    if config.timeline is None:
        return
    try:
        # A process alone has no address of its own. All worlds of an elastic job write to one file.
        run = (
            f"attempt {config.attempt} of {_job(config)}"
            if config.formation
            else f"{config.addresses[0]} {config.generation}"
            if config.size > 1
            else f"process {os.getpid()}"
        )
        timeline.start(config.timeline, config.rank, run)
    except OSError as error:
        raise ConfigurationError(f"RINGTRAIN_TIMELINE is {config.timeline}: {error.strerror}") from error


def _job(config: WorkerConfig) -> str:
    """The same text for all ranks of a job, and another for another job; tells nothing of the token."""
    return hashlib.sha256(b"timeline" + (config.token() or config.job_uid.encode())).hexdigest()[:16]


def joins_survivors() -> bool:
    """Whether this world goes on with the state of an earlier one that has not reached this rank: what is made now
    is made on this rank alone, and gets its state from `elastic.State.sync`."""
    context = current_or_none()
    return context is not None and bool(context.former.survivors) and not context.state_is_synced


def is_initialized() -> bool:
    """Whether this process is in a world."""
    return _context is not None


def current() -> RankContext:
    """Return this process's context. Raises NotInitializedError."""
    context = current_or_none()
    if context is None:
        raise NotInitializedError("ringtrain is not initialized; call ringtrain.init() first")
    return context


def current_or_none() -> RankContext | None:
    """This process's world, if there is one."""
    return _entered.get() or _context


def rank() -> int:
    """This process's rank in the world, from 0. Raises NotInitializedError without a world."""
    return current().config.rank


def size() -> int:
    """The number of ranks in the world. Raises NotInitializedError without a world."""
    return current().config.size


def local_rank() -> int:
    """This process's rank among the ranks of its host or pod, from 0. Raises NotInitializedError."""
    return current().config.local_rank


def local_size() -> int:
    """The number of ranks on this host or in this pod. Raises NotInitializedError without a world."""
    return current().config.local_size


def cross_rank() -> int:
    """The rank of this host or pod among those that have a rank with this local rank, from 0."""
    return current().config.cross_rank


def cross_size() -> int:
    """The number of hosts or pods that have a rank with this local rank."""
    return current().config.cross_size


def warn_of_strangers(ring: RingConfig) -> None:
    """Say in the log that anyone can take part, where that is so."""
    address = ring.addresses[ring.rank]
    if ring.size > 1 and ring.token is None and not is_loopback(address):
        log.warning(
            "rank %d has no token: whoever reaches %s can take part in this world and change its weights. Give "
            "all ranks the same RINGTRAIN_TOKEN_FILE (or RINGTRAIN_TOKEN)",
            ring.rank, address,
        )  # fmt: skip


def _transport(ring: RingConfig, config: WorkerConfig) -> Transport:
    if ring.size == 1:
        return NoPeers()
    # Data loaders fork. gRPC's handlers for that wait for its threads, which are ours, and hang the child or abort
    # it. It looks here when it is loaded.
    os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")
    os.environ.setdefault("GRPC_VERBOSITY", "ERROR")  # else each handshake of a stranger that fails is a line
    from ringtrain.transport.rpc import RpcTransport

    return RpcTransport(ring.rank, ring.addresses, ring.timeout_s, config.data_path == "auto", _tls(config))


def _tls(config: WorkerConfig) -> Tls | None:
    """What ranks encrypt with, where they are to. Raises ConfigurationError where they can't."""
    if config.encrypt == "none":
        return None
    if config.transport == "mpi":
        raise ConfigurationError(
            "RINGTRAIN_ENCRYPT is tensors, but RINGTRAIN_TRANSPORT is mpi, which ringtrain can't encrypt; use auto"
        )
    if not config.job_uid:
        raise ConfigurationError(
            "RINGTRAIN_ENCRYPT is tensors, but RINGTRAIN_JOB_UID is not set; peers are known by the name "
            "worker.<uid>.ringtrain in their certificates"
        )
    from ringtrain.transport.tls import Tls

    return Tls.load(config.secret_dir, f"{contract.ROLE_WORKER}.{config.job_uid}.ringtrain")
