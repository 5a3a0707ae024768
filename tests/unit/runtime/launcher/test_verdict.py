"""Naming the first cause, as a table of gangs."""

from dataclasses import dataclass, replace

import pytest

from ringtrain.errors import GOES_ON
from ringtrain_job.control.model import Outcome, RankPhase, RankState, Reason, Verdict
from ringtrain_job.launcher.verdict import (
    GangView,
    RankExit,
    VerdictPatience,
    WorkerView,
    decide_verdict,
    lost_peer,
    with_warning,
)

PATIENCE = VerdictPatience(lost_after_s=15, settle_s=2)
RUNNING, SUCCEEDED, FAILED, STOPPED = (
    RankPhase.RUNNING,
    RankPhase.SUCCEEDED,
    RankPhase.FAILED,
    RankPhase.STOPPED,
)


@dataclass(frozen=True)
class Ended:
    """A rank that ended `at`, for writing tables."""

    rank: int
    at: float
    code: int = 1
    signal: str = ""
    says: str = "ValueError: bad sample"
    phase: RankPhase = FAILED
    order: int = 1


def lost(rank: int, at: float, peer: int, **more: int) -> Ended:
    """A rank that raised PeerLost for `peer`."""
    return Ended(rank, at, says=f"ringtrain.errors.PeerLost: rank {rank}: rank {peer} closed its connection", **more)


