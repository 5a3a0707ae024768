"""A job in a queue of Kueue: no pod without quota, and no quota given back while a pod is there."""

from typing import Any

import pytest
from support.crowd import Ask, Crowd
from support.jobs import job
from support.planworld import World, condition, settled, started
from support.playedkueue import PlayedKueue

from ringtrain_client.jobs.causes import explain_job

QUEUE = {"queue": "research"}


def queued(**spec: Any) -> tuple[World, PlayedKueue]:
    """A job in a queue whose Workload nobody has looked at yet."""
    kueue = PlayedKueue()
    w = settled(job(scheduling=QUEUE, **spec), kueue=kueue)
    return w, kueue


def running(**spec: Any) -> tuple[World, PlayedKueue]:
    """The same, admitted, with its gang running."""
    w, kueue = queued(**spec)
    kueue.admit()
    w.start_gang()
    return w, kueue


def podsets(kueue: PlayedKueue) -> dict[str, Any]:
    return {p["name"]: p for p in kueue.workload["spec"]["podSets"]}


def test_a_queued_job_has_a_workload_and_nothing_else() -> None:
    """State Queued, no pod, no Secret; the Workload asks for the launcher and all workers."""
    w, kueue = queued()
    assert (w.status.state, w.status.attempt, w.pods, w.objects) == ("Queued", 0, {}, {})
    assert kueue.workload["spec"]["queueName"] == "research"
    assert {name: p["count"] for name, p in podsets(kueue).items()} == {"launcher": 1, "workers": 2}
    assert kueue.workload["metadata"]["ownerReferences"][0]["uid"] == w.job["metadata"]["uid"]
    assert w.reasons() == ["Queued"]


def test_kueues_label_names_the_queue_too() -> None:
    """A job with the label kueue.x-k8s.io/queue-name waits in that queue."""
    described = job()
    described["metadata"]["labels"] = {"kueue.x-k8s.io/queue-name": "by-label"}
    w = settled(described, kueue=PlayedKueue())
    assert w.kueue.workload["spec"]["queueName"] == "by-label"


def test_the_condition_repeats_kueues_words() -> None:
    """The message of QuotaReserved is what the job says it waits for."""
    w, kueue = queued()
    kueue.says("QuotaReserved", "False", "Pending", "insufficient unused quota for cpu, 2 more needed")
    w.settle()
    assert "insufficient unused quota for cpu, 2 more needed" in condition(w, "Queued")[2]
    assert "LocalQueue research" in condition(w, "Running")[2]


def test_admission_starts_the_first_attempt() -> None:
    """The pods carry what the admission adds; the user's spec stays as it is."""
    w, kueue = queued()
    before = str(w.job["spec"])
    kueue.flavors["gpu"] = {"nodeLabels": {"pool": "gpu"}, "tolerations": [{"key": "gpu", "operator": "Exists"}]}
    update = {"name": "workers", "annotations": {"consume": "request"}, "nodeSelector": {"zone": "a"}}
    kueue.workload["status"]["admissionChecks"] = [{"name": "c", "state": "Ready", "podSetUpdates": [update]}]
    kueue.admit(flavor="gpu")
    w.settle()
    assert (w.status.state, w.status.attempt, len(w.pods)) == ("Pending", 1, 3)
    worker, launcher = w.pods["digits-worker-0"], w.pods["digits-launcher"]
    assert worker["spec"]["nodeSelector"] == {"pool": "gpu", "zone": "a"}
    assert launcher["spec"]["nodeSelector"] == {"pool": "gpu"}
    assert {"key": "gpu", "operator": "Exists"} in worker["spec"]["tolerations"]
    assert worker["metadata"]["annotations"]["consume"] == "request"
    assert worker["metadata"]["labels"]["kueue.x-k8s.io/podset"] == "workers"
    assert "schedulingGates" not in worker["spec"]
    assert str(w.job["spec"]) == before


