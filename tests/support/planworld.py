"""A world for pure tests: it holds what `plan` creates, and lets a test play kubelet, user and node."""

import json
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any

from ringtrain_operator import contract
from ringtrain_operator.build import BuildSettings
from ringtrain_operator.build.names import ObjectRef
from ringtrain_operator.observe.model import Foreign, Observed, Refusal
from ringtrain_operator.observe.pods import OtherStatusVersion, read_report, view_pod
from ringtrain_operator.placement.gangs import GangsView, view_group
from ringtrain_operator.placement.provisioning import ProvisioningView, view_request
from ringtrain_operator.plan import Plan, PlannedEvent, plan_object
from ringtrain_operator.plan.result import WorkloadChange
from ringtrain_operator.spec.job import Job
from ringtrain_operator.status.model import ConditionType, JobStatus, format_time, parse_status
from support.jobs import job
from support.playedkueue import PlayedKueue

Json = dict[str, Any]
START = datetime(2026, 1, 1, tzinfo=UTC)
GRACE_S = 30


def fixed_credentials(job: Job, now: datetime) -> dict[str, bytes]:
    """Credentials without randomness."""
    return dict.fromkeys(contract.SECRET_KEYS, b"fixed")


FIXED = BuildSettings(issue=fixed_credentials, token=lambda: "fixed")


