"""Context of a rank in its world: its groups and communicators, and how it leaves."""

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
from ringtrain._core.process_groups.formations import (
    BoundProcessSet,
    FormerFormation,
    ProcessFormationMemory,
    former_process_formation,
)
from ringtrain._core.process_groups.group import ProcessGroup, ProcessGroupExecutor
from ringtrain._core.transport.base import NoPeersTransport, Transport
from ringtrain._core.world.agent_socket import RankAgentSocket
from ringtrain._core.world.config import WorkerConfig
from ringtrain._core.world.failure_state import RankActivity
from ringtrain._core.world.membership import WorldMembership
from ringtrain._core.world.ring_config import RingConfig
from ringtrain.errors import ConfigurationError, NotInitializedError
from ringtrain.shared import contract
from ringtrain.shared.address import is_loopback

if TYPE_CHECKING:
    from ringtrain.shared.tls import TlsIdentity

log = logging.getLogger("ringtrain")
T = TypeVar("T")


class CollectiveRunner(Protocol):
    """Part of a world that runs collectives on a separate thread."""

    def stop(self) -> None:
        """Accept no more work, and fail the work that has not begun."""

    def wait_stopped(self, timeout_s: float) -> None:
        """Wait for work in progress. The world has been left, so that it ends."""

    def in_flight(self) -> str:
        """Return the names of collectives that were begun by name and have not ended, for messages; may be empty."""


# Time for work in progress in a closed group to end. It has ended already, unless its step was cancelled.
_CLOSE_S: Final = 2.0


