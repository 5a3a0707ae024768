"""Jobs that compete for places that are found pod by pod: one is always completed, and waiting is not counted."""

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from support.crowd import Ask, Crowd, Tenant
from support.jobs import Json, job
from support.planworld import START

from ringtrain_operator.cluster.own_queue import WaitingJobs
from ringtrain_operator.cluster.queue import JobKey
from ringtrain_operator.placement.own_queue import PlacementContention

FITS = st.builds(
    Ask,
    workers=st.integers(1, 4),
    devices=st.integers(1, 2),
    run_s=st.integers(5, 40),
    after_s=st.integers(0, 30),
    timeout_s=st.sampled_from([30, 300]),
)
NEVER_FITS = st.builds(
    Ask, workers=st.integers(5, 6), devices=st.just(2), after_s=st.integers(0, 30), timeout_s=st.just(30)
)
# Grace and jitter, the end of pods, and a look each at those who give way and those whose turn it is.
BROKEN_WITHIN_S = 20
# Grace and jitter twice: what never fits gives way first, then whoever is not first in the line.
TWICE_BROKEN_WITHIN_S = 30


@pytest.mark.slow
def test_four_jobs_that_hold_parts_of_what_they_need_run_one_after_the_other() -> None:
    """Each fits alone and none beside another: the first runs within seconds, all end, and nothing is counted."""
    for seed in range(5):
        crowd = Crowd([Ask() for _ in range(4)], seed=seed)
        while not crowd.running:
            crowd.tick()
            assert crowd.seconds < BROKEN_WITHIN_S
        while crowd.unfinished:
            crowd.tick()
            assert crowd.seconds < 4 * 20 + 4 * BROKEN_WITHIN_S
        for tenant in crowd.tenants:
            assert (tenant.status.restarts, tenant.status.disruptions) == (0, 0)
            assert "Restarting" not in tenant.reasons()
            assert tenant.status.condition("Restarting") is None


def test_a_job_that_waits_is_queued_and_has_no_pods() -> None:
    """Its state, its condition and an event say so; what it waits for is no failure of its."""
    crowd = Crowd([Ask(), Ask(), Ask()], seed=1)
    while not (queued := [t for t in crowd.tenants if t.status.state == "Queued"]):
        crowd.tick()
        assert crowd.seconds < BROKEN_WITHIN_S
    waiting = queued[0]
    crowd.tick()
    assert waiting.pods == {}
    running = waiting.status.condition("Running")
    assert (running.status, running.reason) == ("False", "Queued")
    ahead = "directly ahead of it in the queue: default/job-"
    assert running.message.startswith(f"it waits without pods for nvidia.com/gpu; {ahead}")
    assert "; the last answer of the scheduler: " in running.message
    assert "Insufficient nvidia.com/gpu" in running.message
    assert waiting.status.message == running.message
    assert waiting.status.reason == "Queued"
    assert "Queued" in waiting.reasons()


def test_a_gang_larger_than_the_cluster_holds_nothing_and_is_in_nobodys_way() -> None:
    """Six workers of two devices where eight devices are: it says so, and the younger one runs."""
    crowd = Crowd([Ask(workers=6), Ask(after_s=5)], seed=3)
    while not crowd.running:
        crowd.tick()
        assert crowd.seconds < 40
    large, small = crowd.tenants
    assert crowd.running == [small]
    assert large.pods == {}
    running = large.status.condition("Running")
    assert running.reason == "TooLarge"
    assert "6 workers with 2 nvidia.com/gpu each need more than all nodes" in running.message
    large.devices_of_nodes = crowd.nodes = (4, 4, 4)
    while large.status.state != "Running":
        crowd.tick()
        assert crowd.seconds < 200


def test_a_gang_larger_than_the_cluster_waits_for_nodes_while_it_is_alone() -> None:
    """An autoscaler adds nodes for pods that are there: they are for timeoutSeconds."""
    crowd = Crowd([Ask(workers=6, timeout_s=60)])
    for _ in range(3):
        crowd.tick()
    running = crowd.tenants[0].status.condition("Running")
    assert running.reason == "TooLarge"  # at once: a person who mistyped a number need not wait
    assert "its pods wait for at most 60 s (scheduling.timeoutSeconds) for more nodes" in running.message
    for _ in range(52):
        crowd.tick()
    assert crowd.tenants[0].holds == 8
    for _ in range(15):
        crowd.tick()
    assert crowd.tenants[0].pods == {}


def test_who_gets_no_further_in_his_time_lets_the_next_try() -> None:
    """The first in line waits for what a job holds that runs for long; after timeoutSeconds a smaller one runs."""
    long = Ask(workers=1, devices=2, run_s=10_000)
    crowd = Crowd([long, Ask(after_s=5, timeout_s=60), Ask(workers=3, devices=2, after_s=10, run_s=20)], seed=2)
    while not crowd.tenants[2].status.finished:
        crowd.tick()
        assert crowd.seconds < 200


def test_a_job_that_is_suspended_leaves_the_line() -> None:
    """With pods or without: nobody waits for it any more, and it begins anew when it is resumed."""
    crowd = Crowd([Ask(run_s=1000), Ask(run_s=1000), Ask(run_s=1000)], seed=4)
    for _ in range(60):
        crowd.tick()
    waiting = [tenant for tenant in crowd.tenants if tenant not in crowd.running]
    assert len(crowd.waiting_jobs.contention().order) == 2
    for tenant in waiting:
        tenant.change(runPolicy={"suspend": True}, unseen=True)
        tenant.look_at = crowd.seconds
    for _ in range(5):
        crowd.tick()
    assert [tenant.status.state for tenant in waiting] == ["Suspended", "Suspended"]
    assert len(crowd.waiting_jobs.contention().order) == 0
    for tenant in waiting:
        assert (tenant.status.ledger.queued_since, tenant.holds) == (None, 0)


