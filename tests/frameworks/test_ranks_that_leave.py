"""Ranks that leave while others need them for named collectives: all are told at once, and no sum is wrong."""

import functools
import re
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import pytest
from frameworks.queues import ONES, allreduce, with_queues
from ring.worlds import world_of
from support.deadlines import patient
from support.ranks import run_ranks

import ringtrain as rt
from ringtrain._core.communicators.base import Communicator
from ringtrain._core.negotiation import queues
from ringtrain._core.negotiation.queue import NamedQueue
from ringtrain._core.negotiation.submission import NamedSubmission
from ringtrain._core.process_groups.context import current
from ringtrain._core.process_groups.process_sets import global_process_set
from ringtrain._core.process_groups.rank_context import ProcessGroupContext
from ringtrain._core.reduction.cuts import Bounds
from ringtrain._core.reduction.fold import Flat
from ringtrain._core.wire.signature import WireSignature
from ringtrain.errors import MismatchError, NotInitializedError, PeerLost

# Half a second of it others wait for a reason that says more.
PROMPT_S = 5.0
DEADLINE_S = patient(30.0)  # of waits that none of these tests needs to see out


def _position(queue: NamedQueue) -> int:
    return queue.ranks.index(queue.rank)


class Leaving:
    """Actions of the ranks of a world that `leaver` leaves. Ranks in `joined` call `join`, the others submit.

    `when` is the moment at which it leaves. "agreeing": the others agree on a collective that it has not submitted.
    "agreed": all ranks have agreed on two collectives, and the second one has not run.
    """

    def __init__(self, leaver: int, joined: Sequence[int], when: str) -> None:
        self._leaver = leaver
        self._joined = joined
        self._when = when
        self._may_leave = threading.Event()
        self._left = threading.Event()
        self._left_at = 0.0

    def told(self, queue: NamedQueue) -> str:
        """Return what the rank of `queue` is told in the end, which is soon after the leaver has left."""
        try:
            told = self._join(queue) if _position(queue) in self._joined else self._submit(queue)
        except (NotInitializedError, PeerLost) as error:
            told = str(error)
        heard_at = time.monotonic()
        if _position(queue) == self._leaver and _position(queue) not in self._joined:
            if self._when == "agreed":
                queue.wait_stopped(DEADLINE_S)
            self._leave(current())
        assert self._left.wait(DEADLINE_S)
        assert heard_at - self._left_at < PROMPT_S
        return told

    def _leave(self, world: ProcessGroupContext) -> None:
        self._left_at = time.monotonic()
        world.close()
        self._left.set()

    def _join(self, queue: NamedQueue) -> str:
        if _position(queue) == self._leaver:
            world = current()
            threading.Thread(target=lambda: self._may_leave.wait(DEADLINE_S) and self._leave(world)).start()
        return f"the last to join was rank {queue.join()}"

    def _submit(self, queue: NamedQueue) -> str:
        both = queue.submit(allreduce("both"), lambda: [ONES], lambda _: self._submit_both(queue))
        second = both.result(DEADLINE_S)
        if second is None and _position(queue) == self._leaver:
            return "leaves"
        if second is None:
            assert self._left.wait(DEADLINE_S)
            second = queue.submit(allreduce("second"), lambda: [ONES])
        return f"summed to {second.result(DEADLINE_S)}"

    def _submit_both(self, queue: NamedQueue) -> NamedSubmission | None:
        """On the queue's thread, so that all ranks submit this in one round."""
        if self._when == "agreeing" and _position(queue) != min({0, 1} - {self._leaver}):
            return None  # until the leaver has left; one of the others waits for that
        if self._when == "agreeing":
            self._may_leave.set()
        else:  # of another factor than the second, so that they are not fused
            queue.submit(allreduce("first", prescale=2.0), lambda: self._arrays_of_first(queue))
        return queue.submit(allreduce("second"), lambda: [ONES])

    def _arrays_of_first(self, queue: NamedQueue) -> list[np.ndarray]:
        if _position(queue) == self._leaver:
            queue.stop()
        elif self._leaver in self._joined:
            self._may_leave.set()
            assert self._left.wait(DEADLINE_S)
        return [ONES]


