"""Requests and data workers that come and go: each is answered once, and none is forgotten."""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from ringtrain_data_service.leases import DataWorkerLeases


def test_the_oldest_goes_to_who_has_least() -> None:
    """A worker with two slots gets twice as many requests, and at most two for each slot."""
    leases = DataWorkerLeases(again_s=10.0)
    for key in range(8):
        leases.add(key)
    assert leases.assign(0.0) == []
    leases.join("one", 1)
    leases.join("two", 2)
    given = leases.assign(0.0)
    assert [key for _, key in given] == [0, 1, 2, 3, 4, 5]
    assert sorted(worker for worker, _ in given) == ["one"] * 2 + ["two"] * 4
    assert leases.answered(0)
    assert leases.assign(1.0) == [(given[0][0], 6)]


def test_what_a_lost_worker_had_goes_to_another() -> None:
    """A request that another worker has, too, is not assigned again."""
    leases = DataWorkerLeases(again_s=10.0)
    leases.join("one", 1)
    leases.add(0)
    leases.add(1)
    assert leases.assign(0.0) == [("one", 0), ("one", 1)]
    leases.join("two", 1)
    assert leases.assign(11.0) == [("two", 0), ("two", 1)]
    assert leases.leave("one") == []
    assert leases.leave("two") == [0, 1]
    leases.join("three", 1)
    assert leases.assign(12.0) == [("three", 0), ("three", 1)]


def test_a_second_answer_is_a_duplicate() -> None:
    """An answer without a request is a duplicate, too."""
    leases = DataWorkerLeases(again_s=1.0)
    leases.add(0)
    assert leases.answered(0)
    assert not leases.answered(0)
    assert not leases.answered(1)


def test_crashes_are_counted_by_request() -> None:
    """Crashes count for a request, no matter which data worker had it, until it is answered."""
    leases = DataWorkerLeases(again_s=1.0)
    leases.join("one", 1)
    leases.add(0)
    for count in (1, 2, 3):
        assert leases.assign(0.0) == [("one", 0)]
        assert leases.crashed("one", 0) == count
    leases.answered(0)
    assert leases.crashed("one", 0) == 0


def test_a_split_stays_where_it_is_open() -> None:
    """The split stays there while the worker has room; then any worker can get it."""
    leases = DataWorkerLeases(again_s=1.0)
    leases.join("one", 1)
    leases.join("two", 1)
    for key in range(3):
        leases.add(key, near="two")
    assert leases.assign(0.0) == [("two", 0), ("two", 1), ("one", 2)]


class AnyOrder(RuleBasedStateMachine):
    """Actions of data workers in any order."""

    def __init__(self) -> None:
        super().__init__()
        self.leases = DataWorkerLeases(again_s=5.0)
        self.now = 0.0
        self.added = 0
        self.answered: list[int] = []
        self.has: dict[int, list[int]] = {}  # what each data worker was asked, and has not said anything of
        self.workers = 0

    @rule()
    def add(self) -> None:
        self.leases.add(self.added)
        self.added += 1

    @rule(slots=st.integers(1, 3))
    def join(self, slots: int) -> None:
        self.leases.join(self.workers, slots)
        self.has[self.workers] = []
        self.workers += 1

    @rule(seconds=st.floats(0.0, 6.0))
    def assign(self, seconds: float) -> None:
        self.now += seconds
        for worker, key in self.leases.assign(self.now):
            assert isinstance(worker, int)
            assert key not in self.has[worker]
            self.has[worker].append(key)

    @precondition(lambda self: self.has)
    @rule(data=st.data())
    def leave(self, data: st.DataObject) -> None:
        worker = data.draw(st.sampled_from(sorted(self.has)))
        del self.has[worker]
        self.leases.leave(worker)

    @precondition(lambda self: any(self.has.values()))
    @rule(data=st.data(), crashes=st.booleans())
    def answer(self, data: st.DataObject, crashes: bool) -> None:
        worker = data.draw(st.sampled_from([worker for worker, keys in sorted(self.has.items()) if keys]))
        key = self.has[worker].pop(0)
        if crashes:
            assert (self.leases.crashed(worker, key) > 0) == (key not in self.answered)
        elif self.leases.answered(key):
            self.answered.append(key)

    @invariant()
    def none_is_lost_and_none_comes_twice(self) -> None:
        assert len(set(self.answered)) == len(self.answered)
        assert self.leases.keys | set(self.answered) == set(range(self.added))

    def teardown(self) -> None:
        """One working data worker answers all requests, after each silent one has had each request once."""
        self.leases.join("last", 1)
        for _ in range((self.added + 1) * (self.workers + 1) + 1):
            self.now += 100.0
            for worker, key in self.leases.assign(self.now):
                if worker == "last":
                    self.leases.answered(key)
        assert self.leases.keys == frozenset()


TestAnyOrder = AnyOrder.TestCase
TestAnyOrder.settings = settings(max_examples=60, stateful_step_count=40)
