"""The launcher of an elastic job: its settings, which agents may register, and its journal."""

import json
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.small_job import Clock, environment

from ringtrain.errors import ConfigurationError
from ringtrain_job.control.model import AgentState, Form, Prepare, RankPhase, RankState, Registration
from ringtrain_job.launcher.config import LauncherConfig
from ringtrain_job.launcher.elastic import ElasticBackend
from ringtrain_job.launcher.gang import Gang
from ringtrain_job.launcher.generation_state import GenerationPhase
from ringtrain_job.launcher.observers import Observers
from ringtrain_job.launcher.registry import Attempt, BackendContext
from ringtrain_job.launcher.ring import RingBackend
from ringtrain_job.launcher.sites import WorkerSites
from ringtrain_job.launcher.status import LauncherReports, StatusSnapshot
from ringtrain_job.launcher.verdict import GangView, RankExit, WorkerView, failures_by_time, first_cause
from ringtrain_job.logs.layout import AttemptFiles
from ringtrain_job.logs.store import LogStore

JOB = environment(3, 2, TIMEOUT="12", ELASTIC="Replace")


def worker(index: int, instance: str = "") -> Registration:
    ports = (7400, 7401)
    name, node = instance or f"first-{index}", f"n{index}"
    return Registration("uid-1", 1, index, 2, name, f"pod-{index}", node, f"h{index}", 0, ports, ports, 7390)


class Job:
    """A launcher without its ports: the test is its agents."""

    def __init__(self, directory: Path, sites: WorkerSites | None = None, **settings: str) -> None:
        self.config = LauncherConfig.from_env({**JOB, **settings})
        self.files = AttemptFiles(directory)
        self.clock = Clock()
        self.store = LogStore(self.files, "uid-1", 1)
        self.gang = Gang(self.config, self.clock)
        self.snapshot = StatusSnapshot(self.config, self.gang, self.store, LauncherReports(self.config.world_size))
        context = BackendContext(self.snapshot, sites or WorkerSites({}, False))
        self.world = self.snapshot.backend = ElasticBackend(context, self.clock)

    def close(self) -> None:
        self.store.close()

    def order(self) -> Any:
        """Return the current order after a tick of the launcher."""
        assert self.world.tick() is None
        return self.gang.order

    def say(self, index: int, order: int, instance: str = "", **state: Any) -> None:
        """An agent registers and sends the state of both its slots."""
        registration = worker(index, instance)
        if self.gang.registrations().get(index) != registration:
            self.gang.register(registration)
            self.gang.attach(index, registration.instance)
        given = {"phase": RankPhase.RUNNING, "life": 1, **state}
        ranks = tuple(RankState(2 * index + local, **given) for local in (0, 1))
        assert self.gang.sync(index, registration.instance, AgentState(ranks, order=order))

    def form(self, *workers: int) -> Form:
        """Form the first generation, of `workers`."""
        prepare = self.order()
        assert isinstance(prepare, Prepare)
        for index in workers:
            self.say(index, prepare.number, parked=True)
        form = self.order()
        assert isinstance(form, Form)
        for index in workers:
            self.say(index, form.number, formation=1, joined=True)
        return form


Start = Callable[..., Job]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """A launcher's process in the test's folder. All end with the test, also with one that fails."""
    with ExitStack() as stack:
        yield lambda *args, **settings: stack.enter_context(closing(Job(tmp_path, *args, **settings)))


@pytest.fixture
def job(start: Start) -> Job:
    return start()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"RINGTRAIN_ELASTIC": "Ignore"}, "RINGTRAIN_ELASTIC='Ignore': expected one of Replace, Shrink, Restart"),
        ({"RINGTRAIN_ELASTIC_MAX_RANKS": "7"}, "RINGTRAIN_ELASTIC_MAX_RANKS='7': expected an integer from 1 to 6"),
        (
            {"RINGTRAIN_ELASTIC_MAX_RANKS": "4", "RINGTRAIN_ELASTIC_MIN_RANKS": "5"},
            "RINGTRAIN_ELASTIC_MIN_RANKS='5': expected an integer from 1 to 4",
        ),
        ({"RINGTRAIN_ELASTIC_JOIN_DELAY": "-1"}, "RINGTRAIN_ELASTIC_JOIN_DELAY='-1': expected seconds from 0 to"),
        (
            {"RINGTRAIN_ELASTIC_REPLACE_TIMEOUT": "0"},
            "RINGTRAIN_ELASTIC_REPLACE_TIMEOUT='0': expected seconds above 0",
        ),
    ],
)
def test_settings_that_cannot_be(change: dict[str, str], message: str) -> None:
    """The variable, its value and what was expected."""
    with pytest.raises(ConfigurationError, match=message):
        LauncherConfig.from_env({**JOB, **change})