def gang(*ended: Ended, size: int = 4, silent: dict[int, float] | None = None) -> GangView:
    """Two workers with `size` ranks, all running but those that `ended`; `silent`: worker → since when."""
    states = [RankState(rank, RUNNING) for rank in range(size)]
    exits = []
    for e in ended:
        states[e.rank] = RankState(e.rank, e.phase, e.code, e.signal, e.order, log_tail=("Traceback …", e.says))
        exits.append(RankExit(states[e.rank], e.at))
    workers = [
        WorkerView(index, f"job-worker-{index}", f"node-{index}", (silent or {}).get(index)) for index in range(2)
    ]
    return GangView(size // 2, workers, states, exits)


KILLED = Ended(3, 10.2, 137, "SIGKILL", says="step 7")


@pytest.mark.parametrize(
    ("view", "rank", "code", "words"),
    [
        pytest.param(gang(KILLED), 3, 137, "was killed by SIGKILL", id="killed-alone"),
        pytest.param(gang(lost(0, 10.0, 3), lost(1, 10.1, 3), KILLED), 3, 137, "SIGKILL", id="killed-seen-late"),
        pytest.param(
            gang(Ended(0, 10.0, says="RuntimeError: Connection closed by peer"), KILLED), 3, 137, "SIGKILL",
            id="killed-beside-another-library's-complaint",
        ),
        pytest.param(
            gang(Ended(0, 10.1, 134, "SIGABRT", says="terminate called"), Ended(2, 10.0)), 2, 1, "exited with 1",
            id="abort-is-a-consequence",
        ),
        pytest.param(
            gang(lost(0, 10.0, 2), Ended(2, 10.4), lost(3, 10.1, 2)), 2, 1, "exited with 1", id="slow-cause",
        ),
        pytest.param(gang(Ended(1, 10.3, 7), Ended(2, 10.1, 9)), 2, 9, "exited with 9", id="earlier-of-two"),
        pytest.param(
            gang(Ended(1, 10.001, 7, order=2), Ended(0, 10.004, 9, order=1)), 0, 9, "exited with 9",
            id="same-moment-by-order",
        ),
        pytest.param(
            gang(lost(0, 10.0, 2), lost(1, 10.0, 2), lost(3, 10.0, 2)), 2, 1, "stopped answering", id="hangs",
        ),
        pytest.param(
            gang(lost(0, 10.0, 2), lost(1, 10.0, 2), Ended(2, 9.0, 0, phase=SUCCEEDED), lost(3, 10.0, 2)), 0, 1,
            "rank 2 had finished while rank(s) 0, 1, 3 still needed it; give every rank", id="ends-early",
        ),
        pytest.param(
            gang(lost(0, 10.0, 3), lost(1, 10.1, 2), lost(3, 10.1, 2)), 2, 1, "lost by rank(s) 0, 1, 3",
            id="hangs-and-one-names-a-witness",
        ),
        pytest.param(
            gang(lost(0, 10.0, 3), Ended(1, 10.1, 137, "SIGKILL", says="PeerLost: rank 3 was lost")), 3, 1,
            "stopped answering", id="hangs-and-mpirun-kills-a-witness",
        ),
        pytest.param(
            gang(lost(0, 10.0, 1), lost(1, 10.2, 0)), 0, 1, "exited with 1", id="only-each-other",
        ),
        pytest.param(gang(lost(0, 10.0, 9)), 0, 1, "exited with 1", id="names-a-rank-that-does-not-exist"),
    ],
)  # fmt: skip
def test_the_first_cause(view: GangView, rank: int, code: int, words: str) -> None:
    """The rank that began it, with its own exit code, pod and log."""
    verdict = decide_verdict(view, 13.0, PATIENCE)
    assert (verdict.outcome, verdict.exit_code) == (Outcome.FAILED, code)
    assert (verdict.failure.rank, verdict.failure.reason) == (rank, Reason.RANK_FAILED)
    assert (verdict.failure.pod, verdict.failure.node) == (f"job-worker-{rank // 2}", f"node-{rank // 2}")
    assert words in verdict.failure.message
    accused = " by rank(s) " in verdict.failure.message
    assert bool(verdict.failure.log_tail) is not accused  # whoever hangs has not sent the end of its log


@pytest.mark.parametrize(
    ("view", "now"),
    [
        pytest.param(gang(), 10.0, id="nothing-happened"),
        pytest.param(gang(lost(0, 10.0, 3)), 11.9, id="lost-its-peer"),
        pytest.param(gang(Ended(0, 10.0)), 10.9, id="may-be-overtaken"),
        pytest.param(gang(Ended(0, 10.0, 0, phase=SUCCEEDED)), 99.0, id="one-finished"),
        pytest.param(gang(silent={1: 10.0}), 24.9, id="silent-for-a-while"),
    ],
)
def test_open(view: GangView, now: float) -> None:
    """There is no verdict yet."""
    assert decide_verdict(view, now, PATIENCE) is None


@pytest.mark.parametrize(
    ("view", "now"),
    [
        pytest.param(gang(KILLED), 10.2, id="killed"),
        pytest.param(gang(*(Ended(rank, 10.0) for rank in range(4))), 10.0, id="all-ended"),
        pytest.param(gang(Ended(0, 10.0)), 11.0, id="may-no-longer-be-overtaken"),
        pytest.param(gang(lost(0, 10.0, 3)), 12.0, id="lost-its-peer"),
    ],
)
def test_decided(view: GangView, now: float) -> None:
    """The verdict comes as soon as no other cause can be reported."""
    assert decide_verdict(view, now, PATIENCE) is not None


@pytest.mark.parametrize(
    ("view", "now"),
    [
        pytest.param(gang(silent={1: 10.0}), 25.0, id="silent-too-long"),
        pytest.param(gang(lost(0, 10.1, 2), lost(1, 10.2, 3), silent={1: 10.0}), 12.2, id="its-ranks-are-missed"),
        pytest.param(
            gang(Ended(0, 10.1, says="RuntimeError: Connection closed by peer"), silent={1: 10.0}), 12.2,
            id="missed-by-another-library",
        ),
    ],
)  # fmt: skip
def test_a_lost_agent(view: GangView, now: float) -> None:
    """An agent that fell silent is the cause, not those whose peers it took along."""
    verdict = decide_verdict(view, now, PATIENCE)
    assert (verdict.failure.reason, verdict.exit_code) == (Reason.AGENT_LOST, 75)
    assert (verdict.failure.rank, verdict.failure.exit_code) == (2, None)
    assert verdict.failure.message == (
        "worker 1 (pod job-worker-1 on node node-1) no longer answers; its rank(s) 2, 3 are lost"
    )


def leaving(view: GangView, silent_since: float | None = None) -> GangView:
    """Return `view` with a stop request of the second worker at 10.0."""
    return replace(view, workers=[view.workers[0], WorkerView(1, "job-worker-1", "", silent_since, "SIGTERM", 10.0)])


@pytest.mark.parametrize(
    "view",
    [
        pytest.param(gang(Ended(2, 10.0, 143, "SIGTERM", phase=STOPPED)), id="its-ranks-stop"),
        pytest.param(gang(*(Ended(rank, 10.0, 143, "SIGTERM") for rank in range(4))), id="all-ranks-end"),
        pytest.param(gang(*(Ended(rank, 10.1, 0, phase=SUCCEEDED) for rank in range(4))), id="all-ranks-save"),
        pytest.param(gang(lost(0, 10.1, 2), lost(1, 10.1, 2)), id="the-others-lose-a-peer"),
    ],
)
@pytest.mark.parametrize("silent_since", [None, 10.2])
def test_a_leaving_agent(view: GangView, silent_since: float | None) -> None:
    """An agent with a stop request decides the verdict once the launcher would have had its own."""
    view = leaving(view, silent_since)
    assert decide_verdict(view, 10.9, PATIENCE) is None
    verdict = decide_verdict(view, 11.0, PATIENCE)
    assert (verdict.exit_code, verdict.failure.signal, verdict.failure.pod) == (143, "SIGTERM", "job-worker-1")


def test_all_agents_leaving() -> None:
    """A suspended job's workers are stopped one after the other, before its launcher: the attempt was stopped."""
    ended = [Ended(rank, 10.1, 143, "SIGTERM", phase=STOPPED) for rank in range(4)]
    view = leaving(gang(*ended))
    first = replace(view.workers[0], leaving="SIGTERM", leaving_since=10.8)
    view = replace(view, workers=[first, view.workers[1]])
    assert decide_verdict(view, 11.7, PATIENCE) is None
    assert decide_verdict(view, 11.8, PATIENCE) == Verdict(Outcome.STOPPED, 143, 0)


def test_other_causes_do_not_wait_for_a_stop_request() -> None:
    """A killed rank, an agent that was lost earlier, or ranks that finished before, decide the verdict at once."""
    ended = [Ended(rank, 9.9, 0, phase=SUCCEEDED) for rank in range(4)]
    assert decide_verdict(leaving(gang(*ended)), 10.0, PATIENCE).outcome is Outcome.SUCCEEDED
    assert decide_verdict(leaving(gang(KILLED)), 10.2, PATIENCE).failure.rank == 3
    view = gang(silent={0: -5.0})
    assert decide_verdict(leaving(view), 10.0, PATIENCE).failure.pod == "job-worker-0"


def test_success_is_every_rank() -> None:
    """All ranks of the world exited 0: attested."""
    ended = [Ended(rank, 10.0, 0, phase=SUCCEEDED) for rank in range(4)]
    verdict = decide_verdict(gang(*ended), 10.0, PATIENCE)
    assert (verdict.outcome, verdict.exit_code, verdict.ranks_succeeded) == (Outcome.SUCCEEDED, 0, 4)


@pytest.mark.parametrize(("size", "joined", "warns"), [(4, 0, True), (2, 0, True), (4, 1, False), (1, 0, False)])
def test_ranks_that_ran_each_by_itself(size: int, joined: int, warns: bool) -> None:
    """If several ranks succeed and none had a connection to another one, a warning says so."""
    states = [RankState(rank, SUCCEEDED, 0, joined=rank < joined) for rank in range(size)]
    view = GangView(size, [WorkerView(0, "job-worker-0")], states, [RankExit(state, 10.0) for state in states])
    verdict = with_warning(view, decide_verdict(view, 10.0, PATIENCE))
    assert verdict.outcome is Outcome.SUCCEEDED
    assert verdict.warning.startswith(f"none of the {size} ranks connected to another one") is warns


def test_an_incomplete_world_is_a_failure() -> None:
    """Nobody failed, all ended, and yet not all ranks exited 0."""
    ended = [Ended(rank, 10.0, 0, phase=SUCCEEDED) for rank in range(3)]
    verdict = decide_verdict(gang(*ended, Ended(3, 10.0, 143, "SIGTERM", phase=STOPPED)), 10.0, PATIENCE)
    assert (verdict.failure.reason, verdict.ranks_succeeded) == (Reason.WORLD_INCOMPLETE, 3)
    assert verdict.failure.message == "only 3 of 4 ranks finished; rank(s) 3 did not"


@pytest.mark.parametrize(
    ("tail", "peer"),
    [
        pytest.param(("ringtrain.errors.PeerLost: rank 2 closed",), 2, id="plain"),
        pytest.param(("PeerLost: rank 0: lost rank 3 in allreduce 7",), 3, id="own-rank-first"),
        pytest.param(("PeerLost: rank 2", "ringtrain.errors.PeerLost: rank 1"), 1, id="the-last-one-counts"),
        pytest.param(("ValueError: rank 2 is odd",), None, id="another-error"),
        pytest.param(
            (
                "Local rendezvous is aborting with status: UNKNOWN: PeerLost: rank 2 closed its connection",
                f"formation 1: UNKNOWN: PeerLost: rank 2 closed its connection{GOES_ON}7",
                "ValueError: bad sample",
            ),
            None,
            id="went-on-after-it",
        ),
        pytest.param((), None, id="nothing"),
    ],
)
def test_who_is_called_lost(tail: tuple[str, ...], peer: int | None) -> None:
    """The rank in the last PeerLost of a log that is not the rank's own."""
    assert lost_peer(tail, 0) == peer