def test_with_a_topology_pods_wait_for_their_places() -> None:
    """Kueue numbers places along the workers' indices, and takes the gate away."""
    kueue = PlayedKueue()
    w = settled(job(scheduling={**QUEUE, "topology": {"required": "rack"}}), kueue=kueue)
    request = podsets(kueue)["workers"]["topologyRequest"]
    assert request == {"required": "rack", "podIndexLabel": "ringtrain.dev/worker-index"}
    kueue.admit(topologyAssignment={"levels": ["rack"], "slices": []})
    w.settle()
    worker, launcher = w.pods["digits-worker-1"], w.pods["digits-launcher"]
    assert worker["spec"]["schedulingGates"] == [{"name": "kueue.x-k8s.io/topology"}]
    assert worker["metadata"]["annotations"]["kueue.x-k8s.io/podset-required-topology"] == "rack"
    assert launcher["metadata"]["annotations"]["kueue.x-k8s.io/podset-unconstrained-topology"] == "true"


def test_an_admitted_job_tells_when_its_pods_are_ready() -> None:
    """PodsReady follows the gang: running, restarting, running; before its first start nothing is written."""
    w, kueue = queued()
    kueue.admit()
    written = len(kueue.writes)
    w.settle()
    assert (len(kueue.writes), kueue.condition("PodsReady")) == (written, ("", ""))
    w.start_gang()
    assert kueue.condition("PodsReady") == ("True", "Started")
    w.pod_ends("digits-worker-0", 1)
    w.launcher_ends(1)
    assert (w.status.attempt, kueue.condition("PodsReady")) == (2, ("False", "WaitForRecovery"))
    assert w.status.state == "Restarting"


def test_quota_goes_back_when_the_last_pod_is_gone() -> None:
    """Preempted: the pods are deleted first, the quota is returned when none is left, and nothing counts."""
    w, kueue = running()
    kueue.evict()
    w.settle()
    assert condition(w, "Queued")[:2] == ("True", "Preempted")
    assert kueue.condition("QuotaReserved")[0] == "True"
    w.run(seconds=31)  # the launcher of an evicted gang may end by itself
    w.go_on()
    assert (kueue.condition("QuotaReserved")[0], kueue.condition("Requeued")) == ("False", ("True", "Preempted"))
    assert kueue.pods_at_release == []
    assert (w.status.restarts, w.status.disruptions, w.status.state) == (0, 1, "Queued")
    kueue.admit()
    w.start_gang()
    assert (w.status.attempt, w.status.state) == (2, "Running")
    assert condition(w, "Queued")[:2] == ("False", "Admitted")


def test_a_job_that_succeeds_while_it_is_evicted_has_succeeded() -> None:
    """The launcher's word counts, and the Workload hears of it."""
    w, kueue = running()
    kueue.evict()
    w.settle()
    w.launcher_ends(0, unseen=True)
    w.pods_go()
    w.run(seconds=11)
    assert w.status.state == "Succeeded"
    assert condition(w, "Queued")[0] == "False"
    assert kueue.condition("Finished") == ("True", "Succeeded")


@pytest.mark.parametrize("code", [0, 64])
def test_the_end_is_told_when_no_pod_runs(code: int) -> None:
    """Finished is set once: quota is another's from then on."""
    w, kueue = running()
    w.launcher_ends(code, reason="BadConfiguration")
    assert kueue.condition("Finished") == ("", "")
    w.run(seconds=11)
    w.go_on()
    assert kueue.condition("Finished") == ("True", "Failed" if code else "Succeeded")


def test_a_suspended_job_leaves_the_queue_and_comes_back() -> None:
    """Suspended: no pods, then no Workload. Resumed: a new one, and attempt 2 when it is admitted."""
    w, kueue = running()
    w.change(runPolicy={"suspend": True})
    assert kueue.workload is not None
    w.run(seconds=31)
    w.go_on()
    assert (kueue.workload, kueue.pods_at_release, w.status.state) == (None, [], "Suspended")
    w.change(runPolicy={"suspend": False})
    assert (w.status.state, condition(w, "Suspended")[0]) == ("Queued", "False")
    kueue.admit()
    w.start_gang()
    assert (w.status.state, w.status.attempt) == ("Running", 2)


