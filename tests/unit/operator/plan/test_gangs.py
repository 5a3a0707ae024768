"""A gang scheduler places all pods of an attempt or none: one group an attempt, and none that is left behind."""

from dataclasses import replace
from typing import Any

import pytest
from support.jobs import job
from support.planworld import World, condition, settled
from support.playedkueue import PlayedKueue

from ringtrain_operator.build.names import group_name
from ringtrain_operator.placement.gangs import SCHEDULERS, GangsView
from ringtrain_operator.spec.parse import parse_job

Json = dict[str, Any]
API = {name: f"{one.api_group}/{one.versions[-1]}" for name, one in SCHEDULERS.items()}
NAMES = {name: one.scheduler_name for name, one in SCHEDULERS.items()}
GROUP = "digits-0a1b2c3d-1"


def gangs(*names: str, served: bool = True) -> GangsView:
    """These are allowed, and served unless said otherwise."""
    return GangsView({n: NAMES[n] for n in names}, {n: API[n] for n in names} if served else {})


def world(view: GangsView | None, *, pod: Json | None = None, **spec: Any) -> World:
    """A job that was just created; `pod`: fields of its worker's template."""
    described = job(**spec)
    described["spec"]["worker"]["template"]["spec"].update(pod or {})
    w = World(described, schedulers=view)
    w.settle()
    return w


def only_group(w: World) -> Json:
    """The job's group."""
    (group,) = w.groups.values()
    return group


def test_a_gang_of_kubernetes() -> None:
    """The group asks for launcher and workers together; every pod names it; nobody else places the pods."""
    topology = {"required": "example.com/rack"}
    w = world(gangs("Kubernetes"), scheduling={"topology": topology, "priorityClassName": "high"})
    group = only_group(w)
    assert (group["apiVersion"], group["metadata"]["name"]) == ("scheduling.k8s.io/v1alpha2", GROUP)
    assert group["spec"] == {
        "schedulingPolicy": {"gang": {"minCount": 3}},
        "schedulingConstraints": {"topology": [{"key": "example.com/rack"}]},
        "priorityClassName": "high",
    }
    assert group["metadata"]["ownerReferences"][0]["uid"] == w.job["metadata"]["uid"]
    assert len(w.pods) == 3
    for made in w.pods.values():
        assert made["spec"]["schedulingGroup"] == {"podGroupName": GROUP}
        assert "schedulerName" not in made["spec"]


def test_a_gang_of_coscheduling() -> None:
    """The pods' label names the group, and the plugin's scheduler places them."""
    w = world(gangs("Coscheduling"))
    assert only_group(w)["spec"] == {"minMember": 3}
    for made in w.pods.values():
        assert made["metadata"]["labels"]["scheduling.x-k8s.io/pod-group"] == GROUP
        assert made["spec"]["schedulerName"] == "scheduler-plugins-scheduler"


@pytest.mark.parametrize(("kind", "mode"), [("required", "hard"), ("preferred", "soft")])
def test_a_gang_of_volcano(kind: str, mode: str) -> None:
    """The pods' annotation names the group; the job's queue is Volcano's, and Kueue hears of none."""
    kueue = PlayedKueue()
    wanted = {"gang": "Volcano", "queue": "research", "topology": {kind: "rack"}, "priorityClassName": "high"}
    w = settled(job(scheduling=wanted), schedulers=gangs("Volcano"), kueue=kueue)
    assert only_group(w)["spec"] == {
        "minMember": 3,
        "queue": "research",
        "priorityClassName": "high",
        "networkTopology": {"mode": mode},
    }
    assert kueue.workload is None
    for made in w.pods.values():
        assert made["metadata"]["annotations"]["scheduling.k8s.io/group-name"] == GROUP
        assert made["spec"]["schedulerName"] == "volcano"


def test_auto_takes_the_first_that_is_there() -> None:
    """Kubernetes' own before the others; none where none is allowed, or none is served."""
    assert only_group(world(gangs("Volcano", "Kubernetes")))["apiVersion"] == API["Kubernetes"]
    assert only_group(world(gangs("Volcano", "Coscheduling")))["apiVersion"] == API["Coscheduling"]
    for view in (None, gangs(), gangs("Volcano", served=False)):
        w = world(view)
        assert (w.groups, len(w.pods)) == ({}, 3)
        assert w.status.ledger.gang_scheduler is None


def test_auto_leaves_a_template_its_scheduler() -> None:
    """Only a gang scheduler of the name that the template has is taken; who asks for one by name gets it."""
    own = {"schedulerName": "ours"}
    assert world(gangs("Kubernetes", "Volcano"), pod=own).groups == {}
    assert only_group(world(gangs("Kubernetes"), pod={"schedulerName": "default-scheduler"}))
    w = world(gangs("Coscheduling"), pod=own, scheduling={"gang": "Coscheduling"})
    assert {made["spec"]["schedulerName"] for made in w.pods.values()} == {"ours"}