def test_defaults() -> None:
    """Defaults are those of the contract; without RINGTRAIN_ELASTIC the job is not elastic, even if other variables are
    set."""
    elastic = LauncherConfig.from_env(JOB).elastic
    rules = elastic.rules
    assert (rules.min_ranks, rules.max_ranks, elastic.start_ranks) == (1, 6, 6)
    assert (rules.replace_timeout_s, rules.join_delay_s, rules.generation_limit) == (120, 30, 100)
    assert (rules.shrinks, rules.restarts) == (False, False)
    plain = {name: value for name, value in JOB.items() if name != "RINGTRAIN_ELASTIC"}
    assert LauncherConfig.from_env({**plain, "RINGTRAIN_ELASTIC_MIN_RANKS": "4"}).elastic is None


def test_the_world_of_a_formation(start: Start) -> None:
    """The world contains addresses and members by rank; the status contains their number."""
    job = start(RINGTRAIN_ELASTIC_START_RANKS="4")
    form = job.form(0, 1)
    assert form.world.ring_addresses == ("h0:7400", "h0:7401", "h1:7400", "h1:7401")
    assert [(member.slot, member.life) for member in form.world.members] == [(0, 1), (1, 1), (2, 1), (3, 1)]
    assert (form.world.generation, form.slots) == (1_000_001, (0, 1, 2, 3))
    status = job.snapshot.status()
    assert (status["worldSize"], status["elastic"]["ranks"], status["elastic"]["degraded"]) == (4, 4, False)
    assert status["workers"][2] == {
        "index": 2, "pod": "digits-worker-2", "node": "", "address": "", "registered": False, "lost": False,
    }  # fmt: skip


def test_each_world_names_the_sites_of_its_nodes(start: Start) -> None:
    """A worker comes when the site of its node is known, and never on a node without the label."""
    sites = WorkerSites({}, awaits_nodes=True)
    sites.hear({}, {"n0": "far"})
    job = start(sites, RINGTRAIN_ELASTIC_START_RANKS="4", RINGTRAIN_ELASTIC_JOIN_DELAY="0.1")
    prepare = job.order()
    for index in (0, 1):
        job.say(index, prepare.number, parked=True)
    assert isinstance(job.order(), Prepare)  # nothing is known of n1
    sites.hear({}, {"n1": ""})
    job.clock.now += 1
    assert isinstance(job.order(), Prepare)
    sites.hear({}, {"n1": "near"})
    job.clock.now += 1
    form = job.order()
    assert isinstance(form, Form)
    assert form.world.sites == ("far", "far", "near", "near")


def test_a_status_without_formations_has_no_word_of_them(job: Job) -> None:
    """Readers of /status of other jobs get the same fields as before."""
    job.snapshot.backend = RingBackend(BackendContext(job.snapshot, WorkerSites({}, False)))
    assert "elastic" not in job.snapshot.status()
    assert job.snapshot.status()["worldSize"] == 6


def test_a_new_pod_hears_nothing_that_was_meant_for_the_one_before(job: Job) -> None:
    """Its first order is one created after its registration."""
    job.form(0, 1, 2)
    job.gang.detach(1, "first-1")
    assert job.gang.register(worker(1, "second")) is None
    old = job.gang.order_for_another(1)
    assert isinstance(old, Form)
    assert job.gang.order_for_another(0) is None
    order = job.order()
    assert isinstance(order, Prepare)
    assert order.urgent
    assert order is not old