def test_suspending_a_queued_job_takes_it_out() -> None:
    """A job that waits is suspended: the Workload goes."""
    w, kueue = queued()
    w.change(runPolicy={"suspend": True})
    assert (w.status.state, kueue.workload) == ("Suspended", None)


def test_a_deleted_workload_stops_the_job() -> None:
    """Deletion of the Workload releases the quota: the job stops, and is queued again."""
    w, kueue = running()
    kueue.workload = None
    w.settle()
    assert condition(w, "Queued")[:2] == ("True", "WorkloadDeleted")
    assert kueue.workload is None
    w.run(seconds=31)
    w.go_on()
    assert kueue.workload is not None


def test_a_job_that_leaves_the_queue_starts_when_its_workload_is_gone() -> None:
    """Until then Kueue may still reserve quota for it."""
    described, kueue = job(), PlayedKueue()
    described["metadata"]["labels"] = {"kueue.x-k8s.io/queue-name": "by-label"}
    w = settled(described, kueue=kueue)
    w.job["metadata"]["labels"] = {}
    while kueue.workload is not None:
        assert (w.status.attempt, w.pods) == (0, {})
        w.apply(w.plan())
    w.settle()
    assert (w.status.attempt, len(w.pods), condition(w, "Queued")[:2]) == (1, 3, ("False", "Dequeued"))


def test_another_number_of_workers_goes_through_the_queue() -> None:
    """Quota for two is not quota for three."""
    w, kueue = running()
    w.scale(3, unseen=True)
    w.run(seconds=31)
    w.run(seconds=31)
    w.go_on()
    assert (podsets(kueue)["workers"]["count"], w.status.state) == (3, "Queued")
    kueue.admit()
    w.settle()
    assert len(w.pods) == 4
    assert w.status.disruptions == 0


def test_a_waiting_job_may_change_its_size_without_losing_its_place() -> None:
    """The Workload that has no quota yet is changed, not made anew."""
    w, kueue = queued()
    uid = kueue.workload["metadata"]["uid"]
    w.scale(4)
    assert kueue.workload["metadata"]["uid"] == uid
    assert podsets(kueue)["workers"]["count"] == 4


def test_an_elastic_job_starts_with_as_many_as_were_admitted() -> None:
    """Partial admission: four wanted, two admitted, two run; the job does not scale itself up."""
    kueue = PlayedKueue()
    w = settled(job(workers=4, scheduling=QUEUE, elastic={"minReplicas": 2, "maxReplicas": 8}), kueue=kueue)
    assert podsets(kueue)["workers"]["minCount"] == 2
    kueue.admit(workers=2)
    w.start_gang()
    w.world_is(1, 2)
    assert (len(w.pods), w.status.attempt, w.status.state) == (3, 1, "Running")
    assert w.status.ledger.attempt_workers == 2


def test_a_job_that_gives_way_asks_for_no_more_than_was_admitted() -> None:
    """Of two admitted workers one finds no node: the next attempt is for two again, and no scale is told of."""
    kueue = PlayedKueue()
    w = settled(job(workers=4, scheduling=QUEUE, elastic={"minReplicas": 2, "maxReplicas": 8}), kueue=kueue)
    kueue.admit(workers=2)
    w.settle()
    w.pod_runs("digits-launcher")
    w.pod_runs("digits-worker-0")
    w.pod_finds_no_node("digits-worker-1", "0/1 nodes are available")
    w.launcher_ends(69, reason="NotAssembled", rank=None, pod=None, unseen=True)
    w.apply(w.plan())
    assert (w.status.attempt, w.status.state, w.status.ledger.attempt_workers) == (2, "Queued", 2)
    w.go_on()
    assert sorted(w.pods) == ["digits-launcher", "digits-worker-0", "digits-worker-1"]
    assert "Scaled" not in w.reasons()