def test_a_launcher_with_a_scheduler_of_its_own_has_that_one() -> None:
    """The scheduler of the gang places only pods whose template names none."""
    launcher = {"template": {"spec": {"schedulerName": "ours"}}}
    w = world(gangs("Coscheduling"), launcher=launcher, scheduling={"gang": "Coscheduling"})
    found = {name: made["spec"]["schedulerName"] for name, made in w.pods.items()}
    assert (found["digits-launcher"], found["digits-worker-1"]) == ("ours", "scheduler-plugins-scheduler")


def test_none_is_none() -> None:
    """gang: None places pods one by one, whatever is there."""
    w = world(gangs("Kubernetes", "Volcano"), scheduling={"gang": "None"})
    assert (w.groups, len(w.pods)) == ({}, 3)


@pytest.mark.parametrize(
    ("view", "says"),
    [
        (gangs("Kubernetes"), "this installation does not allow it: set gangs.volcano"),
        (gangs("Volcano", served=False), "no PodGroups of scheduling.volcano.sh (v1beta1)"),
    ],
    ids=["not-allowed", "not-served"],
)
def test_a_choice_that_is_not_there_is_said(view: GangsView, says: str) -> None:
    """No pod is made, the condition names the way out, and the job starts when the scheduler has come."""
    w = world(view, scheduling={"gang": "Volcano"})
    assert (w.pods, w.groups, w.status.state) == ({}, {}, "Pending")
    assert condition(w, "Running")[1] == "GangUnavailable"
    assert says in condition(w, "Running")[2]
    assert w.plan().requeue_after_s == 60
    w.schedulers = gangs("Volcano")
    w.run(seconds=60)
    assert (len(w.pods), len(w.groups)) == (3, 1)


def test_an_elastic_job_waits_for_its_scheduler_without_a_word() -> None:
    """No number is given to a pod that is not made: nothing is written while nothing changes."""
    w = world(gangs("Kubernetes"), scheduling={"gang": "Volcano"}, elastic={"maxReplicas": 4})
    w.run(hours=1)
    assert (w.pods, condition(w, "Running")[1]) == ({}, "GangUnavailable")
    w.schedulers = gangs("Volcano")
    w.run(seconds=60)
    assert {pod["metadata"]["labels"]["ringtrain.dev/incarnation"] for pod in w.pods.values()} == {"1"}


def test_on_one_machine_there_is_nobody_to_ask() -> None:
    """`dtj local` runs a job whose gang scheduler is somewhere else."""
    assert len(world(None, scheduling={"gang": "Volcano"}).pods) == 3


def test_an_elastic_job_is_whole_with_its_fewest_workers() -> None:
    """minCount is the launcher and minReplicas, or minAvailable; it stays when the job is scaled."""
    elastic = {"minReplicas": 2, "maxReplicas": 6}
    w = world(gangs("Kubernetes"), workers=4, elastic=elastic)
    assert only_group(w)["spec"]["schedulingPolicy"]["gang"]["minCount"] == 3
    w.start_gang()
    w.world_is(1, 4, unseen=True)
    w.change(worker={**w.job["spec"]["worker"], "replicas": 6})
    assert len(w.pods) == 7
    assert {pod["spec"]["schedulingGroup"]["podGroupName"] for pod in w.pods.values()} == {GROUP}
    assert len(w.groups) == 1
    more = world(gangs("Kubernetes"), workers=4, elastic=elastic, scheduling={"minAvailable": 5})
    assert only_group(more)["spec"]["schedulingPolicy"]["gang"]["minCount"] == 5


def test_a_job_in_kueues_queue_has_no_group_unless_it_asks() -> None:
    """Kueue admits whole jobs; with both, the group is made when the job is admitted."""
    w = settled(job(scheduling={"queue": "research"}), schedulers=gangs("Kubernetes"), kueue=PlayedKueue())
    w.kueue.admit()
    w.settle()
    assert (len(w.pods), w.groups) == (3, {})
    both = {"queue": "research", "gang": "Kubernetes"}
    w = settled(job(scheduling=both), schedulers=gangs("Kubernetes"), kueue=PlayedKueue())
    assert w.groups == {}
    w.kueue.admit()
    w.settle()
    assert (len(w.pods), len(w.groups)) == (3, 1)
    w.kueue.evict()
    w.settle()
    assert w.groups == {}


def test_the_condition_has_the_schedulers_words() -> None:
    """Of the group and of the nodes; the same words, whichever pod they are of."""
    w = world(gangs("Kubernetes"))
    said = {"type": "PodGroupScheduled", "status": "False", "reason": "Unschedulable", "message": "no room for it"}
    only_group(w)["status"] = {"conditions": [said]}
    for name, message in [("worker-0", "waits for its group"), ("worker-1", "0/2 nodes are available: no GPU")]:
        w.pod_finds_no_node(w.name(name), message)
    w.settle()
    words = f"PodGroup {GROUP} (Kubernetes): no room for it; 0/2 nodes are available: no GPU"
    assert condition(w, "Running") == ("False", "Unschedulable", words)
    assert (w.status.state, w.status.reason) == ("Queued", "Unschedulable")
    assert ("Warning", "Unschedulable") in [(event.type, event.reason) for event in w.events]


