"""Jobs that compete for devices in simulated time: a scheduler that places pod by pod, in any order."""

import random
from dataclasses import dataclass, field
from datetime import timedelta

from ringtrain_operator.cluster.own_queue import WaitingJobs
from ringtrain_operator.cluster.queue import JobKey
from ringtrain_operator.observe.model import Observed
from ringtrain_operator.placement.own_queue import PlacementContention
from ringtrain_operator.plan import Plan
from ringtrain_operator.status.model import format_time
from support.jobs import job
from support.planworld import START, Json, World

DEVICE = "nvidia.com/gpu"


@dataclass(frozen=True)
class Ask:
    """One job: workers with so many devices each, which run for `run_s`, submitted after `after_s`.

    `nowhere`: no node has the labels that its pods ask for; `launcher_nowhere`: that its launcher does.
    """

    workers: int = 4
    devices: int = 2
    run_s: int = 20
    after_s: int = 0
    timeout_s: int = 300
    nowhere: bool = False
    launcher_nowhere: bool = False


@dataclass(frozen=True)
class GaveBack:
    """Second in which a job released its devices, and the job that was then first in the queue (empty: none)."""

    at: int
    others_first: str


@dataclass
class Tenant(World):
    """A job whose pods are placed by the crowd's scheduler."""

    ask: Ask = Ask()
    contention: PlacementContention = field(default_factory=PlacementContention)
    devices_of_nodes: tuple[int, ...] = ()
    look_at: float | None = 0.0
    runs_until: float | None = None
    gave_back: list[GaveBack] = field(default_factory=list)

    def observed(self) -> Observed:
        nodes = {f"node-{i}": {DEVICE: amount} for i, amount in enumerate(self.devices_of_nodes)}
        return Observed(**{**vars(super().observed()), "contention": self.contention, "nodes": nodes})

    def _create(self, obj: Json) -> None:
        super()._create(obj)
        if obj["kind"] == "Pod":
            del self.pods[obj["metadata"]["name"]]["spec"]["nodeName"]

    def needs(self, name: str) -> int:
        return 0 if name.endswith("launcher") else self.ask.devices

    @property
    def holds(self) -> int:
        """Devices of its pods that have a node."""
        return sum(self.needs(name) for name, pod in self.pods.items() if "nodeName" in pod["spec"])