NOBODY: tuple[int, ...] = ()
CASES = {
    "of-two": (2, 1, NOBODY),
    "of-four": (4, 0, NOBODY),
    "one-joined": (3, 1, (2,)),
    "the-joined-one": (3, 2, (2,)),
    "two-joined": (4, 1, (2, 3)),
    "one-of-two-joined": (4, 3, (2, 3)),
}


@pytest.mark.parametrize("when", ["agreeing", "agreed"])
@pytest.mark.parametrize(("size", "leaver", "joined"), CASES.values(), ids=CASES)
@pytest.mark.parametrize("of_set", [False, True], ids=["world", "set"])
def test_all_that_need_a_rank_that_leaves_are_told_for_what(
    size: int, leaver: int, joined: tuple[int, ...], when: str, of_set: bool
) -> None:
    """At once, wherever it leaves; those that have joined as well. It adds no zeros to the others' sum."""
    beside = int(of_set)  # rank 0 is then not of the set
    told = with_queues(
        size + beside, Leaving(leaver, joined, when).told, members=range(beside, size + beside) if of_set else ()
    )
    for message in told[:leaver] + told[leaver + 1 :]:
        needed = r"(allreduce|agreement) #\d+ on ('first' and 1 more|'second'|join\(\))"
        assert re.match(f"rank {leaver + beside} has shut down, and rank [0-4] needs it for {needed}", message), told
    assert told[leaver] == "leaves" or "shut down" in told[leaver], told


def watched(communicator: Communicator, watch: Callable[[bytes], None]) -> Communicator:
    """`communicator`, which has `watch` see what all ranks have said before its own rank does."""
    plain = communicator.all_gather

    def all_gather(what: WireSignature, buffer: Flat, bounds: Bounds) -> None:
        plain(what, buffer, bounds)
        watch(buffer.tobytes())

    setattr(communicator, "all_gather", all_gather)  # noqa: B010
    return communicator


def test_a_rank_that_has_joined_and_shuts_down_adds_no_zeros_for_what_it_has_submitted() -> None:
    """Rank 1 submits and joins. Then rank 0 submits the same: rank 1 shuts down as it hears that."""
    heard = [threading.Event(), threading.Event()]
    leavers: list[NamedQueue] = []

    def watch(said: bytes) -> None:
        if b'"name":"both"' not in said:
            return
        if heard[0].is_set():
            heard[1].set()
            leavers[0].stop()
        heard[0].set()

    def submit(queue: NamedQueue) -> str:
        first = queue.submit(allreduce("of rank 0"), lambda: [ONES])  # runs when rank 1 has joined
        assert first.result(DEADLINE_S)[0].tolist() == [1, 1]
        with pytest.raises(PeerLost) as caught:
            queue.submit(allreduce("both"), lambda: [ONES]).result(DEADLINE_S)
        return str(caught.value)

    def submit_and_join(queue: NamedQueue) -> str:
        leavers.append(queue)
        queue.submit(allreduce("both"), lambda: [ONES])
        assert heard[0].wait(DEADLINE_S)
        with pytest.raises(NotInitializedError) as caught:
            queue.join()
        queue.wait_stopped(DEADLINE_S)
        current().close()
        return str(caught.value)

    told = with_queues(
        2,
        lambda queue: submit_and_join(queue) if queue.rank else submit(queue),
        watched=lambda rank, communicator: watched(communicator, watch) if rank else communicator,
    )
    assert heard[1].is_set()
    assert re.match("rank 1 has shut down, and rank 0 needs it for allreduce #[0-9]+ on 'both'", told[0]), told


def leave_or_be_told() -> tuple[str, float]:
    """In a process: rank 1 leaves between two collectives that all have agreed on, and rank 2 has joined."""
    rt.init()
    queue = queues.queue_of(global_process_set)
    leave = queue.stop if queue.rank == 1 else list

    def submit_both(_: object) -> NamedSubmission:
        queue.submit(allreduce("first", prescale=2.0), lambda: [ONES], lambda _: leave())
        return queue.submit(allreduce("second"), lambda: [ONES])

    began = time.monotonic()
    try:
        if queue.rank == 2:
            return f"joined {queues.join()}", 0.0
        both = queue.submit(allreduce("both"), lambda: [ONES], submit_both)
        return f"summed to {both.result(DEADLINE_S).result(DEADLINE_S)}", 0.0
    except (NotInitializedError, PeerLost) as error:
        return str(error), time.monotonic() - began
    finally:
        if queue.rank == 1:
            queue.wait_stopped(DEADLINE_S)


