"""Worlds that change while their processes live, with a small agent in the test's process."""

import gc
import logging
import logging.handlers
import os
import signal
import threading
import weakref
from typing import Any

import numpy as np
import psutil
import pytest
from support.elastic_agent import await_go_on, pause, started_slots
from support.elastic_steps import add_up_steps
from support.ranks import tell

import ringtrain as rt
from ringtrain import elastic
from ringtrain.errors import ConfigurationError
from ringtrain.optim import SGD, HostOptimizer, reform

TRANSPORTS = pytest.mark.parametrize("transport", ["grpc", "shm"])


@TRANSPORTS
def test_a_killed_rank_is_replaced_and_no_step_counts_twice(transport: str) -> None:
    """Survivors keep their processes; weights are those of a run that nothing happened to."""
    with started_slots(add_up_steps, 3, 6, (4,), env={"RINGTRAIN_TRANSPORT": transport}) as slots:
        assert slots.formed() == [4] * 3
        pids = {slot: slots.living[slot].pid for slot in (0, 2)}
        slots.replace(1)
        slots.go_on(0, 2)
        said = {"formation": 1, "committed": 3, "lost_steps": 1, "unshared": True, "adopted": 1}
        assert slots.await_ready(0) == {"type": "ready", **said}
        assert slots.formed() == [4, 4, 4]  # the step that was lost, again
        slots.go_on(0, 1, 2)
        results = slots.results()
    for slot, result in results.items():
        assert result["weights"] == [6.0]
        assert result["sizes"] == [3, 3]
        assert result["committed"] == 6
        assert result["pid"] == pids.get(slot, result["pid"])


@TRANSPORTS
def test_a_world_shrinks_and_grows(transport: str) -> None:
    """Newcomers and leavers cost no step: the interrupt comes at a commit, on all ranks at the same one."""
    with started_slots(add_up_steps, 2, 9, (2, 4, 6), env={"RINGTRAIN_TRANSPORT": transport}) as slots:
        assert slots.formed() == [2, 2]
        slots.start(2)
        slots.tell_change(slots=[1])  # one has heard of it: all of them leave
        slots.go_on(0, 1)
        assert slots.await_ready(0)["lost_steps"] == 0
        assert slots.formed() == [4, 4, 4]
        slots.tell_change()
        slots.go_on(0, 1, 2)
        outcome = slots.leave(1)
        assert (outcome.error, outcome.exit_code) == ("SystemExit: 0", 0)
        assert slots.formed() == [6, 6]
        slots.go_on(0, 2)
        results = slots.results()
    for result in results.values():
        assert result["weights"] == [9.0]
        assert result["sizes"] == [2, 3, 2]


def _lives_through(formations: int) -> list[Any]:
    rt.init()
    pair = rt.add_process_set([0, 1])
    state = elastic.State(counts=[])

    @elastic.run
    def train(state: Any) -> None:
        rt.allreduce_async(np.ones(10_000)).synchronize()
        rt.allreduce(np.ones(10), process_set=pair)
        state.counts = [*state.counts, _held()]
        tell(len(state.counts))
        while len(state.counts) < formations:
            state.commit()

    train(state)
    return state.counts


def _held() -> dict[str, int]:
    """Return this process's counts of file descriptors, threads and shared mappings. A leak increases one."""
    process = psutil.Process()
    return {
        "fds": process.num_fds(),
        "threads": len([t for t in threading.enumerate() if t.name.startswith("ringtrain")]),
        "shared": len([m for m in process.memory_maps() if "ringtrain" in m.path or "/dev/shm" in m.path]),
    }


@pytest.mark.parametrize("transport", ["grpc", "auto"])
def test_nothing_leaks_over_sixty_formations(transport: str) -> None:
    """File descriptors, threads and shared memory are the same in the 60th formation as in the tenth."""
    rounds = 60
    with started_slots(_lives_through, 2, rounds, env={"RINGTRAIN_TRANSPORT": transport}) as slots:
        for round_ in range(rounds):
            assert slots.formed() == [round_ + 1] * 2
            if round_ < rounds - 1:
                slots.tell_change()
        for slot, counts in slots.results().items():
            early, late = counts[10], counts[-1]
            assert late["threads"] <= early["threads"], (slot, early, late)
            assert late["shared"] <= early["shared"], (slot, early, late)
            assert late["fds"] <= early["fds"] + 3, (slot, early, late)