class ProcessGroupContext:
    """Rank in its world: its configuration, its process groups, and the threads that run collectives in them."""

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
        `direct_ranks_most`: more ranks without pods use the tree. Both must be the same on all ranks.
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
        self._further: Counter[int] = (
            Counter()
        )  # further communicators of a set, besides those of queue and collectives
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
        """Add a set and return its number; all ranks add the same sets in the same order."""
        number = next(self._set_numbers)  # numbers of removed sets are not reused
        self._sets[number] = ranks
        if self.config.place.rank in ranks:
            self.groups[number] = self._open(number, number, self._executor)
        return number

    def added_set(self, ranks: Sequence[int]) -> int | None:
        """Return the number of the added set with these ranks, or None."""
        added = {own: number for number, own in self._sets.items() if number != WORLD}
        return added.get(tuple(ranks))

    def bind_set(self, process_set: BoundProcessSet, number: int) -> None:
        """Bind `process_set` to the set with that number, also in the next world of an elastic job."""
        self._set_objects[number] = weakref.ref(process_set)
        process_set.bind(self, number)

    def take_former_set(self, ranks: Sequence[int]) -> int | None:
        """Return the number of the set with these ranks from the former world, at most once; else None."""
        for number in self._former_sets:
            if list(self._sets[number]) == list(ranks):
                self._former_sets.discard(number)
                return number
        return None

    def join_formation(self, carried: ProcessFormationMemory) -> None:
        """Determine the members' former ranks, and create the process sets of the former world again. Collective.

        A set has the same rank numbers as before; one with a rank that this world does not have is dropped.
        """
        summaries = self.group().allgather_object(carried.summary(), "formation")
        self.former = former_process_formation(summaries)
        kept: list[list[int]] = next((summaries[rank]["sets"] for rank in self.former.survivors), [])
        objects = {tuple(ranks): held for ranks, held in carried.sets}
        for ranks in kept:
            if max(ranks) >= self.config.place.size:
                log.warning("process set %s is dropped: this world has only %d ranks", ranks, self.config.place.size)
                continue
            number = self.add_set(tuple(ranks))
            self._former_sets.add(number)
            held = objects.get(tuple(ranks))
            if held is not None and (process_set := held()) is not None:
                self.bind_set(process_set, number)

    def leave_formation(self, carried: ProcessFormationMemory) -> None:
        """Record the generation and the sets for the next world."""
        carried.formation = self.config.numbers.formation
        carried.sets = [
            (list(ranks), self._set_objects.get(number)) for number, ranks in self._sets.items() if number != WORLD
        ]

    def ranks_of_set(self, process_set: int) -> list[int] | None:
        """Return the world ranks of a set; None if there is no such set."""
        ranks = self._sets.get(process_set)
        return None if ranks is None else list(ranks)

    def in_flight(self, process_set: int) -> str:
        """Return the names of collectives that this rank has begun by name in a set and that have not ended; may be
        empty.
        """
        with self._lock:
            runners = [runner for number, runner in self._runners if number == process_set]
        return ", ".join(filter(None, (runner.in_flight() for runner in runners)))

    def remove_set(self, process_set: int) -> None:
        """Close the groups of a set; nothing may be in progress in it."""
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
        """Return another group of a set's ranks with a separate executor.

        Its ranks open the same groups in the same order.

        `ranks`: members of the group, including this rank; each rank of the set then opens one group.
        """
        return self._open_further(process_set, ranks)[0]

    def open_foreign(self, process_set: int, ranks: tuple[int, ...]) -> tuple[ProcessGroup, ForeignCommunicatorCalls]:
        """Return `open_group`, and the interface by which its ranks call a foreign library."""
        group, number = self._open_further(process_set, ranks)
        return group, ForeignCommunicatorCalls(self._member, number, ranks)

    def open_queue_communicator(self, process_set: int) -> Communicator:
        """Return the communicator of a set's named queue. Called once for each set, when its ranks first need it."""
        return self._communicator(process_set, further_communicator_number(process_set, QUEUE))

    def foreign_calls(self, process_set: int) -> ForeignCommunicatorCalls:
        """Return the interface by which a set's named queue calls a foreign library. Once for each set."""
        return ForeignCommunicatorCalls(
            self._member, further_communicator_number(process_set, QUEUE), self._sets[process_set]
        )

    def give_up(self, process_set: int, error: BaseException) -> None:
        """Make all ranks raise, because `error` stopped this rank's named collectives of `process_set`."""
        begun = self.in_flight(process_set) or "named collectives"
        self._member.give_up(RankActivity(begun, process_set, 0), error)

    def describe_queue(self, process_set: int, details: Callable[[], str]) -> None:
        """Register `details`, which names the set's collectives in flight, for messages of waiting ranks."""
        self._member.offers.describe(further_communicator_number(process_set, QUEUE), details)

    def run_with_set(self, process_set: int, runner: CollectiveRunner) -> None:
        """Register `runner` to be stopped when the set is removed or the world is left."""
        with self._lock:
            self._runners.append((process_set, runner))
            if self._closing:
                runner.stop()

    def attached(self, kind: type[T], make: Callable[[], T]) -> T:
        """Return the only object of type `kind` of this world; `make` creates it on the first call."""
        with self._lock:
            if kind not in self._attached:
                self._attached[kind] = make()
            found: T = self._attached[kind]
            return found

    @property
    def local_sizes(self) -> tuple[int, ...]:
        """Return the number of ranks on each rank's host or in its pod."""
        return self._member.local_sizes

    @property
    def pod(self) -> str:
        """Return a text that is equal for ranks of one pod."""
        return communicator_pod(self.config)

    @property
    def is_lost(self) -> bool:
        """Return whether this world has ended because a member was lost."""
        failure = self._member.failure_state.failure
        return failure is not None and failure.kind == "lost"

    @contextlib.contextmanager
    def entered(self) -> Iterator[ProcessGroupContext]:
        """Make this the current world of the calling thread, for a process with several ranks."""
        token = ENTERED.set(self)
        try:
            yield self
        finally:
            ENTERED.reset(token)

    def disown(self) -> None:
        """Make calls of the rank's groups and optimizers fail in a forked process."""
        for _, runner in self._runners:
            if isinstance(runner, ProcessGroupExecutor):
                runner.disown()

    def close(self) -> None:
        """Leave the world. Work in progress fails. A second call does nothing."""
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
        """Release the resources of a stopped group after the work in progress has ended.

        If it does not end because another rank is missing, the end of the world releases the rest.
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
    """Register a callback that makes waits for a lost member fail as soon as the agent reports the loss."""
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
    """Return the certificates for encryption between ranks; None without it.

    Raises ConfigurationError if it is impossible.
    """
    if config.trust.encrypt == "none":
        return None
    if config.ways.transport in ("mpi", "torch"):
        raise ConfigurationError(
            f"RINGTRAIN_ENCRYPT is {config.trust.encrypt}, but RINGTRAIN_TRANSPORT is {config.ways.transport}, which "
            "ringtrain can't encrypt; use auto"
        )
    if not config.trust.job_uid:
        raise ConfigurationError(
            f"RINGTRAIN_ENCRYPT is {config.trust.encrypt}, but RINGTRAIN_JOB_UID is not set; peers are identified by "
            "the name worker.<uid>.ringtrain in their certificates"
        )
    from ringtrain.shared.tls import TlsIdentity

    return TlsIdentity.load(config.trust.secret_dir, f"{contract.ROLE_WORKER}.{config.trust.job_uid}.ringtrain")
