"""Durations of an attempt's start: in the status, and in the document for its launcher."""

import json
from dataclasses import replace
from datetime import timedelta

from support.jobs import job
from support.planworld import World, elastic, format_time

from ringtrain_client.jobs.causes import explain_job
from ringtrain_operator.observe.model import PodPlace, PodReason
from ringtrain_operator.observe.pods import view_pod
from ringtrain_operator.status.progress import MOST_EVENTS, pods_document, start_durations, start_status


def stamp(world: World, name: str, scheduled: int, started: int | None, image_id: str = "") -> None:
    """Kubelet and scheduler have said, so many seconds from now, when the pod found a node and began."""
    pod = world.pods[name]
    pod["metadata"]["creationTimestamp"] = format_time(world.now)
    time = format_time(world.now + timedelta(seconds=scheduled))
    placed = {"type": "PodScheduled", "status": "True", "lastTransitionTime": time}
    pod["status"] = {**pod.get("status", {}), "phase": "Pending", "conditions": [placed]}
    if started is not None:
        begun = format_time(world.now + timedelta(seconds=started))
        container = {"name": pod["spec"]["containers"][0]["name"], "image": "train:1", "imageID": image_id}
        pod["status"]["containerStatuses"] = [{**container, "state": {"running": {"startedAt": begun}}}]
        pod["status"]["phase"] = "Running"


def begun() -> World:
    """A job of two workers, 3 s after it was asked for, whose worker 1 started last."""
    w = World(job("digits", workers=2))
    w.now += timedelta(seconds=3)
    w.settle()
    stamp(w, "digits-launcher", 0, 1)
    stamp(w, "digits-worker-0", 1, 4, "train@sha256:aa")
    stamp(w, "digits-worker-1", 2, 9, "train@sha256:aa")
    return w


def test_a_start_is_written_once_its_ranks_run() -> None:
    """With the slowest pod; the first step follows, and a launcher that came back changes nothing."""
    w = begun()
    w.settle()
    assert w.status.start is None
    made = w.now
    w.launcher_says("Running", 0)
    w.report.update(runningSince=(made + timedelta(seconds=11)).timestamp(), firstStepTime=None)
    w.settle()
    start = w.status.start
    assert (start.attempt, start.pod, start.node) == (1, "digits-worker-1", "node-of-digits-worker-1")
    assert start_durations(start) == [("queued", 3.0), ("scheduled", 2.0), ("started", 7.0), ("formed", 2.0)]
    w.report.update(runningSince=w.now.timestamp() + 500, firstStepTime=(made + timedelta(seconds=16)).timestamp())
    w.settle()
    assert w.status.start is not None
    assert start_durations(w.status.start)[-2:] == [("formed", 2.0), ("first step", 5.0)]
    told = "\n".join(explain_job(json.loads(json.dumps(w.job)), [], []))
    assert "start: queued 3 s, scheduled 2 s, started 7 s, formed 2 s, first step 5 s (the last pod" in told


def test_a_start_that_is_under_way_is_explained() -> None:
    """As far as pods and Events tell; of a pull that goes on its beginning."""
    w = begun()
    w.pods["digits-worker-1"]["status"].pop("containerStatuses")
    told = "\n".join(explain_job(w.job, list(w.pods.values()), []))
    assert "start so far: queued 3 s, scheduled 2 s\n" in told + "\n"
    stamp(w, "digits-worker-1", 2, 9)
    uid = w.pods["digits-worker-1"]["metadata"]["uid"]
    about = {"uid": uid, "kind": "Pod", "name": "digits-worker-1", "fieldPath": "spec.containers{train}"}
    pulls = [
        {"involvedObject": about, "reason": reason, "lastTimestamp": format_time(w.now + timedelta(seconds=at))}
        for reason, at in (("Pulling", 3), ("Pulled", 8))
    ]
    told = "\n".join(explain_job(w.job, list(w.pods.values()), pulls))
    assert "start so far: queued 3 s, scheduled 2 s, prepared 1 s, pulled 5 s, started 1 s (the last" in told


def test_a_restart_was_not_asked_for() -> None:
    """The next attempt's start begins with its pods, and the former one's stays until then."""
    w = begun()
    w.launcher_says("Running", 1)
    w.settle()
    first = w.status.start
    w.launcher_ends(1, reason="RankFailed", rank=1, message="rank 1 exited with 1", unseen=True)
    w.run(seconds=5)
    w.run(seconds=5)
    assert w.status.attempt == 2
    assert w.status.start == first
    assert start_status(w.status, [view_pod(pod) for pod in w.pods.values()]).queued is None


def test_a_launcher_is_told_of_its_pods() -> None:
    """The same of the start before and after it is in the status; what waits or was evicted; one image."""
    w = begun()
    views = [view_pod(pod) for pod in w.pods.values()]
    told = pods_document(w.status, views)
    assert [event["kind"] for event in told["events"]] == ["Queued", "Created", "Scheduled", "Started"]
    assert told["imageID"] == "train@sha256:aa"
    w.launcher_says("Running", 1)
    w.settle()
    assert pods_document(w.status, views) == told
    waits = replace(views[1], id=replace(views[1].id, index=5), wait=PodReason("ImagePullBackOff", "secret words"))
    waits = replace(waits, main=replace(waits.main, image_id=""))
    main = replace(views[2].main, image_id="train@sha256:bb")
    gone = replace(views[2], disrupted=PodReason("EvictionByEvictionAPI", time=w.now), main=main)
    said = pods_document(w.status, [*views, waits, gone])
    texts = {event["kind"]: event["text"] for event in said["events"]}
    assert texts["Waiting"] == "digits-worker-0 on node-of-digits-worker-0: ImagePullBackOff"
    assert texts["Evicted"] == "digits-worker-1 on node-of-digits-worker-1: EvictionByEvictionAPI"
    assert said["imageID"].startswith("not the same in all workers: train@sha256:aa (digits-worker-0), train@sha256:bb")


def test_replacements_are_told_one_by_one() -> None:
    """Of an elastic job, after its start; and of pods without end the first ones."""
    w = elastic()
    w.evict("digits-worker-1")
    w.settle()
    later = w.now + timedelta(seconds=60)
    views = [view_pod(pod) for pod in w.pods.values()]
    start = start_status(w.status, views, has_begun=True).model_copy(update={"started": w.now, "created": w.now})
    status = w.status.model_copy(update={"start": start})
    main, place = replace(views[0].main, started_at=later), PodPlace("n", scheduled_at=later)
    new = replace(views[0], id=replace(views[0].id, role="worker", created_at=later), main=main, place=place)
    for incarnation, words in ((1, "which was added"), (2, "a replacement")):
        told = pods_document(status, [replace(new, id=replace(new.id, incarnation=incarnation))])["events"]
        assert [e["text"] for e in told][-2:] == [f"{new.id.name} on n, {words}"] * 2
    later_told = pods_document(status, [], told)["events"]
    assert [e["text"] for e in later_told][-2:] == [e["text"] for e in told][-2:], "the pod is gone since"
    waits = PodReason("CreateContainerError")
    many = [replace(new, id=replace(new.id, name=f"p{index}"), wait=waits) for index in range(200)]
    assert len(pods_document(status, many)["events"]) == MOST_EVENTS