def test_volcanos_words() -> None:
    """Volcano says it in a condition of its own."""
    w = world(gangs("Volcano"))
    said = {"type": "Unschedulable", "status": "True", "reason": "NotEnoughResources", "message": "3/3 tasks wait"}
    only_group(w)["status"] = {"conditions": [said], "phase": "Pending"}
    w.pod_finds_no_node(w.name("worker-0"), "")
    w.settle()
    assert condition(w, "Running")[2] == f"PodGroup {GROUP} (Volcano): 3/3 tasks wait"


def test_a_gang_that_finds_no_room_keeps_its_pods() -> None:
    """The operator's own line is for jobs that nobody places whole: here the pods hold nothing."""
    w = world(gangs("Kubernetes"))
    for name in list(w.pods):
        w.pod_finds_no_node(name, "0/2 nodes are available")
    w.run(hours=1)
    assert (len(w.pods), w.status.state, w.status.attempt) == (3, "Queued", 1)
    assert (w.status.ledger.line_since, w.status.ledger.queued_since) == (None, None)


def test_each_attempt_has_its_own_group() -> None:
    """A restart deletes the former attempt's group and makes the next one's with its pods."""
    w = world(gangs("Kubernetes"))
    w.start_gang()
    w.pod_ends(w.name("worker-0"), 1)
    w.launcher_ends(1, unseen=True)
    w.run(seconds=60)
    w.go_on(seconds=60)
    assert w.status.attempt == 2
    assert [ref.name for ref in w.groups] == ["digits-0a1b2c3d-2"]


def test_a_suspended_job_has_no_group() -> None:
    """Suspended: none. Resumed under another scheduler: a group of that one, for the next attempt."""
    w = world(gangs("Kubernetes", "Volcano"))
    w.start_gang()
    w.change(runPolicy={"suspend": True})
    assert w.groups == {}
    w.run(seconds=31)
    w.pods_go()
    w.change(scheduling={"gang": "Volcano"}, unseen=True)
    w.change(runPolicy={"suspend": False})
    assert (only_group(w)["apiVersion"], len(w.pods)) == (API["Volcano"], 3)
    assert w.status.ledger.gang_scheduler == "Volcano"


@pytest.mark.parametrize("code", [0, 64])
def test_a_job_that_has_ended_has_no_group(code: int) -> None:
    """Neither one that succeeded nor one that failed, while its pods are kept."""
    w = world(gangs("Kubernetes"), runPolicy={"cleanPodPolicy": "None"})
    w.start_gang()
    w.launcher_ends(code, reason="BadConfiguration")
    assert w.status.finished
    assert (w.groups, len(w.pods)) == ({}, 3)


def test_a_group_that_somebody_deletes_is_made_again() -> None:
    """Its pods would wait for it for ever."""
    w = world(gangs("Kubernetes"))
    w.groups.clear()
    w.settle()
    assert [ref.name for ref in w.groups] == [GROUP]


def test_a_group_of_another_version_of_the_api_is_the_same_group() -> None:
    """After an upgrade of the cluster the group is kept; one of another scheduler by that name is not."""
    w = world(gangs("Kubernetes"))
    (ref,) = w.groups
    w.groups = {replace(ref, api_version="scheduling.k8s.io/v1beta1"): w.groups[ref]}
    w.schedulers = GangsView({"Kubernetes": ""}, {"Kubernetes": "scheduling.k8s.io/v1beta1"})
    assert not w.plan().acts
    w.groups[replace(ref, api_version=API["Volcano"])] = only_group(w)
    w.settle()
    assert [ref.api_version for ref in w.groups] == ["scheduling.k8s.io/v1beta1"]


def test_a_job_that_ran_before_stays_as_it_is() -> None:
    """A gang scheduler that is turned on changes the next attempt, not the present one."""
    w = world(None)
    w.start_gang()
    w.schedulers = gangs("Kubernetes")
    w.settle()
    assert (w.groups, w.status.ledger.gang_scheduler, w.status.attempt) == ({}, None, 1)


def test_the_longest_name_and_a_late_attempt_fit_into_a_label() -> None:
    """Pods have the group's name as a label; the job's own part of it stays whole."""
    described = job("a" * 51)
    described["metadata"]["uid"] = "0a1b2c3d-4e5f"
    made = parse_job(described)
    name = group_name(made.name, made.uid, 1234)
    assert (len(name), name[-14:]) == (63, "-0a1b2c3d-1234")