def test_a_suspended_job_returns_its_quota_whatever_becomes_of_its_template() -> None:
    """It was changed for the worse while the last pod was ending: others need not wait until that is mended."""
    w, kueue = running(runPolicy={})
    w.change(runPolicy={"suspend": True})
    assert w.pods
    w.job["spec"]["worker"]["template"]["spec"]["nodeName"] = 7
    w.settle()
    w.pods.clear()
    w.settle()
    assert (kueue.workload, kueue.pods_at_release) == (None, [])
    assert condition(w, "Accepted")[0] == "False"


def test_an_elastic_job_that_shrinks_returns_quota() -> None:
    """Two workers fewer within the attempt: their quota is another's when Kueue hears of it."""
    kueue = PlayedKueue()
    w = settled(job(workers=4, scheduling=QUEUE, elastic={"maxReplicas": 8}), kueue=kueue)
    kueue.admit()
    w.start_gang()
    w.world_is(1, 4, unseen=True)
    w.scale(2)
    assert w.status.attempt == 1
    assert kueue.workload["status"]["reclaimablePods"] == [{"name": "workers", "count": 2}]


def test_an_elastic_job_that_grows_beyond_its_quota_waits_for_more() -> None:
    """Six workers where four were admitted: it is queued again, and nothing is counted."""
    kueue = PlayedKueue()
    w = settled(job(workers=4, scheduling=QUEUE, elastic={"maxReplicas": 8}), kueue=kueue)
    kueue.admit()
    w.start_gang()
    w.world_is(1, 4, unseen=True)
    w.scale(6)
    w.go_on()
    assert (w.status.state, w.status.restarts, w.status.disruptions) == ("Queued", 0, 0)