def _joins_and_waits() -> str:
    rt.init()
    state = elastic.State(step=0)

    @elastic.run
    def train(state: Any) -> list[int]:
        tell(rt.size())
        while state.step < 3:
            rt.barrier()
            state.step += 1
            state.commit()
        return [rt.size(), state.step]

    return str(train(state))


def test_a_newcomer_that_dies_while_joining_costs_one_more_formation() -> None:
    """The others wait in the handshake for it; the agent's word ends that at once, not after the timeout."""
    with started_slots(_joins_and_waits, 2, env={"RINGTRAIN_TIMEOUT": "600"}) as slots:
        slots.start(2)
        for slot in range(3):
            slots.await_ready(slot)
        os.kill(slots.living[2].pid, signal.SIGSTOP)  # it never meets the others
        slots.form()
        slots.kill(2)
        assert slots.formed() == [2, 2]
        assert slots.results() == {0: "[2, 3]", 1: "[2, 3]"}


class _EndsAsItGives(HostOptimizer):
    """Its process ends in the moment in which a newcomer has asked for its state, and all else is given."""

    def prepare(self, group: Any, former: Any) -> None:
        if self.updates:
            pytest.MonkeyPatch().setattr(reform, "make_cut", lambda *_: os.kill(os.getpid(), signal.SIGKILL))
        super().prepare(group, former)


def _makes_four_updates() -> list[Any]:
    rt.init()
    optimizer = _EndsAsItGives({"w": np.zeros(3)}, SGD(1.0), elastic=True)
    state = elastic.State(optimizer=optimizer, shard=elastic.shard(8, elastic.FixedGlobal(2)), step=0)

    @elastic.run
    def train(state: Any) -> None:
        for batch in state.shard:
            optimizer.submit("w", -np.ones(3), batch.weight)
            optimizer.step()
            state.step += 1
            pause([state.step, optimizer.updates])
            state.commit()

    train(state)
    return [state.step, optimizer.updates, optimizer.weights["w"].tolist()]


def test_a_newcomer_keeps_nothing_of_a_state_that_it_got_in_part() -> None:
    """The only rank that had the state ends as it gives it away: the newcomer has its step and not its optimizer's
    weights, and begins as it would have alone."""
    with started_slots(_makes_four_updates, 1, env={"RINGTRAIN_TRANSPORT": "grpc"}) as slots:
        slots.form()
        assert slots.message(0) == [1, 1]
        slots.start(1)
        slots.await_ready(1)
        slots.tell_change()
        slots.form(0)
        assert slots.ended(0).exit_code == -signal.SIGKILL
        slots.tell_change(urgent=True)
        slots.form()
        for step in range(1, 5):
            assert slots.message(1) == [step, step]
            slots.go_on(1)
        assert slots.results() == {1: [4, 4, [4.0, 4.0, 4.0]]}


def _adds_up_and_listens(steps: int) -> list[Any]:
    logged = logging.handlers.BufferingHandler(1000)
    logging.getLogger("ringtrain").addHandler(logged)
    counted = add_up_steps(steps, (3, 5))
    return [counted["weights"], counted["committed"], [one.getMessage() for one in logged.buffer]]


def test_a_rank_that_goes_on_from_an_older_commit_says_so() -> None:
    """It was cut off from a world that has committed since, and that is lost: its log says what with it."""
    with started_slots(_adds_up_and_listens, 2, 6) as slots:
        slots.form()
        assert [slots.message(0), slots.message(1)] == [3, 3]
        slots.tell_change(urgent=True)
        slots.go_on(0, 1)
        assert slots.await_ready(1)["committed"] == 2
        slots.form(slots=[0])
        assert slots.message(0) == 3
        slots.go_on(0)
        assert slots.message(0) == 5
        slots.kill(0)
        slots.committed = 4
        assert slots.form() == 3
        for step in (3, 5):
            assert slots.message(1) == step
            slots.go_on(1)
        weights, committed, logged = slots.results()[1]
    assert (weights, committed) == ([6.0], 6)
    assert [line for line in logged if line.startswith("commit")] == [
        "commit 4 is lost; training continues from commit 2"
    ]


def test_who_says_that_it_has_the_state() -> None:
    """A newcomer when all of it has come, and not before; survivors always."""
    with started_slots(add_up_steps, 1, 3, (1, 2)) as slots:
        slots.form()
        assert slots.message(0) == 1
        slots.start(1)
        assert slots.await_ready(1)["adopted"] == 0
        slots.tell_change()
        slots.go_on(0)
        assert slots.await_ready(0)["adopted"] == 1
        slots.form()
        assert [slots.message(slot) for slot in (0, 1)] == [2, 2]
        slots.kill(0)
        slots.go_on(1)
        assert slots.await_ready(1) | {"lost_steps": 0} == {
            "type": "ready",
            "formation": 2,
            "committed": 1,
            "lost_steps": 0,
            "unshared": True,
            "adopted": 2,
        }
        slots.form()
        assert slots.message(1) == 2
        slots.go_on(1)
        assert slots.results()[1]["committed"] == 3


