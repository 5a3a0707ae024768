"""A rank's connection to its world: its groups and communicators, and its orderly exit."""

from __future__ import annotations

import contextlib
import itertools
import logging
import os
import threading
import weakref
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextvars import ContextVar
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar

from ringtrain._core.communicators.base import Communicator
from ringtrain._core.communicators.choose import choose_communicator, communicator_pod
from ringtrain._core.communicators.exchange import SEGMENT_BYTES, ExchangeCommunicator
from ringtrain._core.communicators.foreign import ForeignCommunicatorCalls
from ringtrain._core.communicators.hierarchical import CHAIN_PODS_MOST, DIRECT_RANKS_MOST
from ringtrain._core.communicators.numbers import PER_SET, QUEUE, WORLD, further_communicator_number
from ringtrain._core.process_groups.executor import ProcessGroupExecutor
from ringtrain._core.process_groups.formations import (
    BoundProcessSet,
    FormerFormation,
    ProcessFormationMemory,
    former_process_formation,
)
from ringtrain._core.process_groups.group import ProcessGroup
from ringtrain._core.transport.base import NoPeersTransport, Transport
from ringtrain._core.world.agent_socket import RankAgentSocket
from ringtrain._core.world.config import WorkerConfig
from ringtrain._core.world.failure_state import RankActivity
from ringtrain._core.world.membership import WorldMembership
from ringtrain._core.world.ring_config import RingConfig
from ringtrain.errors import ConfigurationError, NotInitializedError, counted
from ringtrain.shared import contract
from ringtrain.shared.address import is_loopback

if TYPE_CHECKING:
    from ringtrain.shared.tls import TlsIdentity

log = logging.getLogger("ringtrain")
T = TypeVar("T")


class CollectiveRunner(Protocol):
    """Interface of an object that runs collectives of a world on its own thread."""

    def stop(self) -> None:
        """Refuse further work, and fail the work that has not begun."""

    def wait_stopped(self, timeout_s: float) -> None:
        """Wait until the work in progress has ended. Call this after the world was left, which ends the work."""

    def in_flight(self) -> str:
        """Return the names of named collectives that have not ended, for messages; empty if there are none."""


# Time for work in progress in a closed group to end. It has ended already, unless its step was cancelled.
_CLOSE_S: Final = 2.0