@pytest.mark.parametrize("transport", ["grpc", "auto"])
def test_processes_are_told_as_well(transport: str) -> None:
    """Over the network, and in shared memory."""
    told = run_ranks(leave_or_be_told, 3, env={"RINGTRAIN_TRANSPORT": transport})
    for message, seconds in (told[0], told[2]):
        assert re.match(r"rank 1 has shut down, and rank [02] needs it for allreduce #\d+ on ", message), told
        assert seconds < PROMPT_S


class Unfinished:
    """A collective of a library that does not notice that a rank is gone."""

    def is_completed(self) -> bool:
        return False

    def wait(self) -> None:
        raise AssertionError("it is not complete")


def test_a_library_that_waits_for_a_rank_that_has_shut_down_is_not_waited_for() -> None:
    """Nor does it take the stall timeout: what the rank has given may be on its way for the time of a probe."""
    with world_of(3, timeout_s=6.0) as world:

        def call(rank: int) -> str:
            calls = current().foreign_calls(0)
            world.meet()
            if rank == 1:
                current().close()
                return "left"
            with pytest.raises(PeerLost) as caught:
                calls.run("device_allreduce", Unfinished)
            return str(caught.value)

        told = world.run(call)
    for message in told[:1] + told[2:]:
        assert re.match("rank 1 has shut down, and rank [02] needs it for device_allreduce #1", message), told


@dataclass(frozen=True)
class Script:
    """Actions of the ranks of a world in each phase. Ranks that joined or left take part in no later phase.

    `submitted[phase][rank]`: names and lengths, in order. `joins[rank]`: the phase after which it joins. The
    others then submit the last collective of the phase and wait for it. `leaver`, if not -1, shuts down after phase
    `leaves_after`: `how` "at once", "in step" when all have ended it, "joined" while it waits in `join`, or
    "midway", when the first of its collectives of that phase has run.
    """

    submitted: list[list[dict[str, int]]]
    joins: list[int]
    leaver: int = -1
    leaves_after: int = 99
    how: str = ""

    @classmethod
    def of_seed(cls, seed: int) -> "Script":
        random = np.random.default_rng(seed)
        size, phases = int(random.integers(2, 5)), int(random.integers(1, 4))
        leaver = int(random.integers(0, size)) if random.random() < 0.7 else -1
        leaves_after, how = (
            int(random.integers(0, phases)),
            ("at once", "in step", "joined", "midway")[random.integers(0, 4)],
        )
        joins = [int(random.integers(0, phases + 2)) for _ in range(size)]
        if leaver >= 0:
            joins[leaver] = leaves_after if how == "joined" else phases
        names = [[f"{phase}{letter}" for letter in "abc"] for phase in range(phases)]

        def of_rank(phase: int) -> dict[str, int]:
            chosen = [str(name) for name in random.permutation(names[phase]) if random.random() < 0.85]
            return {name: 3 if random.random() < 0.04 else 2 for name in chosen}

        submitted = [[of_rank(phase) for _ in range(size)] for phase in range(phases)]
        return cls(submitted, joins, leaver, leaves_after if leaver >= 0 else phases, how)

    @property
    def size(self) -> int:
        return len(self.joins)

    def askers(self) -> dict[tuple[int, str], dict[int, int]]:
        """Return the submitted length by rank, for each phase and name."""
        found: dict[tuple[int, str], dict[int, int]] = {}
        for phase, by_rank in enumerate(self.submitted):
            for rank, own in enumerate(by_rank):
                has_left = rank == self.leaver and phase > self.leaves_after
                for name, length in own.items() if phase <= self.joins[rank] and not has_left else ():
                    found.setdefault((phase, name), {})[rank] = length
        return found

    def possible(self, key: tuple[int, str]) -> set[str]:
        """Return the possible results of a name: its sum or "differs", and "gone" if the leaver may leave before it."""
        phase, name = key
        askers = self.askers()[key]
        is_alike = len(set(askers.values())) == 1
        total = FACTORS[name[1]] * sum(value(name, rank) for rank in askers)
        result = str(total) if is_alike else "differs"
        if self.leaver < 0:
            return {result}
        if self.leaver not in askers and self.how != "joined":
            return {"gone"}
        # All that are there have submitted it before what the phase ends with, for which the leaver has waited.
        missing = [rank for rank in range(self.size) if rank not in askers and self.joins[rank] >= phase]
        waited_for = phase < self.leaves_after + (self.how == "in step")
        return {result} if waited_for and not missing else {result, "gone"}