def test_a_stopped_rank_that_wakes_up_is_refused() -> None:
    """After its fence a member of an old formation that goes on reaches nobody: the others end with their sums."""
    with started_slots(add_up_steps, 3, 4, (2,), env={"RINGTRAIN_TRANSPORT": "grpc"}) as slots:
        assert slots.formed() == [2] * 3
        stopped = slots.living[2]
        os.kill(stopped.pid, signal.SIGSTOP)
        slots.tell_change(urgent=True, slots=[0, 1])
        slots.go_on(0, 1, 2)
        slots.form(slots=[0, 1])
        assert [slots.message(slot) for slot in (0, 1)] == [2, 2]
        del slots.living[2]
        os.kill(stopped.pid, signal.SIGCONT)
        slots.go_on(0, 1)
        results = slots.results()
        stopped.stop.close()
    assert [result["weights"] for result in results.values()] == [[4.0], [4.0]]


def _add_sets() -> list[Any]:
    rt.init()
    pair, three = rt.ProcessSet([0, 1]), rt.ProcessSet([0, 1, 2])
    rt.add_process_set(pair)
    if os.environ["RINGTRAIN_FORMATION"] == "1":
        rt.add_process_set(three)
    state = elastic.State(seen=[])

    @elastic.run
    def train(state: Any) -> None:
        total = rt.allreduce(np.ones(1), rt.Sum, process_set=pair).tolist() if pair.included() else []
        tell([total, pair.process_set_id, three.process_set_id])
        while not state.seen or state.seen[-1] < 3:
            state.seen.append(len(state.seen))
            rt.barrier()
            await_go_on()
            state.commit()

    train(state)
    return [pair.size(), three.size()]


def test_process_sets_are_made_again() -> None:
    """A set keeps its rank numbers over formations, on newcomers as well; one that does not fit is not in use."""
    with started_slots(_add_sets, 3) as slots:
        slots.form()
        assert slots.message(0) == [[2.0], 1, 2]
        assert slots.message(2) == [[], 1, 2]
        slots.kill(1)
        slots.form(0, 2)
        assert slots.message(0) == [[2.0], 1, None]
        assert slots.message(2) == [[2.0], 1, None]
        slots.start(1)
        slots.tell_change()
        slots.form(0, 2)
        assert slots.message(1)[:2] == [[], 1]
        for slot in (0, 2):
            assert slots.message(slot) == [[2.0], 1, None]


def _mixed_states() -> None:
    rt.init()
    values = {"step": 0} if rt.rank() == 0 else {"epoch": 0}
    elastic.run(lambda state: None)(elastic.State(**values))


def test_different_states_are_a_mismatch() -> None:
    """A newcomer with another state is told so, as are the others, with both."""
    with started_slots(_mixed_states, 2) as slots:
        slots.form()
        for slot in range(2):
            error = slots.ended(slot).error
            assert error.startswith("MismatchError: the elastic state has {'step': 'value'} on rank 0 and")


def _counts_updates(lost_at: str, steps: int) -> list[float]:
    """Weights count the updates. `lost_at`: where ranks of formation 1 tell that they are there, and wait.

    "sync": before their first state is agreed on, rank 2. "commit": with an update done, all but rank 0, which
    tells that it has saved it. There the last rank of formation 2 dies as optimizers are prepared.
    """
    rt.init()
    first = os.environ["RINGTRAIN_FORMATION"] == "1"
    optimizer = HostOptimizer({"w": np.full(40, float(rt.rank()))}, SGD(1.0), elastic=True)
    state = _Telling(optimizer=optimizer, dies=_DiesInPrepare(lost_at == "commit"), plain=rt.rank(), step=0)
    if lost_at == "sync" and first and rt.rank() == 2:
        pause("made")

    @elastic.run
    def train(state: Any) -> None:
        while state.step < steps:
            state.step += 1
            optimizer.submit("w", np.full(40, -1.0))
            optimizer.step()
            if lost_at == "commit" and state.step == 2 and os.environ["RINGTRAIN_FORMATION"] == "1":
                if rt.rank():
                    pause("updated")
                    rt.barrier()
                state.tells = True
            state.commit()

    train(state)
    return [*sorted(set(optimizer.weights["w"].tolist())), state.plain]


