"""Named collectives: agreed in one order whatever the order of submission."""

import re
import threading
import weakref
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from frameworks.queues import ONES, allreduce, with_queues
from hypothesis import given, settings
from hypothesis import strategies as st

from ringtrain._core.negotiation.agreement import RequestNegotiation
from ringtrain._core.negotiation.queue import NamedQueue
from ringtrain._core.negotiation.request import CollectiveKind, NamedRequest, NegotiationRound, described
from ringtrain._core.negotiation.submission import NamedSubmission
from ringtrain.errors import ConfigurationError, MismatchError, NotInitializedError, PeerLost, RingtrainError


def exchange(agreements: list[RequestNegotiation], messages: list[NegotiationRound]):
    """Give every rank the messages of one round, as bytes; all ranks decide alike."""
    rounds = [NegotiationRound.decode(one.encode()) for one in messages]
    decisions = [agreement.receive(rounds) for agreement in agreements]
    assert all(decision == decisions[0] for decision in decisions)
    return decisions[0]


def agreements(size: int) -> list[RequestNegotiation]:
    return [RequestNegotiation(tuple(range(size))) for _ in range(size)]


def test_a_collective_waits_until_every_rank_has_asked():
    ranks = agreements(2)
    assert exchange(ranks, [ranks[0].next_round([allreduce("a")]), ranks[1].next_round([])]).agreed == ()
    (agreed,) = exchange(ranks, [ranks[0].next_round([]), ranks[1].next_round([allreduce("a")])]).agreed
    assert (agreed.name, agreed.error) == ("a", "")


def test_what_was_agreed_on_before_is_said_as_a_number():
    ranks = agreements(2)
    exchange(ranks, [rank.next_round([allreduce("a")]) for rank in ranks])
    message = ranks[0].next_round([allreduce("a")])
    assert (message.requests, message.known) == ((), (0,))
    (agreed,) = exchange(ranks, [rank.next_round([allreduce("a")]) for rank in ranks]).agreed
    assert agreed.any_request == allreduce("a")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"shapes": ((3,),)}, r"shape is \(2,\) on rank 0 and \(3,\) on rank 1"),
        ({"dtypes": ("int64",)}, "dtype is float32 on rank 0 and int64 on rank 1"),
        ({"op": "Max"}, "op is Sum on rank 0 and Max on rank 1"),
        ({"device": "cuda"}, "device is cpu on rank 0 and cuda on rank 1"),
        ({"prescale": 2.0}, r"prescale factor is 1.0 on rank 0 and 2.0 on rank 1"),
        ({"kind": CollectiveKind.ALLGATHER}, "collective is allreduce on rank 0 and allgather on rank 1"),
        ({"error": "bad splits"}, "rank 1: .*bad splits"),
    ],
)
def test_a_difference_names_both_ranks_and_values(change, words):
    ranks = agreements(2)
    requests = [allreduce("a"), replace(allreduce("a"), **change)]
    (agreed,) = exchange(
        ranks, [rank.next_round([request]) for rank, request in zip(ranks, requests, strict=True)]
    ).agreed
    assert re.search(words, agreed.error)


def test_known_requests_run_beside_one_that_waits_for_a_rank():
    """Whether all ranks say the same numbers, others than these, or more beside them."""
    ranks, names = agreements(2), ["a", "b", "c"]
    exchange(ranks, [rank.next_round([allreduce(name) for name in names]) for rank in ranks])
    orders = (["a", "b"], ["a", "b"]), (["a", "c"], ["b", "a"]), (["b"], ["c"]), (["a"], ["a"])
    agreed = []
    for order in orders:
        said = [rank.next_round([allreduce(name) for name in mine]) for rank, mine in zip(ranks, order, strict=True)]
        agreed.append([entry.name for entry in exchange(ranks, said).agreed])
    assert agreed == [["a", "b"], ["a"], ["c", "b"], ["a"]]


def test_after_a_name_has_expired_all_meet_until_no_name_waits():
    """A rank with nothing in flight would stay away, and what waits for it expires in rounds alone."""
    ranks = agreements(2)
    exchange(ranks, [ranks[0].next_round([allreduce("a")]), ranks[1].next_round([allreduce("b")])])
    assert not any(rank.needs_round for rank in ranks)
    exchange(ranks, [ranks[0].next_round([]), ranks[1].next_round([], expired=["b"])])
    assert all(rank.needs_round for rank in ranks)
    exchange(ranks, [ranks[0].next_round([], expired=["a"]), ranks[1].next_round([])])
    assert not any(rank.needs_round for rank in ranks)