# By the letter of a name. What has another factor is not fused with it.
FACTORS = {"a": 1.0, "b": 2.0, "c": 4.0}


def value(name: str, rank: int) -> float:
    """A number that tells in every sum whose parts are in it, and of which name."""
    return float((int(name[0]) * 3 + "abc".index(name[1]) + 1) * 16**rank)


def follow(script: Script, queue: NamedQueue) -> dict[tuple[int, str], str]:
    """Do this rank's part of `script`. Return what became of all that it submitted."""
    begun: dict[tuple[int, str], NamedSubmission] = {}
    try:
        for phase in range(len(script.submitted) + 1):
            if not _go_through(script, queue, phase, begun):
                break
    except (PeerLost, NotInitializedError):  # what is in flight fails as well
        if script.leaver < 0:
            raise
        if queue.rank == script.leaver:
            current().close()
    return {key: _outcome(script, queue, one) for key, one in begun.items()}


def _go_through(script: Script, queue: NamedQueue, phase: int, begun: dict[tuple[int, str], NamedSubmission]) -> bool:
    """Whether this rank goes on to the next phase. After the last one it joins."""
    rank = queue.rank
    if phase == len(script.submitted):
        queue.join()
        return False
    leaves = rank == script.leaver and phase == script.leaves_after
    for name, length in script.submitted[phase][rank].items():
        array = np.full(length, value(name, rank), np.float32)
        request = allreduce(name, (length,), prescale=FACTORS[name[1]])
        finish = functools.partial(_stopping, queue) if leaves and script.how == "midway" else list
        begun[phase, name] = queue.submit(request, lambda array=array: [array], finish)
    if leaves and script.how == "joined":
        threading.Thread(target=current().close).start()
    if leaves and script.how == "at once":
        current().close()
        return False
    if phase == script.joins[rank]:
        queue.join()
        return False
    queue.submit(allreduce(f"end of {phase}", prescale=8.0), lambda: [ONES]).result(DEADLINE_S)
    if leaves:
        current().close()
    return not leaves


def _stopping(queue: NamedQueue, result: list[np.ndarray]) -> list[np.ndarray]:
    queue.stop()
    return result


def _outcome(script: Script, queue: NamedQueue, submission: NamedSubmission) -> str:
    try:
        (summed,) = submission.result(DEADLINE_S)
    except MismatchError as error:
        return "differs" if "shape" in str(error) else str(error)
    except (NotInitializedError, PeerLost) as error:
        is_named = queue.rank == script.leaver or f"rank {script.leaver} " in str(error)
        return "gone" if is_named else str(error)
    assert (summed == summed[0]).all()
    return str(float(summed[0]))


@pytest.mark.parametrize("seed", range(24))
def test_what_ranks_get_is_the_sum_of_those_that_submitted_or_an_error(seed: int) -> None:
    """Whatever they submit, whoever joins or leaves when: zeros count for who has joined, and for no one else."""
    script = Script.of_seed(seed)
    outcomes = with_queues(script.size, functools.partial(follow, script), world_timeout_s=8.0)
    for key, askers in script.askers().items():
        got = {rank: outcomes[rank][key] for rank in askers if key in outcomes[rank]}
        assert set(got.values()) <= script.possible(key), (key, got, script)
        assert script.leaver >= 0 or len(got) == len(askers)