@pytest.mark.parametrize(
    "never",
    [
        pytest.param(Ask(workers=1, devices=0, nowhere=True), id="a-label-that-no-node-has-and-no-device"),
        pytest.param(Ask(nowhere=True), id="a-label-that-no-node-has"),
        pytest.param(Ask(launcher_nowhere=True), id="its-launcher-alone-has-no-node"),
    ],
)
def test_jobs_that_no_other_jobs_end_would_help_are_in_nobodys_way(never: Ask) -> None:
    """Three of them are the oldest; the gangs behind them run one after the other, seconds apart."""
    crowd = Crowd([never, never, never, *(Ask(after_s=1) for _ in range(3))], seed=5)
    until(crowd, crowd.tenants[3:], idle_s=BROKEN_WITHIN_S)
    for tenant in crowd.tenants:
        assert (tenant.status.restarts, tenant.status.disruptions) == (0, 0)
    crowd.tick()
    for tenant in crowd.tenants[:3] if not never.launcher_nowhere else []:
        assert tenant.status.attempt == 1
        waits = tenant.status.condition("Running")
        assert "didn't match Pod's node affinity/selector" in waits.message


def test_a_gang_behind_one_that_can_not_use_what_is_free_starts_within_seconds() -> None:
    """The oldest in line wants a whole node, and a device of each is taken for long. Of three gangs behind it each
    takes what is free: they run one after the other while it waits."""
    long = Ask(workers=2, devices=3, run_s=10_000)
    crowd = Crowd([long, Ask(workers=1, devices=4, after_s=3), *(Ask(2, 1, after_s=4) for _ in range(3))], seed=6)
    until(crowd, crowd.tenants[2:], idle_s=BROKEN_WITHIN_S)
    assert crowd.seconds < 150


@pytest.mark.slow
def test_a_gang_that_others_pass_is_placed_in_the_end() -> None:
    """It wants a whole node, and small jobs that run for 100 s come again and again: for a while none may pass it,
    and that while grows until it is longer than they run."""
    small = [Ask(workers=1, devices=1, run_s=100, after_s=13 * i) for i in range(200)]
    crowd = Crowd([Ask(workers=1, devices=4, after_s=60, timeout_s=30, run_s=50), *small], seed=7)
    large = crowd.tenants[0]
    while large.status.state != "Running":
        crowd.tick()
        assert crowd.seconds < 700
    passed = [t for t in crowd.tenants[1:] if t.ask.after_s > 120 and t.runs_until]
    assert passed, "nobody passed it: the devices that it could not use were idle"
    while not large.status.finished or any(t.status.state == "Queued" for t in crowd.tenants):
        crowd.tick()
        assert crowd.seconds < 4000


def until(crowd: Crowd, tenants: list[Tenant], idle_s: int) -> None:
    """Return when `tenants` have ended, of which one runs at any time but for `idle_s`."""
    idle = 0
    while not all(t.status.finished for t in tenants):
        crowd.tick()
        idle = 0 if any(t in tenants for t in crowd.running) else idle + 1
        assert idle < idle_s, (crowd.seconds, [(t.status.state, t.holds) for t in crowd.tenants])


# Not made smaller: that takes minutes here, and a set of six jobs can be read.
@pytest.mark.slow
@settings(
    max_examples=20,
    phases=[Phase.explicit, Phase.generate],
)
@given(st.lists(FITS, min_size=2, max_size=6), st.lists(NEVER_FITS, max_size=1), st.integers(0, 1000))
def test_no_set_of_jobs_waits_for_itself(asks: list[Ask], never: list[Ask], seed: int) -> None:
    """For any jobs in any order, some job runs soon whenever a job that fits waits, and all that fit end."""
    crowd, nobody_for_s = Crowd([*asks, *never], seed=seed), 0
    fitting = crowd.tenants[: len(asks)]
    while any(not t.status.finished for t in fitting):
        crowd.tick()
        waits = any(t in fitting for t in crowd.unfinished)
        nobody_for_s = nobody_for_s + 1 if waits and not crowd.running else 0
        assert nobody_for_s < TWICE_BROKEN_WITHIN_S, crowd.seconds
        assert crowd.seconds < 1000
    for tenant in fitting:
        assert (tenant.status.restarts, tenant.status.disruptions) == (0, 0)
        assert not any(back.others_first == "" for back in tenant.gave_back), "gave back though nobody waited"


@pytest.mark.parametrize(
    "change",
    [
        pytest.param({"metadata": {"deletionTimestamp": "2026-01-01T00:01:00Z"}}, id="being-deleted"),
        pytest.param({"spec": {"managedBy": "kueue.x-k8s.io/multikueue"}}, id="on-another-cluster"),
    ],
)
def test_a_job_that_never_has_its_turn_here_keeps_nobody_waiting(change: Json) -> None:
    """A finalizer may keep it for ever; and the status of a job that runs elsewhere is a copy of the one there."""
    line, first = WaitingJobs(lambda: START), JobKey("default", "digits")
    waiting = job()
    waiting["metadata"]["uid"] = "0a1b2c3d"
    waiting["status"] = {"ledger": {"lineSince": "2026-01-01T00:00:00Z"}}
    line.update(first, waiting)
    assert [one.job for one in line.contention().order] == [str(first)]
    line.update(first, {**waiting, **{part: {**waiting[part], **more} for part, more in change.items()}})
    assert line.contention() == PlacementContention()