class ProcessGroupContext:
    """This rank's connection to one world: configuration, process groups, and threads that run their collectives."""

    def __init__(
        self,
        config: WorkerConfig,
        transport: Transport | None,
        segment_bytes: int = SEGMENT_BYTES,
        agent: RankAgentSocket | None = None,
        chain_pods_most: int = CHAIN_PODS_MOST,
        direct_ranks_most: int = DIRECT_RANKS_MOST,
    ) -> None:
        """Join the world of `config`.

        `agent`: reports lost members in an elastic job. `chain_pods_most`: see `HierarchicalCommunicator`.
        `direct_ranks_most`: largest number of ranks that exchange directly if pods are not used; more ranks use a tree.
        Both must be the same on all ranks.
        """
        self.config = config
        self.former = FormerFormation(0, (None,) * config.place.size)
        self.state_is_synced = False  # in an elastic job: whether this world's state has been synced
        self._segment_bytes = segment_bytes
        self._bounds = chain_pods_most, direct_ranks_most
        place, waits = config.place, config.waits
        ring = RingConfig(
            place.rank, place.size, config.addresses, config.numbers.generation, config.trust.token(),
            waits.timeout_s, waits.stall_timeout_s, place.local_size, waits.stall_warning_s, config.ways.transport,
        )  # fmt: skip
        warn_without_token(ring)
        began = None if agent is None else partial(_break_when_lost, agent, config.numbers.formation)
        self._member = WorldMembership.join(ring, transport or _rank_context_transport(ring, config), began)
        self._executor = ProcessGroupExecutor()  # shared by all groups of the public collectives, which need one order
        self._runners: list[tuple[int, CollectiveRunner]] = [(WORLD, self._executor)]  # with the number of their set
        self._lock = threading.Lock()
        self._set_numbers = itertools.count(WORLD)
        self._sets: dict[int, tuple[int, ...]] = {}  # ranks by number
        self._set_objects: dict[int, weakref.ref[Any]] = {}  # process set objects of the user, by number
        self._former_sets: set[int] = set()  # from the former world, not yet added here
        self.groups: dict[int, ProcessGroup] = {}  # for the public collectives, by set
        self._communicators: dict[int, Communicator] = {}  # all communicators, by number
        # Further communicators of a set, besides those of queue and collectives.
        self._further: Counter[int] = Counter()
        self._attached: dict[type[Any], Any] = {}
        self._closing = False
        try:
            self.add_set(tuple(range(config.place.size)))
        except BaseException:
            self.close()
            raise

    def group(self) -> ProcessGroup:
        """Return the group of all ranks for the public collectives."""
        return self.groups[WORLD]

    def add_set(self, ranks: tuple[int, ...]) -> int:
        """Add a process set and return its number. All ranks must add the same sets in the same order."""
        number = next(self._set_numbers)  # numbers of removed sets are not reused
        self._sets[number] = ranks
        if self.config.place.rank in ranks:
            self.groups[number] = self._open(number, number, self._executor)
        return number

    def added_set(self, ranks: Sequence[int]) -> int | None:
        """Return the number of the added process set with these ranks; None if there is none."""
        added = {own: number for number, own in self._sets.items() if number != WORLD}
        return added.get(tuple(ranks))

    def bind_set(self, process_set: BoundProcessSet, number: int) -> None:
        """Connect `process_set` to the set `number`, in this world and in later ones of an elastic job."""
        self._set_objects[number] = weakref.ref(process_set)
        process_set.bind(self, number)

    def take_former_set(self, ranks: Sequence[int]) -> int | None:
        """Return the number of a set of these ranks that was carried over from the former world; None if there is none,
        or if this method has already returned it."""
        for number in self._former_sets:
            if list(self._sets[number]) == list(ranks):
                self._former_sets.discard(number)
                return number
        return None

    def join_formation(self, carried: ProcessFormationMemory) -> None:
        """Exchange former ranks with all members, and create the process sets of the former world again. Collective.

        A set keeps its rank numbers. A set with a rank number that this world does not have is dropped. `carried`:
        values of this process from the former world.
        """
        summaries = self.group().allgather_object(carried.summary(), "formation")
        self.former = former_process_formation(summaries)
        kept: list[list[int]] = next((summaries[rank]["sets"] for rank in self.former.survivors), [])
        objects = {tuple(ranks): held for ranks, held in carried.sets}
        for ranks in kept:
            if max(ranks) >= self.config.place.size:
                log.warning(
                    "process set %s was removed: this world has only %s", ranks, counted(self.config.place.size, "rank")
                )
                continue
            number = self.add_set(tuple(ranks))
            self._former_sets.add(number)
            held = objects.get(tuple(ranks))
            if held is not None and (process_set := held()) is not None:
                self.bind_set(process_set, number)

    def leave_formation(self, carried: ProcessFormationMemory) -> None:
        """Store the number of this generation and its process sets in `carried`, for the next world."""
        carried.formation = self.config.numbers.formation
        carried.sets = [
            (list(ranks), self._set_objects.get(number)) for number, ranks in self._sets.items() if number != WORLD
        ]

    def ranks_of_set(self, process_set: int) -> list[int] | None:
        """Return the world ranks of the set number `process_set`; None if there is no such set."""
        ranks = self._sets.get(process_set)
        return None if ranks is None else list(ranks)

    def in_flight(self, process_set: int) -> str:
        """Return the names of this rank's named collectives in a set that have not ended; empty if there are none."""
        with self._lock:
            runners = [runner for number, runner in self._runners if number == process_set]
        return ", ".join(filter(None, (runner.in_flight() for runner in runners)))

    def remove_set(self, process_set: int) -> None:
        """Close all groups of a process set. No collective of the set may be in progress."""
        ranks = self._sets.pop(process_set)
        self._former_sets.discard(process_set)
        self._set_objects.pop(process_set, None)
        if self.config.place.rank not in ranks:
            return
        self.groups.pop(process_set)
        with self._lock:
            stopped = [runner for number, runner in self._runners if number == process_set]
            self._runners = [entry for entry in self._runners if entry[0] != process_set]
        for runner in stopped:
            runner.stop()
        for runner in stopped:
            runner.wait_stopped(self.config.waits.timeout_s)
        further = range(
            further_communicator_number(process_set, 0), further_communicator_number(process_set, PER_SET - 1) + 1
        )
        with self._lock:  # a queue's thread may open a communicator of another set at the same time
            of_set = [number for number in self._communicators if number == process_set or number in further]
            closed = [self._communicators.pop(number) for number in of_set]
        for communicator in closed:
            communicator.close()

    def open_group(self, process_set: int, ranks: tuple[int, ...] | None = None) -> ProcessGroup:
        """Open another group of a process set's ranks. Its collectives do not wait for collectives of other groups.

        All ranks of the process set open the same groups in the same order.

        `ranks`: members of the group, including this rank; None: all ranks of the process set. With `ranks`, each rank
        of the process set opens the group of which it is a member.
        """
        return self._open_further(process_set, ranks)[0]

    def open_foreign(self, process_set: int, ranks: tuple[int, ...]) -> tuple[ProcessGroup, ForeignCommunicatorCalls]:
        """Open a group like `open_group`. Return the group, and an object by which its ranks call a foreign library."""
        group, number = self._open_further(process_set, ranks)
        return group, ForeignCommunicatorCalls(self._member, number, ranks)

    def open_queue_communicator(self, process_set: int) -> Communicator:
        """Open the communicator of a set's named queue; called once per set, when its ranks first need it."""
        return self._communicator(process_set, further_communicator_number(process_set, QUEUE))

    def foreign_calls(self, process_set: int) -> ForeignCommunicatorCalls:
        """Return the object by which a set's named queue calls a foreign library; called once per set."""
        return ForeignCommunicatorCalls(
            self._member, further_communicator_number(process_set, QUEUE), self._sets[process_set]
        )

    def give_up(self, process_set: int, error: BaseException) -> None:
        """Make all ranks of the world fail, because `error` stopped this rank's named queue of `process_set`."""
        begun = self.in_flight(process_set) or "named collectives"
        self._member.give_up(RankActivity(begun, process_set, 0), error)

    def describe_queue(self, process_set: int, details: Callable[[], str]) -> None:
        """Register the function `details`, whose text on collectives in flight appears in messages about late ranks."""
        self._member.offers.describe(further_communicator_number(process_set, QUEUE), details)

    def run_with_set(self, process_set: int, runner: CollectiveRunner) -> None:
        """Register `runner`, to be stopped when the process set is removed or the world is left."""
        with self._lock:
            self._runners.append((process_set, runner))
            if self._closing:
                runner.stop()

    def attached(self, kind: type[T], make: Callable[[], T]) -> T:
        """Return the one object of type `kind` that belongs to this world; the first call creates it by `make`."""
        with self._lock:
            if kind not in self._attached:
                self._attached[kind] = make()
            found: T = self._attached[kind]
            return found

    @property
    def local_sizes(self) -> tuple[int, ...]:
        """Return, for each rank, the number of ranks on its host or in its pod."""
        return self._member.local_sizes

    @property
    def pod(self) -> str:
        """Return an identity of this rank's pod: equal for ranks of one pod, different for other pods."""
        return communicator_pod(self.config)

    @property
    def is_lost(self) -> bool:
        """Return whether this world has ended because a member was lost."""
        failure = self._member.failure_state.failure
        return failure is not None and failure.kind == "lost"

    @contextlib.contextmanager
    def entered(self) -> Iterator[ProcessGroupContext]:
        """Make this the calling thread's world within the context, for a process that runs several ranks."""
        token = ENTERED.set(self)
        try:
            yield self
        finally:
            ENTERED.reset(token)

    def disown(self) -> None:
        """Make all collectives of this world's groups fail in a forked process, which is not a rank."""
        for _, runner in self._runners:
            if isinstance(runner, ProcessGroupExecutor):
                runner.disown()

    def close(self) -> None:
        """Leave the world; collectives in progress fail. A second call does nothing."""
        with self._lock:
            self._closing = True
            runners = [runner for _, runner in self._runners]
        for runner in runners:
            runner.stop()
        self._member.leave()
        for runner in runners:
            runner.wait_stopped(self.config.waits.timeout_s)
        with self._lock:
            opened, self._communicators = list(self._communicators.values()), {}
        for communicator in opened:
            communicator.close()

    def _open_further(self, process_set: int, ranks: tuple[int, ...] | None) -> tuple[ProcessGroup, int]:
        executor = ProcessGroupExecutor()
        with self._lock:
            self._further[process_set] += 1
            number = further_communicator_number(process_set, QUEUE + self._further[process_set])
            self._runners.append((process_set, executor))
        return self._open(process_set, number, executor, ranks), number

    def _open(
        self, process_set: int, number: int, executor: ProcessGroupExecutor, ranks: tuple[int, ...] | None = None
    ) -> ProcessGroup:
        communicator = self._communicator(process_set, number, ranks)
        closed = partial(self._close_further, process_set, number, executor)
        return ProcessGroup(communicator, executor, lambda: self.open_group(process_set, ranks), closed)

    def _close_further(self, process_set: int, number: int, executor: ProcessGroupExecutor) -> None:
        """Close the communicator of a stopped group after its work in progress has ended.

        If the work does not end because another rank is missing, its resources are released when the world ends.
        """
        executor.wait_stopped(min(_CLOSE_S, self.config.waits.timeout_s))
        with self._lock:
            self._runners = [entry for entry in self._runners if entry != (process_set, executor)]
            communicator = self._communicators.pop(number, None)
        if communicator is not None:
            communicator.close()

    def _communicator(self, process_set: int, number: int, ranks: tuple[int, ...] | None = None) -> Communicator:
        network = ExchangeCommunicator(self._member, number, ranks or self._sets[process_set], self._segment_bytes)
        chosen = choose_communicator(self._member, number, network, self.config, *self._bounds)
        with self._lock:
            if not self._closing:
                self._communicators[number] = chosen
                return chosen
        chosen.close()  # nothing else closes it: a queue has opened it while the world was left
        raise NotInitializedError("ringtrain was shut down while a communicator was opened")


