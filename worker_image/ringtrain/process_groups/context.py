"""This process's one world: made by `init`, gone with `shutdown`."""

import atexit
import contextlib
import logging
import os
import threading
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from dataclasses import replace
from typing import TYPE_CHECKING

from ringtrain import contract, timeline
from ringtrain.communicators.base import Communicator
from ringtrain.communicators.choose import choose_communicator, is_networked
from ringtrain.communicators.exchange import SEGMENT_BYTES, ExchangeCommunicator
from ringtrain.errors import ConfigurationError, NotInitializedError
from ringtrain.process_groups.executor import Engine
from ringtrain.transport.address import is_loopback
from ringtrain.transport.base import Transport
from ringtrain.world.config import LONGEST_TIMEOUT_S, WorkerConfig
from ringtrain.world.membership import Membership
from ringtrain.world.ring_config import Place

if TYPE_CHECKING:
    from ringtrain.transport.tls import Tls

log = logging.getLogger("ringtrain")

WORLD = 0  # the process set of all ranks
# Ids from here on are chosen by those who use them; shared memory has its own half of the 32 bits.
PRIVATE_SETS = 1 << 20
_LANES = 1 << 29


class Session:
    """A rank in its world: place, communicators by process set, and the engine that runs collectives in order."""

    def __init__(
        self, config: WorkerConfig, transport: Transport | None, segment_bytes: int = SEGMENT_BYTES
    ) -> None:
        self.config = config
        self.engine = Engine()
        self._segment_bytes = segment_bytes
        place = Place(
            config.rank, config.size, config.addresses, config.generation, config.token(), config.timeout_s,
            config.stall_timeout_s,
        )  # fmt: skip
        warn_of_strangers(place)
        self._member = Membership.join(place, transport or _transport(place, config))
        self._communicators: dict[int, Communicator] = {}
        self._next_process_set = WORLD
        self._lanes: list[Engine] = []
        try:
            self.add_process_set(tuple(range(config.size)))
            if config.check_in_file is not None:  # mpirun's rank has joined a world, though perhaps not MPI's
                config.check_in_file.write_text(f"ringtrain: world of {config.size}\n")
        except BaseException:
            self.close()
            raise

    def communicator(self, process_set: int = WORLD) -> Communicator:
        found = self._communicators.get(process_set)
        if found is None:
            raise ConfigurationError(
                f"rank {self.config.rank} is not part of process set {process_set}, or the set has been removed"
            )
        return found

    def add_process_set(self, ranks: tuple[int, ...], number: int | None = None) -> int:
        """Return the id of a new set; all ranks must add the same sets in the same order.

        `number`: an id of `PRIVATE_SETS` or above that the set's own ranks chose; other ranks need not add it.
        """
        if number is None:
            number = self._next_process_set
            self._next_process_set += 1
        if self.config.rank in ranks:
            network = ExchangeCommunicator(self._member, number, ranks, self._segment_bytes)
            self._communicators[number] = choose_communicator(self._member, number, network, self.config)
        return number

    def add_lane(self) -> tuple[Engine, Communicator] | None:
        """Return an engine of its own with a communicator of all ranks: what runs there, runs beside all else.

        All ranks add the same lanes in the same order. None where collectives had better wait for each other.
        """
        if not is_networked(self.communicator()):
            return None
        number = self.add_process_set(tuple(range(self.config.size)), _LANES + len(self._lanes))
        self._lanes.append(Engine())
        return self._lanes[-1], self.communicator(number)

    def describe_process_set(self, number: int, details: Callable[[], str]) -> None:
        """Have `details` name the tensors that a set's collectives are about, for messages of ranks that wait."""
        self._member.board.describe(number, details)

    def remove_process_set(self, number: int) -> None:
        removed = self._communicators.pop(number, None)
        if removed is not None:
            removed.close()

    @contextlib.contextmanager
    def entered(self) -> Iterator["Session"]:
        """Make this the current session of the calling thread: so that one process can hold several ranks."""
        token = _entered.set(self)
        try:
            yield self
        finally:
            _entered.reset(token)

    def close(self) -> None:
        engines = [self.engine, *self._lanes]
        for engine in engines:
            engine.stop()
        self._member.leave()
        for engine in engines:
            engine.join(self.config.timeout_s)
        for communicator in self._communicators.values():
            communicator.close()