def test_a_new_pod_takes_the_place_of_the_one_before(job: Job) -> None:
    """The new pod registers when its predecessor's connection has ended; before that it is refused."""
    job.form(0, 1, 2)
    assert not job.gang.is_vacant(worker(1, "second"))
    job.gang.detach(1, "first-1")
    assert job.gang.is_vacant(worker(1, "second"))
    assert job.gang.register(worker(1, "second")) is None
    refusal = job.gang.register(worker(0, "second"))
    assert not refusal.misconfigured


def test_a_worker_that_is_silent_is_lost_in_the_status(job: Job) -> None:
    """The operator then makes its pod anew."""
    job.form(0, 1, 2)
    job.clock.now += job.config.lost_after_s
    job.say(0, 0, formation=1, joined=True)
    assert [worker["lost"] for worker in job.snapshot.status()["workers"]] == [False, True, True]


def test_another_launcher_process_goes_on(start: Start) -> None:
    """It reads generation, members and requested number from the journal, and repeats the order to the agents."""
    job = start()
    job.form(0, 1, 2)
    job.world.request_workers(2)
    prepare = job.order()
    assert isinstance(prepare, Prepare)
    assert not prepare.urgent
    job.close()
    again = start()
    assert again.world.status()["elastic"]["phase"] == GenerationPhase.PREPARING
    told = again.order()
    assert isinstance(told, Prepare)
    assert (told.formation, told.slots, told.urgent) == (2, (0, 1, 2, 3), False)
    assert told.number > prepare.number


def test_a_new_world_begins_anew_on_the_page(job: Job) -> None:
    """The time in which it was made is no step's, and slots that are not in it have no bar and no step."""
    observer = pytest.importorskip("ringtrain_page.observer", reason="the plugin page is not installed")
    page = observer.PageObserver(Attempt(job.snapshot))
    job.snapshot.observers = Observers([page])
    job.form(0, 1, 2)
    for step in (0, 1, 2):
        _report(page, range(6), step, float(step))
    job.world.request_workers(2)
    prepare = job.order()
    for index in range(3):
        job.say(index, prepare.number, parked=True)
    assert isinstance(job.order(), Form)
    for step in (3, 4):
        _report(page, range(4), step, 97.0 + step)
    metrics = page.metrics
    assert [metrics.times.of(slot) for slot in range(6)] == [{"compute": 0.5, "reduction": 0.5}] * 4 + [None] * 2
    assert metrics.steps == dict.fromkeys(range(4), 4)


def _report(page: Any, slots: Iterable[int], step: int, time: float) -> None:
    for slot in slots:
        page.reported(slot, {"step": step, "time": time, "reductionWait": 0.5})


def test_notes_that_cannot_be_read(start: Start) -> None:
    """The launcher logs the problem and learns the state from the processes: it prepares the next generation."""
    job = start()
    job.form(0, 1, 2)
    job.close()
    job.files.generations.write_text(json.dumps({"phase": "Running"}))
    again = start()
    for index in range(3):
        again.say(index, 0, formation=1, joined=True)
    told = again.order()
    assert isinstance(told, Prepare)
    assert (told.formation, told.urgent) == (2, True)


def test_a_launcher_whose_gang_does_not_change_looks_now_and_then(job: Job) -> None:
    """A changed agent state is handled at once; changes that depend on time alone within half a second."""
    job.form(0, 1, 2)
    assert job.world.tick() is None
    looked = job.gang.changes
    job.gang.detach(1, "first-1")
    assert job.gang.changes > looked
    job.clock.now += job.config.lost_after_s
    for index in (0, 2):
        job.gang.sync(index, f"first-{index}", AgentState(()))
    assert isinstance(job.order(), Prepare)


def test_what_is_asked_for_has_bounds(start: Start) -> None:
    """The error has the bounds, in ranks."""
    job = start(RINGTRAIN_ELASTIC_MIN_RANKS="3")
    with pytest.raises(ConfigurationError, match="workers is 1, which is 2 ranks; expected 3 to 6 ranks"):
        job.world.request_workers(1)