class Crowd:
    """`tick()` lets a second pass: jobs end, the scheduler places what it can, operators look at what changed."""

    def __init__(self, asks: list[Ask], nodes: tuple[int, ...] = (4, 4), seed: int = 0) -> None:
        self.nodes, self._order, self.seconds = nodes, random.Random(seed), 0
        self.waiting_jobs = WaitingJobs(lambda: START + timedelta(seconds=self.seconds))
        self.tenants: list[Tenant] = []
        for number, ask in enumerate(asks):
            worker = job(workers=ask.workers)["spec"]["worker"]
            worker |= {"devices": {DEVICE: ask.devices}} if ask.devices else {}
            found = job(f"job-{number}", worker=worker, scheduling={"timeoutSeconds": ask.timeout_s})
            found["metadata"]["creationTimestamp"] = format_time(START + timedelta(seconds=ask.after_s))
            tenant = Tenant(found, ask=ask, devices_of_nodes=nodes, look_at=float(ask.after_s))
            tenant.job["metadata"]["uid"] = f"uid-{self._order.random()}"
            self.tenants.append(tenant)

    @property
    def running(self) -> list[Tenant]:
        """Jobs whose gang runs now."""
        return [t for t in self.tenants if t.status.state == "Running"]

    @property
    def unfinished(self) -> list[Tenant]:
        """Jobs that were submitted and have not ended."""
        return [t for t in self.tenants if t.ask.after_s <= self.seconds and not t.status.finished]

    def tick(self) -> None:
        """One second."""
        self.seconds += 1
        for tenant in self.tenants:
            tenant.now = START + timedelta(seconds=self.seconds)
            self._end(tenant)
        self._schedule()
        while due := [t for t in self.tenants if t.look_at is not None and t.look_at <= self.seconds]:
            self._look(self._order.choice(due))

    def _end(self, tenant: Tenant) -> None:
        if any("deletionTimestamp" in pod["metadata"] for pod in tenant.pods.values()):
            tenant.pods_go()
            tenant.look_at = self.seconds
        if tenant.runs_until is None or self.seconds < tenant.runs_until:
            return
        for name in tenant.pods:
            tenant.pod_ends(name, 0)
        tenant.launcher_ends(0, unseen=True)
        tenant.runs_until, tenant.look_at = None, self.seconds

    def _schedule(self) -> None:
        waiting = [(t, n) for t in self.tenants for n, pod in t.pods.items() if "nodeName" not in pod["spec"]]
        self._order.shuffle(waiting)
        for tenant, name in waiting:
            free = self._free()
            fitting = [node for node, amount in free.items() if amount >= tenant.needs(name)]
            nowhere = tenant.ask.nowhere or (tenant.ask.launcher_nowhere and name.endswith("launcher"))
            if nowhere:
                fitting = []
            if fitting:
                pod = tenant.pods[name]
                pod["spec"]["nodeName"] = self._order.choice(fitting)
                tenant.pod_runs(name)
                self._placed(pod, "True")
                tenant.look_at = self.seconds
            elif "status" not in tenant.pods[name]:
                tenant.pods[name]["status"] = {"phase": "Pending"}
                self._placed(tenant.pods[name], "False", nowhere)
                tenant.look_at = self.seconds
        for tenant in self.tenants:
            self._start(tenant)

    def _placed(self, pod: Json, status: str, nowhere: bool = False) -> None:
        found = {"type": "PodScheduled", "status": status, "reason": "Unschedulable" if status == "False" else ""}
        now, count = format_time(START + timedelta(seconds=self.seconds)), len(self.nodes)
        # kube-scheduler's words, as of Kubernetes 1.34
        why = "node(s) didn't match Pod's node affinity/selector" if nowhere else f"Insufficient {DEVICE}"
        helps = "Preemption is not helpful for scheduling" if nowhere else "No preemption victims found"
        message = (
            f"0/{count} nodes are available: {count} {why}. no new claims to deallocate, preemption: "
            f"0/{count} nodes are available: {count} {helps}."
        )
        pod["status"]["conditions"] = [{**found, "lastTransitionTime": now, "message": message}]

    def _start(self, tenant: Tenant) -> None:
        names = [name for name, pod in tenant.pods.items() if "deletionTimestamp" not in pod["metadata"]]
        whole = len(names) == tenant.ask.workers + 1 and all("nodeName" in tenant.pods[n]["spec"] for n in names)
        if whole and tenant.runs_until is None and not tenant.status.finished:
            tenant.launcher_says("Running", step=1)
            tenant.runs_until, tenant.look_at = self.seconds + tenant.ask.run_s, self.seconds

    def _free(self) -> dict[str, int]:
        free = {f"node-{i}": amount for i, amount in enumerate(self.nodes)}
        for tenant in self.tenants:
            for name, pod in tenant.pods.items():
                ended = (pod.get("status") or {}).get("phase") in ("Succeeded", "Failed")
                if "nodeName" in pod["spec"] and not ended:
                    free[pod["spec"]["nodeName"]] -= tenant.needs(name)
        assert min(free.values()) >= 0
        return free

    def _look(self, tenant: Tenant) -> None:
        key = JobKey("default", tenant.job["metadata"]["name"])
        self.waiting_jobs.nodes = tenant.observed().nodes
        tenant.contention = self.waiting_jobs.contention()
        plan, attempt, waits = tenant.plan(), tenant.status.attempt, tenant.status.state == "Queued"
        first = next((one for one in tenant.contention.order if one.job != str(key)), None)
        tenant.apply(plan)
        if tenant.status.state == "Queued" and not waits and attempt:
            tenant.gave_back.append(GaveBack(self.seconds, first.job if first is not None else ""))
        tenant.look_at = self._next_look(plan)
        for other in self.waiting_jobs.update(key, tenant.job, tenant.observed().pods):
            next(t for t in self.tenants if t.job["metadata"]["name"] == other.name).look_at = self.seconds

    def _next_look(self, plan: Plan) -> float | None:
        if plan.create or plan.delete or plan.status:
            return self.seconds
        return None if plan.requeue_after_s is None else self.seconds + max(plan.requeue_after_s, 1)