@dataclass
class World:
    """One job, its objects, its nodes' state, and a clock that only the test moves.

    `made`: name, incarnation and uid of every worker's pod of an elastic job. `harmed`: name and incarnation of
    pods that were lost by another's doing.
    """

    job: Json
    now: datetime = START
    pods: dict[str, Json] = field(default_factory=dict)
    objects: dict[ObjectRef, Json] = field(default_factory=dict)
    nodes: dict[str, bool] = field(default_factory=dict)
    foreign: tuple[Foreign, ...] = ()
    taken_secrets: frozenset[ObjectRef] = frozenset()
    refusals: tuple[Refusal, ...] = ()
    report: Json | None = None
    report_age_s: float = 0.0
    events: list[PlannedEvent] = field(default_factory=list)
    gangs: dict[int, float] = field(default_factory=dict)
    deleted: bool = False
    writes: int = 0
    made: list[tuple[str, int, str]] = field(default_factory=list)
    harmed: set[tuple[str, int]] = field(default_factory=set)
    kueue: PlayedKueue | None = None
    schedulers: GangsView | None = None
    groups: dict[ObjectRef, Json] = field(default_factory=dict)
    autoscaler: ProvisioningView | None = None
    asked: dict[ObjectRef, Json] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.job["metadata"].update(uid="0a1b2c3d-e", namespace="default", generation=1)
        self.job["metadata"].setdefault("creationTimestamp", format_time(self.now))

    @property
    def status(self) -> JobStatus:
        """The job's status."""
        return parse_status(self.job.get("status"))

    def observed(self) -> Observed:
        """Return the observed state of the cluster."""
        report, error = None, ""
        try:
            report = read_report(self.report) if self.report is not None else None
        except OtherStatusVersion as exc:
            error = str(exc)
        return Observed(
            pods=tuple(view_pod(pod, self.nodes) for pod in self.pods.values()),
            objects=frozenset(self.objects),
            foreign=self.foreign,
            taken_secrets=self.taken_secrets,
            launcher=report,
            launcher_error=error,
            launcher_unreadable=bool(error),
            launcher_age_s=self.report_age_s,
            refusals=self.refusals,
            kueue=self.kueue.view() if self.kueue is not None else None,
            gangs=self._gangs(),
            provisioning=self._provisioning(),
            status=self.job.get("status") or {},
            nodes_ready=self._silent_nodes(),
        )

    def _gangs(self) -> GangsView | None:
        if self.schedulers is None:
            return None
        groups = tuple(view_group(group, ref.api_version) for ref, group in self.groups.items())
        return replace(self.schedulers, groups=groups)

    def _provisioning(self) -> ProvisioningView | None:
        if self.autoscaler is None:
            return None
        requests = tuple(view_request(o, r.api_version) for r, o in self.asked.items() if r.api_version)
        templates = {r: o["metadata"]["uid"] for r, o in self.asked.items() if r.kind == "PodTemplate"}
        return replace(self.autoscaler, requests=requests, templates=templates)

    def _silent_nodes(self) -> dict[str, bool]:
        lost = self.status.ledger.lost_pod
        node = lost.node if lost is not None else None
        return {node: self.nodes[node]} if node in self.nodes else {}

    def autoscaler_says(self, kind: str, message: str = "", reason: str = "") -> None:
        """A condition of the job's only ProvisioningRequest holds from now on."""
        (request,) = (o for ref, o in self.asked.items() if ref.kind == "ProvisioningRequest")
        told = {"type": kind, "status": "True", "reason": reason or "Done", "message": message}
        conditions = request.setdefault("status", {}).setdefault("conditions", [])
        conditions.append({**told, "lastTransitionTime": format_time(self.now)})

    def plan(self) -> Plan:
        """Return the plan for the current state. It has all that is due: it never requests another plan at once."""
        plan = plan_object(self.job, self.observed(), self.now, FIXED)
        assert plan.requeue_after_s != 0, plan
        return plan

    def apply(self, plan: Plan, writes: int | None = None) -> None:
        """Write what the plan says in its order; die after so many writes if `writes` is given."""
        steps: list[Callable[[], None]] = []
        if plan.status is not None:
            steps.append(lambda: self.job.update(status=json.loads(json.dumps(plan.status))))
        steps += [lambda d=d: self._delete(d) for d in plan.delete]
        steps += [lambda o=o: self._create(o) for o in plan.create]
        if plan.workload is not None:
            steps.append(lambda change=plan.workload: self._change_workload(change))
        for step in steps[:writes]:
            step()
            self.writes += 1
        if writes is None:
            self.events += plan.events

    def settle(self, rounds: int = 10) -> Plan:
        """Plan and apply until nothing is left to do; returns the last, empty plan."""
        for _ in range(rounds):
            plan = self.plan()
            if not (plan.acts or plan.status):
                return plan
            self.apply(plan)
        raise AssertionError(f"the plan does not converge: {plan}")

    def run(self, **seconds: float) -> None:
        """Let time pass, then settle. The operator must have asked to look again if it now has anything to do."""
        passed, before = timedelta(**seconds), self.plan()
        self.now += passed
        if passed > timedelta(0) and not (before.acts or before.status):
            looks = before.requeue_after_s is not None and before.requeue_after_s <= passed.total_seconds()
            plan = self.plan()
            assert looks or not (plan.acts or plan.status), f"nobody looks after {passed}: {before.requeue_after_s}"
        self.settle()

    def go_on(self, **seconds: float) -> None:
        """End the pods that are being deleted; then let time pass, if any is given. Settles before and after."""
        self.settle()
        self.pods_go()
        self.run(**seconds)

    def start_gang(self, step: int = 0) -> None:
        """All pods run, all agents are registered, the launcher says so."""
        self.settle()
        self.pods_run()
        self.launcher_says("Running", step)
        self.settle()

    def pod_runs(self, name: str) -> None:
        """A kubelet has started the pod."""
        self._post(name, "Running", {"running": {}})

    def pods_run(self) -> None:
        """Kubelets have started every pod."""
        for name in self.pods:
            self.pod_runs(name)

    def pod_finds_no_node(self, name: str, message: str) -> None:
        """The scheduler has found no node for the pod."""
        del self.pods[name]["spec"]["nodeName"]
        told = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": message}
        self.pods[name]["status"] = {
            "phase": "Pending",
            "conditions": [{**told, "lastTransitionTime": format_time(self.now)}],
        }

    def pod_waits(self, name: str, reason: str, message: str) -> None:
        """A kubelet cannot start the pod."""
        self._post(name, "Pending", {"waiting": {"reason": reason, "message": message}})
        placed = {"type": "PodScheduled", "status": "True", "lastTransitionTime": format_time(self.now)}
        self.pods[name]["status"]["conditions"] = [placed]

    def pod_ends(self, name: str, code: int, message: str = "", reason: str = "") -> None:
        """The pod's main container has ended."""
        state = {
            "exitCode": code,
            "message": message,
            "reason": reason or ("Completed" if code == 0 else "Error"),
            "finishedAt": format_time(self.now),
        }
        self._post(name, "Failed" if code else "Succeeded", {"terminated": state})

    def launcher_ends(self, code: int, warning: str = "", unseen: bool = False, **failure: Any) -> None:
        """The launcher has ended, and said how; with a `warning` of a success. Settled, if not `unseen` yet."""
        pod = self.pods[self.name("launcher")]
        attempt = int(pod["metadata"]["labels"][contract.LABEL_ATTEMPT])
        world = int(self.status.ledger.attempt_workers * self.job["spec"].get("slotsPerWorker", 1))
        words = {
            "version": 1,
            "attempt": attempt,
            "outcome": "Failed" if code else "Succeeded",
            "worldSize": world,
            "ranksSucceeded": 0 if code else world,
        }
        if code:
            first = {"rank": 0, "pod": self.name("worker-0"), "exitCode": code, "reason": "RankFailed"}
            words["failure"] = first | failure
        if warning:
            words["warning"] = warning
        self.pod_ends(self.name("launcher"), code, json.dumps(words))
        self.report = None
        self._see(unseen)

    def launcher_says(self, phase: str, step: int = 0) -> None:
        """Set the launcher's /status answer from now on."""
        self.report = {
            "version": 1,
            "attempt": self.status.attempt,
            "phase": phase,
            "worldSize": self.status.ledger.attempt_workers,
            "workers": [
                {"index": i, "registered": phase != "Waiting"} for i in range(self.status.ledger.attempt_workers)
            ],
            "progress": {"step": step, "totalSteps": 100, "loss": 0.5, "samplesPerSecond": 10} if step else None,
            "lastProgressTime": self.now.timestamp() if step else None,
            "runningSince": None if phase == "Waiting" else self._since(self.status.attempt),
        }

    def world_is(self, formation: int, ranks: int, unseen: bool = False, **more: Any) -> None:
        """Set the world in the /status of an elastic job's launcher from now on. Settles, unless `unseen`."""
        self.launcher_says("Running")
        wanted = self.status.ledger.attempt_workers
        self.report["elastic"] = {
            "formation": formation,
            "phase": "Running",
            "ranks": ranks,
            "lostSteps": 0,
            "recoveries": 0,
            "lastRecoverySeconds": None,
            "degraded": ranks < wanted,
            **more,
        }
        self._see(unseen)

    def _since(self, attempt: int) -> float:
        """Return the time at which the attempt's gang was first reported complete."""
        return self.gangs.setdefault(attempt, self.now.timestamp())

    def evict(self, name: str) -> None:
        """The node's kubelet ends the pod under pressure."""
        self.pods[name]["status"] = {
            "phase": "Failed",
            "reason": "Evicted",
            "message": "The node was low on resource: memory.",
            "conditions": [{"type": "DisruptionTarget", "status": "True", "reason": "TerminationByKubelet"}],
        }

    def user_deletes(self, name: str) -> None:
        """Somebody deletes the pod; it ends within its grace period."""
        ending = format_time(self.now + timedelta(seconds=GRACE_S))
        self.pods[name]["metadata"]["deletionTimestamp"] = ending

    def pods_go(self) -> None:
        """Every pod that is being deleted has ended and is gone."""
        self.pods = {n: pod for n, pod in self.pods.items() if "deletionTimestamp" not in pod["metadata"]}

    def change(self, unseen: bool = False, **spec: Any) -> None:
        """The user changes the spec. Settled, if not `unseen` yet."""
        self.job["spec"].update(spec)
        self.job["metadata"]["generation"] += 1
        self._see(unseen)

    def scale(self, workers: int, unseen: bool = False) -> None:
        """The user changes the number of workers."""
        self.job["spec"]["worker"]["replicas"] = workers
        self.change(unseen)

    def _see(self, unseen: bool) -> None:
        if not unseen:
            self.settle()

    def name(self, suffix: str) -> str:
        """Full name of a pod."""
        return f"{self.job['metadata']['name']}-{suffix}"

    def uids(self) -> dict[str, str]:
        """The pods by name."""
        return {name: pod["metadata"]["uid"] for name, pod in self.pods.items()}

    def messages(self, reason: str) -> list[str]:
        """Messages of the events with this reason."""
        return [event.message for event in self.events if event.reason == reason]

    def reasons(self) -> list[str]:
        """Reasons of all events so far."""
        return [event.reason for event in self.events]

    def _post(self, name: str, phase: str, state: Json) -> None:
        container = {"name": self.pods[name]["spec"]["containers"][0]["name"], "state": state}
        self.pods[name]["status"] = {"phase": phase, "containerStatuses": [container]}

    def _create(self, obj: Json) -> None:
        obj = json.loads(json.dumps(obj))
        name = obj["metadata"]["name"]
        obj["metadata"]["creationTimestamp"] = format_time(self.now)
        if obj["kind"] == "PodGroup":
            ref = ObjectRef("PodGroup", name, obj["apiVersion"])
            assert ref not in self.groups, f"{ref} exists"
            obj["metadata"]["uid"] = f"uid-{self.writes}"
            self.groups[ref] = obj
            return
        if obj["kind"] in ("PodTemplate", "ProvisioningRequest"):
            version = obj["apiVersion"] if obj["kind"] == "ProvisioningRequest" else ""
            ref = ObjectRef(obj["kind"], name, version)
            assert ref not in self.asked, f"{ref} exists"
            obj["metadata"]["uid"] = f"uid-{self.writes}"
            self.asked[ref] = obj
            return
        if obj["kind"] != "Pod":
            self.objects[ObjectRef(obj["kind"], name)] = obj
            return
        assert name not in self.pods, f"{name} exists"
        obj["metadata"]["uid"] = f"uid-{self.writes}"
        obj["spec"]["nodeName"] = f"node-of-{name}"
        self.pods[name] = obj
        if incarnation := obj["metadata"]["labels"].get(contract.LABEL_INCARNATION):
            self.made.append((name, int(incarnation), obj["metadata"]["uid"]))

    def _change_workload(self, change: WorkloadChange) -> None:
        self.kueue.change(change, dict(self.pods))

    def harm(self, name: str) -> None:
        """Note that something befell the pod that was not the operator's doing."""
        incarnation = self.pods[name]["metadata"]["labels"].get(contract.LABEL_INCARNATION)
        self.harmed.add((name, int(incarnation or 0)))

    def _delete(self, deletion: Any) -> None:
        if deletion.ref.kind == contract.KIND:
            self.deleted = True
            return
        if deletion.ref in self.groups:
            assert self.groups.pop(deletion.ref)["metadata"]["uid"] == deletion.uid
            return
        if deletion.ref in self.asked:
            assert self.asked.pop(deletion.ref)["metadata"]["uid"] == deletion.uid
            return
        pod = self.pods[deletion.ref.name]
        assert pod["metadata"]["uid"] == deletion.uid
        if deletion.grace_s == 0:
            del self.pods[deletion.ref.name]
            return
        # As the API server does: a pod that has ended, or never ran, is gone at once.
        if (pod.get("status") or {}).get("phase", "Pending") != "Running":
            del self.pods[deletion.ref.name]
            return
        self.user_deletes(deletion.ref.name)


def settled(described: Json, **fields: Any) -> World:
    """A job whose objects were made."""
    w = World(described, **fields)
    w.settle()
    return w


def started(described: Json, **fields: Any) -> World:
    """A job whose gang runs."""
    w = World(described, **fields)
    w.start_gang()
    return w


def world(**run_policy: object) -> World:
    """Two workers with these policies, whose objects were made."""
    return settled(job(runPolicy=run_policy))


def running(**run_policy: object) -> World:
    """The same, with its gang running."""
    return started(job(runPolicy=run_policy))


def elastic(workers: int = 3, **fields: Any) -> World:
    """An elastic job of `workers` whose first formation runs; `fields` are of spec.elastic."""
    w = started(job(workers=workers, elastic={"maxReplicas": 8, **fields}))
    w.world_is(1, workers)
    return w


def condition(w: World, kind: ConditionType) -> tuple[str, str, str]:
    """Status, reason and message of a condition; empty while there is none."""
    found = w.status.condition(kind)
    return (found.status, found.reason, found.message) if found else ("", "", "")