def test_without_kueues_workloads_the_pods_are_a_group() -> None:
    """Pods carry the labels of a Kueue pod group, one per attempt, if the operator may not write Workloads."""
    w = settled(job(scheduling=QUEUE))
    assert len(w.pods) == 3
    for pod in w.pods.values():
        assert pod["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] == "research"
        assert pod["metadata"]["labels"]["kueue.x-k8s.io/pod-group-name"] == "digits-0a1b2c3d-1"
        assert pod["metadata"]["annotations"]["kueue.x-k8s.io/pod-group-total-count"] == "3"


def test_a_running_job_stays_as_it_is_when_kueue_comes() -> None:
    """A job that began as a group of pods does not stop because Workloads are served now."""
    w = started(job(scheduling=QUEUE))
    w.kueue = PlayedKueue()
    w.settle()
    assert (w.status.state, w.kueue.workload) == ("Running", None)


def test_a_running_job_stays_when_kueue_goes() -> None:
    """A running job keeps its pods while Kueue cannot be queried; lost pods are replaced once it can."""
    w, _ = running()
    w.kueue = None
    w.settle()
    assert (w.status.state, len(w.pods)) == ("Running", 3)


def test_a_job_for_another_cluster_has_a_workload_and_no_pods() -> None:
    """managedBy MultiKueue: the Workload is ours, everything else Kueue's."""
    kueue = PlayedKueue()
    w = settled(job(scheduling=QUEUE, managedBy="kueue.x-k8s.io/multikueue"), kueue=kueue)
    assert kueue.workload is not None
    kueue.admit()
    w.settle()
    assert (w.pods, w.job.get("status")) == ({}, None)


def elsewhere(**fields: Any) -> World:
    """A job that MultiKueue is to run on another cluster, after the first looks at it."""
    return settled(job(managedBy="kueue.x-k8s.io/multikueue", **fields), kueue=PlayedKueue())


def test_a_job_for_another_cluster_without_a_queue_says_so() -> None:
    """MultiKueue never learns of it. When it has a queue it gets a Workload, and its status does not deny that."""
    w = elsewhere()
    assert (w.status.state, w.status.reason) == ("Pending", "NoQueue")
    assert "scheduling.queue" in condition(w, "Running")[2]
    w.job["metadata"]["labels"] = {"kueue.x-k8s.io/queue-name": "team"}
    w.settle()
    assert w.kueue.workload is not None
    assert (w.status.state, w.status.reason) == ("Pending", "WaitingForMultiKueue")
    w.job["status"] = theirs = {"state": "Running", "attempt": 1}
    w.settle()
    assert w.job["status"] == theirs


@pytest.mark.parametrize("problem", ["not-served", "refused"])
def test_a_job_for_another_cluster_that_gets_no_workload_says_why(problem: str) -> None:
    """Kueue is not there, or refuses the Workload."""
    kueue = PlayedKueue(problem="PriorityClass 'high' does not exist") if problem == "refused" else None
    w = settled(job(scheduling=QUEUE, managedBy="kueue.x-k8s.io/multikueue"), kueue=kueue)
    why = "PriorityClass 'high' does not exist" if problem == "refused" else "are not served here"
    assert (w.status.state, w.status.reason) == ("Pending", "NoWorkload")
    assert why in condition(w, "Running")[2]
    assert any(why in line for line in explain_job(w.job, [], []))


def test_a_workload_that_was_made_for_the_job_becomes_its_own() -> None:
    """On the cluster that MultiKueue chose the Workload is there already."""
    other, theirs = queued()
    described = job(scheduling=QUEUE)
    described["metadata"]["labels"] = {"kueue.x-k8s.io/prebuilt-workload-name": "made-elsewhere"}
    kueue = PlayedKueue()
    w = settled(described, kueue=kueue)
    assert kueue.workload is None
    kueue.workload = theirs.workload
    del kueue.workload["metadata"]["ownerReferences"]
    w.settle()
    assert kueue.workload["metadata"]["ownerReferences"][0]["name"] == "digits"
    kueue.admit()
    w.settle()
    assert len(w.pods) == 3
    assert other.status.state == "Queued"


def test_a_missing_priority_class_is_named() -> None:
    """The job waits, and says what is wrong."""
    kueue = PlayedKueue(problem="PriorityClass 'high' does not exist")
    w = settled(job(scheduling=QUEUE), kueue=kueue)
    assert "PriorityClass 'high' does not exist" in condition(w, "Queued")[2]
    assert kueue.workload is None


def test_waiting_does_not_use_up_the_deadline() -> None:
    """activeDeadlineSeconds counts while pods may run."""
    w, kueue = queued(runPolicy={"activeDeadlineSeconds": 60})
    w.run(seconds=3600)
    assert w.status.state == "Queued"
    kueue.admit()
    w.start_gang()
    w.run(seconds=59)
    assert w.status.state == "Running"
    w.run(seconds=2)
    assert w.status.state == "Failed"


def test_admitted_jobs_that_find_no_room_run_one_after_the_other() -> None:
    """Nodes have less than the quotas say: whoever gives way keeps its quota until it has had its turn."""
    crowd = Crowd([Ask(), Ask()], seed=1)
    plays = [PlayedKueue() for _ in crowd.tenants]
    for tenant, kueue in zip(crowd.tenants, plays, strict=True):
        tenant.kueue = kueue
        tenant.change(scheduling=QUEUE, unseen=True)
    gave_way = set()
    while crowd.unfinished:
        crowd.tick()
        for tenant, kueue in zip(crowd.tenants, plays, strict=True):
            if kueue.condition("Admitted")[0] != "True":
                kueue.admit()
                tenant.look_at = crowd.seconds
            if tenant.status.ledger.queued_since is not None:
                gave_way.add(tenant.job["metadata"]["name"])
                assert kueue.condition("QuotaReserved")[0] == "True"
        assert crowd.seconds < 120
    assert len(gave_way) == 1
    assert [kueue.condition("Finished")[0] for kueue in plays] == ["True", "True"]
    assert [tenant.status.disruptions for tenant in crowd.tenants] == [0, 0]