class _Telling(elastic.State):
    """Tells when it has saved, once `tells` is set."""

    tells = False

    def save(self) -> None:
        super().save()
        if self.tells:
            self.tells = False
            tell("saved")


class _DiesInPrepare:
    """In the place of an optimizer, which the last rank of formation 2 does not survive, if `is_armed`."""

    updates = 0
    accumulating = False

    def __init__(self, is_armed: bool) -> None:
        self._is_armed = is_armed

    def wait_for(self) -> None: ...

    def commit(self) -> None: ...

    def rollback(self, to: int) -> int:
        return to

    def prepare(self, group: Any, former: Any) -> None:
        if self._is_armed and os.environ["RINGTRAIN_FORMATION"] == "2" and group.size == group.rank + 1:
            os.kill(os.getpid(), signal.SIGKILL)

    def adopt(self) -> None: ...

    def discard(self) -> None: ...

    def hand_over(self, leaving: Any) -> None: ...


@pytest.mark.parametrize("is_replaced", [True, False], ids=["replaced", "fewer"])
def test_a_rank_that_is_lost_before_the_first_state_was_agreed_on(is_replaced: bool) -> None:
    """Updates of the first world count in the next one; all ranks continue from the values of one rank."""
    with started_slots(_counts_updates, 3, "sync", 3, env={"RINGTRAIN_STALL_TIMEOUT": "20"}) as slots:
        slots.form()
        assert slots.message(2) == "made"
        slots.kill(2)
        if is_replaced:
            slots.start(2)
        slots.form()
        assert slots.results() == {slot: [3.0, 0] for slot in range(3 if is_replaced else 2)}


def test_a_loss_while_a_rank_goes_a_commit_back() -> None:
    """A rank was a commit ahead, and another one is lost while state is rebuilt: both go on from the same step."""
    with started_slots(_counts_updates, 4, "commit", 4) as slots:
        slots.form()
        assert slots.message(0) == "saved"
        assert [slots.message(slot) for slot in (1, 2, 3)] == ["updated"] * 3
        slots.kill(1)
        slots.form(2, 3)
        assert slots.ended(3).exit_code == -signal.SIGKILL
        slots.tell_change(urgent=True)
        slots.form()
        assert slots.results() == {0: [4.0, 0], 2: [4.0, 0]}


def _adds_in_its_function(is_kept: bool) -> int:
    rt.init()
    kept = rt.ProcessSet([0, 1])
    state = elastic.State(step=0)

    @elastic.run
    def train(state: Any) -> None:
        pair = rt.add_process_set(kept if is_kept else [0, 1])
        with pytest.raises(ConfigurationError, match="exists already"):
            rt.add_process_set([0, 1])
        if pair.included():
            assert rt.allreduce(np.ones(1), rt.Sum, process_set=pair)[0] == 2
        pause(pair.process_set_id)
        rt.barrier()
        state.step += 1
        state.commit()

    train(state)
    return state.step


@pytest.mark.parametrize("is_kept", [True, False], ids=["the-same-object", "another-object"])
def test_a_function_adds_its_process_set_whenever_it_is_entered(is_kept: bool) -> None:
    """Survivors enter it again, and their sets are there already; newcomers enter it for the first time."""
    with started_slots(_adds_in_its_function, 3, is_kept) as slots:
        assert slots.formed() == [1, 1, 1]
        slots.replace(2)
        assert slots.formed(0, 1) == [1, 1, 1]
        slots.go_on(0, 1, 2)
        assert slots.results() == {0: 1, 1: 1, 2: 1}


class _Batch:
    """Something that a function holds."""


def _holds_a_batch() -> None:
    rt.init()
    state = elastic.State(step=0)
    before: list[weakref.ref[_Batch]] = []

    @elastic.run
    def train(state: Any) -> None:
        gc.collect()
        tell([one() is None for one in before])
        batch = _Batch()
        before.append(weakref.ref(batch))
        await_go_on()
        rt.barrier()
        state.commit()

    train(state)


def test_what_a_function_held_is_gone_when_it_is_entered_again() -> None:
    """Else each loss would cost the memory of a model that the function makes, as long as the next world lives."""
    with started_slots(_holds_a_batch, 3) as slots:
        assert slots.formed() == [[], [], []]
        slots.kill(2)
        assert slots.formed(0, 1) == [[True], [True]]
        slots.go_on(0, 1)
        slots.results()