# World of the running code, in a process with several ranks.
ENTERED: ContextVar[ProcessGroupContext | None] = ContextVar("ringtrain_context", default=None)


def _break_when_lost(agent: RankAgentSocket, formation: int, member: WorldMembership) -> None:
    """Make this rank's waits fail as soon as the agent reports that a member of its elastic world is lost."""
    agent.call_on_loss(formation, member.break_off)


def warn_without_token(ring: RingConfig) -> None:
    """Log a warning if unauthenticated peers can take part in this world."""
    address = ring.addresses[ring.rank]
    if ring.size > 1 and ring.token is None and not is_loopback(address):
        log.warning(
            "rank %d has no token: every process that reaches %s can take part in this world and change its weights. "
            "Set the same RINGTRAIN_TOKEN_FILE (or RINGTRAIN_TOKEN) on all ranks",
            ring.rank, address,
        )  # fmt: skip


def _rank_context_transport(ring: RingConfig, config: WorkerConfig) -> Transport:
    if ring.size == 1:
        return NoPeersTransport()
    os.environ.setdefault("GRPC_VERBOSITY", "ERROR")  # else gRPC logs each failed handshake of an unauthenticated peer
    from ringtrain._core.transport.rpc import RpcTransport

    near = {rank for rank, name in enumerate(config.sites) if name == config.sites[config.place.rank]}
    in_clear = frozenset(near if config.trust.encrypt == "sites" else ())
    return RpcTransport(
        ring.rank, ring.addresses, ring.timeout_s, config.ways.data_path == "auto", _rank_context_tls(config), in_clear
    )


def _rank_context_tls(config: WorkerConfig) -> TlsIdentity | None:
    """Return the certificates for encryption between ranks; None if encryption is off.

    Raises ConfigurationError if encryption is on but impossible.
    """
    if config.trust.encrypt == "none":
        return None
    if config.ways.transport in ("mpi", "torch"):
        raise ConfigurationError(
            f"RINGTRAIN_ENCRYPT is {config.trust.encrypt}, but RINGTRAIN_TRANSPORT is "
            f"{config.ways.transport}, which ringtrain can't encrypt; set RINGTRAIN_TRANSPORT=auto"
        )
    if not config.trust.job_uid:
        raise ConfigurationError(
            f"RINGTRAIN_ENCRYPT is {config.trust.encrypt}, but RINGTRAIN_JOB_UID is not set; set "
            "RINGTRAIN_JOB_UID to the uid in the certificates' name worker.<uid>.ringtrain"
        )
    from ringtrain.shared.tls import TlsIdentity

    return TlsIdentity.load(config.trust.secret_dir, f"{contract.ROLE_WORKER}.{config.trust.job_uid}.ringtrain")