def test_the_last_life_of_a_rank_has_its_own_exit(job: Job) -> None:
    """The exit of an earlier process does not count as the exit of a later one."""
    job.form(0, 1, 2)
    ended = RankState(0, RankPhase.FAILED, 1, life=1, formation=1)
    job.gang.sync(0, "first-0", AgentState((ended,)))
    job.gang.sync(0, "first-0", AgentState((replace(ended, exit_code=2, life=2),)))
    (exit,) = job.gang.view().exits
    assert exit.state.exit_code == 2


@pytest.mark.parametrize(("code", "by"), [(1, ""), (137, "SIGKILL")], ids=["raises", "mpirun-kills-it"])
def test_who_was_lost_is_named_by_slot(code: int, by: str) -> None:
    """Ranks name each other by their numbers in the generation; log and failure contain slots."""
    tail = ("PeerLost: rank 0 (h1:7400) is silent",)
    exits = [RankExit(RankState(0, RankPhase.FAILED, code, by, log_tail=tail), 1.0)]
    workers = [WorkerView(0, "pod-0"), WorkerView(1, "pod-1")]
    ranks = [RankState(slot, RankPhase.RUNNING) for slot in range(4)]
    # Rank 0 of this formation is slot 2, and slot 0 has rank 1.
    view = GangView(2, workers, ranks, exits, members=(2, 0, 1, 3))
    failure = first_cause(view, failures_by_time(exits), [])
    assert (failure.rank, failure.pod) == (2, "pod-1")


def test_a_lost_pod_is_named_after_another_has_taken_its_place(start: Start, caplog: Any) -> None:
    """The log names the lost pod, not the new one."""
    caplog.set_level("INFO")
    job = start()
    job.form(0, 1, 2)
    job.order()
    job.gang.detach(1, "first-1")
    job.gang.register(replace(worker(1, "second"), pod="pod-1-again"))
    job.order()
    assert "generation 1 has lost a rank: worker 1 (pod pod-1 on node n1) no longer answers" in caplog.text


def test_training_that_begins_anew_is_told(start: Start, caplog: Any) -> None:
    """If no rank has the state, the log says which steps are lost; if one has it, the log does not."""
    job = start(RINGTRAIN_ELASTIC_START_RANKS="4")
    form = job.form(0, 1)
    for index in (0, 1):
        job.say(index, form.number, formation=1, joined=True, committed=7)
    job.order()
    for survivors in (True, False):
        job.say(0, form.number, formation=form.world.formation, phase=RankPhase.FAILED, exit_code=137)
        if not survivors:
            job.say(1, form.number, formation=form.world.formation, phase=RankPhase.FAILED, exit_code=137)
        prepare = job.order()
        assert isinstance(prepare, Prepare)
        job.say(0, prepare.number, life=prepare.formation, parked=True)
        life = 1 if survivors else 2
        job.say(1, prepare.number, life=life, parked=True, formation=form.world.formation if survivors else 0)
        form = job.order()
        assert isinstance(form, Form)
        assert ("no remaining rank" in caplog.text) != survivors
        said = job.world.status()["elastic"]["stateLost"]
        assert (said is None) == survivors
        job.say(0, form.number, life=prepare.formation, formation=form.world.formation, joined=True)
        job.say(1, form.number, life=life, formation=form.world.formation, joined=True)
        job.order()
    assert "no remaining rank has the training state of generation 2: training restarts from its last" in caplog.text
    assert "up to step 7, are lost" in caplog.text
    assert said["reason"] == "StateLost"
    assert "up to step 7, are lost (first: rank 2 exited with 137)" in said["message"]