_lock = threading.Lock()
_session: Session | None = None
_entered: ContextVar[Session | None] = ContextVar("ringtrain_session", default=None)


def init(
    timeout: float | None = None, *, config: WorkerConfig | None = None, segment_bytes: int = SEGMENT_BYTES
) -> None:
    """Join the world that the environment describes; return when every rank has joined.

    `timeout`: seconds within which a peer must answer, instead of `RINGTRAIN_TIMEOUT`. `config`: instead of what
    the environment says. `segment_bytes`: what collectives are cut into; the same on all ranks, and without
    effect on results. Calling it again does nothing. Raises ConfigurationError and PeerLost.
    """
    global _session
    with _lock:
        if _session is not None:
            return
        found = config or WorkerConfig.from_env(os.environ)
        if timeout is not None:
            if not 0 < timeout <= LONGEST_TIMEOUT_S:
                raise ConfigurationError(
                    f"timeout is {timeout}; expected seconds, more than 0 and at most {LONGEST_TIMEOUT_S:g}"
                )
            found = replace(found, timeout_s=float(timeout))
        _start_timeline(found)
        try:
            _session = Session(found, None, segment_bytes)
        except BaseException:
            timeline.stop()
            raise
        atexit.register(shutdown)


def shutdown() -> None:
    """Leave the world. Peers that still wait for this rank raise PeerLost. Without a world it does nothing."""
    global _session
    with _lock:
        session, _session = _session, None
    if session is not None:
        atexit.unregister(shutdown)
        session.close()
        timeline.stop()


def _forget_in_child() -> None:
    """A forked process is no rank: its end must not end the world of the one that it came from."""
    global _lock, _session
    _lock, _session = threading.Lock(), None


os.register_at_fork(after_in_child=_forget_in_child)


def _start_timeline(config: WorkerConfig) -> None:
    if config.timeline is None:
        return
    try:
        timeline.start(config.timeline, config.rank)
    except OSError as error:
        raise ConfigurationError(f"RINGTRAIN_TIMELINE is {config.timeline}: {error.strerror}") from error


def is_initialized() -> bool:
    """Whether this process is in a world."""
    return _session is not None


def current() -> Session:
    """Return this process's session. Raises NotInitializedError."""
    session = current_or_none()
    if session is None:
        raise NotInitializedError("ringtrain is not initialized; call ringtrain.init() first")
    return session


def current_or_none() -> Session | None:
    """This process's session, if there is one."""
    return _entered.get() or _session


def rank() -> int:
    """This process's place among all ranks, from 0."""
    return current().config.rank


def size() -> int:
    """How many ranks there are."""
    return current().config.size


def local_rank() -> int:
    """This process's place among the ranks of its host or pod, from 0."""
    return current().config.local_rank


def local_size() -> int:
    """How many ranks there are on this host or in this pod."""
    return current().config.local_size


def cross_rank() -> int:
    """The place of this host or pod among those that have a rank with this local rank, from 0."""
    return current().config.cross_rank


def cross_size() -> int:
    """How many hosts or pods have a rank with this local rank."""
    return current().config.cross_size


def warn_of_strangers(place: Place) -> None:
    """Say in the log that anyone can take part, where that is so."""
    address = place.addresses[place.rank]
    if place.size > 1 and place.token is None and not is_loopback(address):
        log.warning(
            "rank %d has no token: whoever reaches %s can take part in this world and change its weights. Give "
            "all ranks the same RINGTRAIN_TOKEN_FILE (or RINGTRAIN_TOKEN)",
            place.rank, address,
        )  # fmt: skip


def _transport(place: Place, config: WorkerConfig) -> Transport:
    if place.size == 1:
        from ringtrain.transport.memory import MemoryNetwork, MemoryTransport

        return MemoryTransport(MemoryNetwork(), place.rank)
    # Data loaders fork. gRPC's handlers for that wait for its threads, which are ours, and hang the child or abort
    # it. It looks here when it is loaded.
    os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")
    os.environ.setdefault("GRPC_VERBOSITY", "ERROR")  # else each handshake of a stranger that fails is a line
    from ringtrain.transport.rpc import RpcTransport

    return RpcTransport(place.rank, place.addresses, place.timeout_s, config.data_path == "auto", _tls(config))


def _tls(config: WorkerConfig) -> "Tls | None":
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