def test_an_expired_name_says_who_is_missing():
    ranks = agreements(3)
    messages = [
        ranks[0].next_round([allreduce("a")], expired=["a"]),
        ranks[1].next_round([]),
        ranks[2].next_round([allreduce("a")]),
    ]
    (agreed,) = exchange(ranks, messages).agreed
    assert "submitted by ranks [0, 2] and not by ranks [1]" in agreed.error


def test_a_joined_rank_is_not_waited_for_and_the_last_one_is_known():
    ranks = agreements(3)
    messages = [ranks[0].next_round([], joined=True), *(rank.next_round([allreduce("a")]) for rank in ranks[1:])]
    decisions = exchange(ranks, messages)
    assert (set(decisions.agreed[0].requests), decisions.all_joined) == ({1, 2}, None)
    assert exchange(ranks, [rank.next_round([], joined=True) for rank in ranks]).all_joined == 2


@settings(max_examples=50)
@given(st.integers(0, 2**32 - 1))
def test_any_orders_of_submission_end_in_one_order(seed):
    """However names are spread over rounds, every rank decides the same, and every name is agreed on once."""
    random = np.random.default_rng(seed)
    names = ["a", "b", "c", "d", "e"]
    left = [list(random.permutation(names)) for _ in range(3)]
    ranks, agreed = agreements(3), []
    while any(left):
        messages = []
        for rank, rest in zip(ranks, left, strict=True):
            count = int(random.integers(0, len(rest) + 1))
            messages.append(rank.next_round([allreduce(str(name)) for name in rest[:count]]))
            del rest[:count]
        agreed += [entry.name for entry in exchange(ranks, messages).agreed]
    assert sorted(agreed) == names


@pytest.mark.parametrize("size", [1, 2, 4], ids=lambda size: f"ranks-{size}")
def test_the_queue_pairs_names_in_any_order(size):
    def submit_all(queue: NamedQueue) -> list[float]:
        order = np.random.default_rng(queue.rank).permutation(20)
        futures = {
            int(i): queue.submit(allreduce(f"t{i}"), lambda i=i: [np.full(2, float(i), np.float32)]) for i in order
        }
        return [float(futures[i].result(60)[0][0]) for i in range(20)]

    assert with_queues(size, submit_all) == [[float(i * size) for i in range(20)]] * size


def test_a_name_in_flight_is_refused():
    def twice(queue: NamedQueue) -> bool:
        if queue.rank == 0:
            queue.submit(allreduce("held"), lambda: [ONES])
            with pytest.raises(ConfigurationError, match="still in flight"):
                queue.submit(allreduce("held"), lambda: [ONES])
            return True
        return queue.submit(allreduce("held"), lambda: [ONES]).result(60)[0][0] == 2

    assert with_queues(2, twice) == [True, True]


@pytest.mark.parametrize("timeouts_s", [(0.05, 0.05), (0.2, 0.05)], ids=["together", "one-after-the-other"])
def test_ranks_that_name_different_tensors_fail_instead_of_waiting(timeouts_s):
    def alone(queue: NamedQueue) -> str:
        future = queue.submit(allreduce(f"rank{queue.rank}"), lambda: [ONES])
        with pytest.raises(MismatchError) as caught:
            future.result(60)
        return str(caught.value)

    first, second = with_queues(2, alone, timeouts_s)
    assert "submitted by ranks [0] and not by ranks [1]" in first
    assert "submitted by ranks [1] and not by ranks [0]" in second


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        (allreduce("t1", (3,)), r"'t1': shape is \(2,\) on rank 0 and \(3,\) on rank 1"),
        (allreduce("t1", op="Max"), "'t1': op is Sum on rank 0 and Max on rank 1"),
        (replace(allreduce("t1"), prescale=2.0), "'t1': prescale factor is 1.0 on rank 0 and 2.0 on rank 1"),
    ],
    ids=["shape", "op", "prescale"],
)
def test_a_rank_that_differs_after_steps_that_were_alike_is_named_and_the_next_step_runs(changed, words):
    usual = [allreduce(f"t{i}") for i in range(3)]

    def step(queue: NamedQueue, requests: list[NamedRequest]) -> list:
        return [queue.submit(r, lambda r=r: [np.full(r.shapes[0], 1.0 + queue.rank, np.float32)]) for r in requests]

    def steps(queue: NamedQueue) -> tuple[str, list[float]]:
        for _ in range(4):
            assert [p.result(60)[0].tolist() for p in step(queue, usual)] == [[3.0, 3.0]] * 3
        odd = step(queue, [usual[0], changed, usual[2]] if queue.rank == 1 else usual)
        with pytest.raises(MismatchError) as caught:
            odd[1].result(60)
        beside = [odd[0].result(60)[0][0], odd[2].result(60)[0][0]]
        return str(caught.value), [*beside, *(p.result(60)[0][0] for p in step(queue, usual))]

    for message, results in with_queues(2, steps):
        assert re.search(words, message)
        assert results == [3.0] * 5