def test_training_that_goes_on_from_an_older_commit_is_told(start: Start, caplog: Any) -> None:
    """The rank that returned was disconnected before the last commit. One log line says so, and ranks receive the lost
    commit until there is another one."""
    job = start(RINGTRAIN_ELASTIC_START_RANKS="4", RINGTRAIN_ELASTIC="Shrink")
    form = job.form(0, 1)
    job.order()
    job.gang.detach(1, "first-1")
    for _ in range(3):
        job.clock.now += 0.6 * job.config.lost_after_s
        job.say(0, form.number, formation=1, joined=True, committed=5)
    prepare = job.order()
    job.say(0, prepare.number, formation=1, parked=True, committed=5, adopted=1)
    form = job.order()
    assert [member.slot for member in form.world.members] == [0, 1]
    job.say(0, form.number, formation=2, joined=True, committed=7)
    job.order()
    job.say(0, form.number, formation=2, phase=RankPhase.FAILED, signal="SIGKILL", committed=7)
    for formation, left in ((3, 1), (4, 3)):
        prepare = job.order()
        assert isinstance(prepare, Prepare)
        job.gang.attach(1, "first-1")
        job.say(1, prepare.number, formation=left, parked=True, committed=5, adopted=left, unshared=True)
        form = job.order()
        assert isinstance(form, Form)
        assert (form.world.formation, form.world.committed) == (formation, 7)
        assert [member.slot for member in form.world.members] == [2, 3]
        job.say(1, form.number, formation=formation, joined=True, committed=5)
        job.order()
        job.say(1, form.number, formation=formation, parked=True, unshared=True, committed=5)
    said = "training continues from commit 5; later steps, up to step 7, are lost"
    assert caplog.text.count(said) == 1
    assert said in job.world.status()["elastic"]["stateLost"]["message"]


def test_only_a_recovery_is_timed(start: Start, caplog: Any) -> None:
    """A world that grows later does not log the duration of the previous recovery again."""
    caplog.set_level("INFO")
    job = start(RINGTRAIN_ELASTIC_START_RANKS="4", RINGTRAIN_ELASTIC_JOIN_DELAY="0")
    first = job.form(0, 1)
    job.order()
    job.say(0, first.number, formation=1, phase=RankPhase.FAILED, exit_code=137)
    lost = job.order()
    job.say(0, lost.number, life=2, parked=True)
    job.say(1, lost.number, formation=1, parked=True)
    second = job.order()
    for index, life in ((0, 2), (1, 1)):
        job.say(index, second.number, life=life, formation=2, joined=True)
    job.order()
    assert "generation 2 is running, ranks: 4, 0.0 s after the loss" in caplog.text
    job.world.request_workers(3)
    grown = job.order()
    job.say(2, grown.number, parked=True)
    grown = job.order()
    for index, life in ((0, 2), (1, 1)):
        job.say(index, grown.number, life=life, formation=2, parked=True)
    job.say(2, grown.number, parked=True)
    third = job.order()
    assert isinstance(third, Form)
    for index, life in ((0, 2), (1, 1), (2, 1)):
        job.say(index, third.number, life=life, formation=3, joined=True)
    job.order()
    assert caplog.text.endswith("generation 3 is running, ranks: 6\n")


def test_who_has_the_state_is_written_down(start: Start, caplog: Any) -> None:
    """Another launcher process, to which none of them has come, waits for them before others make a world."""
    settings = {"RINGTRAIN_ELASTIC": "Shrink", "RINGTRAIN_ELASTIC_START_RANKS": "4"}
    job = start(**settings)
    form = job.form(0, 1)
    job.order()
    for index in (0, 1):
        job.say(index, form.number, formation=1, joined=True, committed=7)
    job.clock.now += 1  # no agent has said anything for which a launcher looks at once
    job.order()
    job.close()
    again = start(**settings)
    again.world.request_workers(3)
    for _ in range(2):
        again.say(2, 0, parked=True)
        again.clock.now += 0.6 * again.config.lost_after_s
    prepare = again.order()
    assert isinstance(prepare, Prepare)
    again.say(2, prepare.number, parked=True)
    assert isinstance(again.order(), Prepare)
    assert "no connected rank has the training state of generation 1" in caplog.text
    again.clock.now += again.config.elastic.rules.replace_timeout_s
    again.say(2, prepare.number, parked=True)
    assert isinstance(again.order(), Form)


def test_what_the_operator_knows_of_a_silent_pod(job: Job) -> None:
    """The pod has ended, and is not only unreachable."""
    job.gang.register(replace(worker(0), incarnation=1))
    job.clock.now += 2 * job.config.lost_after_s
    assert [(slot.lost, slot.pod_ended) for slot in job.gang.slots().values()][:2] == [(True, False)] * 2
    job.gang.mark_workers_lost({0: 1})
    assert [(slot.lost, slot.pod_ended) for slot in job.gang.slots().values()][:2] == [(True, True)] * 2