def test_a_request_asked_for_again_is_the_same_object_and_what_differs_is_another():
    """So that a warm step checks nothing anew; the factor that the hash leaves out is compared all the same."""
    plain, scaled = (NamedRequest(CollectiveKind.ALLREDUCE, "a", op="Sum", prescale=p) for p in (1.0, 2.0))
    first = described(plain, ("float32",), ((2,),), "cpu")
    assert described(plain, ("float32",), ((2,),), "cpu") is first
    assert (hash(scaled), described(scaled, ("float32",), ((2,),), "cpu").prescale) == (hash(plain), 2.0)
    assert described(plain, ("float32",), ((3,),), "cpu").shapes == ((3,),)


def test_a_promise_that_nobody_keeps_raises_after_its_deadline_and_a_kept_one_wakes_all_waiters():
    promise = NamedSubmission(allreduce("a"), tuple)
    promise.completed = threading.Condition()
    with pytest.raises(TimeoutError, match="no result within"):
        promise.result(0.01)
    assert not promise.done()
    with ThreadPoolExecutor(3) as pool:
        waiters = [pool.submit(promise.result, 60) for _ in range(3)]
        promise.keep(["sum"])
        with promise.completed:
            promise.completed.notify_all()
        assert [waiter.result(60) for waiter in waiters] == [["sum"]] * 3


@pytest.mark.parametrize(
    "end", [lambda p: p.keep([]), lambda p: p.fail_with(MismatchError("no"))], ids=["kept", "broken"]
)
def test_a_promise_that_is_over_holds_tensors_no_longer(end):
    """A gradient becomes a view of its bucket only where nobody else holds its memory."""
    array = np.ones(2)
    gone = weakref.ref(array)
    promise = NamedSubmission(allreduce("a"), lambda held=array: [held], target=array)
    del array
    assert gone() is not None
    end(promise)
    assert gone() is None


def _no_arrays() -> list[np.ndarray]:
    raise ValueError("the device is gone")


def test_a_rank_that_cannot_carry_out_what_was_agreed_fails_all_at_once():
    """The others do not wait for it until the stall timeout, and they are told why."""

    def reduce(queue: NamedQueue) -> str:
        with pytest.raises(RingtrainError) as caught:
            queue.submit(allreduce("a"), _no_arrays if queue.rank == 1 else lambda: [ONES]).result(30)
        with pytest.raises(PeerLost):
            queue.submit(allreduce("b"), lambda: [ONES]).result(30)
        return str(caught.value)

    told = with_queues(3, reduce)
    assert told[0] == told[2] == "rank 1 left 'a' because of ValueError: the device is gone"
    assert told[1] == "a named collective failed on this rank: ValueError: the device is gone"


def failing_afterwards(communicator: Any) -> Any:
    """`communicator`, whose allreduces are carried out, and fail then."""
    plain = communicator.all_reduce_grouped

    def all_reduce_grouped(*arguments: Any) -> None:
        plain(*arguments)
        raise MemoryError("no memory for the result")

    communicator.all_reduce_grouped = all_reduce_grouped
    return communicator


def test_a_rank_that_fails_after_it_has_carried_out_its_part_goes_on_with_nobody():
    """It has forgotten which numbers stand for which names: what the others say next would be something else."""

    def reduce(queue: NamedQueue) -> list[str]:
        told = []
        for name in ("a", "b" if queue.rank else "a"):
            try:
                told.append(str(queue.submit(allreduce(name), lambda: [ONES]).result(30)[0].tolist()))
            except RingtrainError as error:
                told.append(str(error))
        return told

    told = with_queues(2, reduce, watched=lambda rank, one: failing_afterwards(one) if rank else one)
    assert told[0][1] == told[1][1] == "rank 1 left 'a' because of MemoryError: no memory for the result"


def test_a_rank_alone_goes_on_after_what_it_could_not_carry_out():
    def reduce(queue: NamedQueue) -> float:
        with pytest.raises(RingtrainError, match="the device is gone"):
            queue.submit(allreduce("a"), _no_arrays).result(30)
        return float(queue.submit(allreduce("a"), lambda: [ONES]).result(30)[0][0])

    assert with_queues(1, reduce) == [1.0]


def test_a_closed_queue_fails_what_is_in_flight():
    never = threading.Event()
    queue = NamedQueue(0, (0, 1), lambda: never.wait(60) and None, 60.0, lambda error: None)
    future = queue.submit(allreduce("never"), lambda: [ONES])
    queue.stop()
    never.set()
    with pytest.raises(RuntimeError, match=r"shut down|named collective failed"):
        future.result(60)
    with pytest.raises(NotInitializedError, match="init"):
        queue.submit(allreduce("late"), lambda: [ONES])
