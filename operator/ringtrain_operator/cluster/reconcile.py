"""One reconcile of one job: observe, plan, write the status, apply, send Events.

Events are written after the status that they describe.
"""

import hashlib
import logging
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from .. import contract
from ..build import BuildSettings
from ..build.names import ObjectRef
from ..observe.model import Observed
from ..observe.pods import main_container, status_token
from ..plan import Plan, PlannedEvent, plan_object
from ..status.model import format_time, parse_status
from ..status.progress import pods_document
from .api.client import ApiClient
from .api.errors import AlreadyExists, ApiError, NotFound, NotLeader
from .api.resources import EVENTS, JOBS
from .apply import apply_plan
from .gangs import ClusterGangs
from .kueue import ClusterKueue
from .memory import ReconcileMemory
from .metrics import OperatorMetrics
from .observe import ClusterReading, NodeResources, observe_job
from .own_queue import WaitingJobs
from .pod_schema import ServedPodSchema
from .poll import Document, LauncherPollEndpoint, LauncherPoller, LauncherPollWish, read_sites
from .provisioning import ClusterAutoscaler
from .queue import JobKey, ReconcileQueue
from .templates import merge_job_template
from .versions import ResourceVersions

log = logging.getLogger(__name__)
# Interval at which to read unknown sites of workers again; much shorter than a launcher's start timeout.
_SITES_AGAIN_S = 10.0
Json = dict[str, Any]
Clock = Callable[[], datetime]


def utc_now() -> datetime:
    """Return the current time in UTC."""
    return datetime.now(UTC)


class Reconciler:
    """Reconciler of jobs. Everything that it caches can be read again."""

    def __init__(
        self,
        versions: ResourceVersions,
        queue: ReconcileQueue,
        poller: LauncherPoller,
        metrics: OperatorMetrics,
        clock: Clock,
        settings: BuildSettings,
        gangs: ClusterGangs,
        provisioning: ClusterAutoscaler,
    ) -> None:
        self._settings = settings
        self._api = versions.api
        self._versions = versions
        self.pod_schema = ServedPodSchema(versions.api)
        self._queue = queue
        self._poller = poller
        self._metrics = metrics
        self._clock = clock
        self.waiting_jobs = WaitingJobs(clock)
        self._nodes = NodeResources(versions.api)
        self.kueue = ClusterKueue(versions.api)
        self.gangs = gangs
        self.provisioning = provisioning
        self._memories: dict[str, ReconcileMemory] = {}
        self._uids: dict[JobKey, str] = {}

    async def reconcile(self, key: JobKey) -> None:
        """Reconcile the job `key` once. Raises ApiError, after which the caller must try again."""
        try:
            job = await self._api.get(JOBS, key.namespace, key.name)
        except NotFound:
            self._forget(key)
            return
        memory = self._memory_of(key, job)
        now = self._clock()
        merged = await merge_job_template(self._api, job)
        job = merged.job
        reading = await observe_job(self._versions, job, memory, self._poller.answer(key), now)
        reading = await self._with_others(reading)
        kueue, gangs = await self.kueue.observe(job, memory), await self.gangs.observe(job, memory)
        provisioning = await self.provisioning.observe(job, memory)
        observed = replace(
            reading.observed,
            kueue=kueue,
            gangs=gangs,
            provisioning=provisioning,
            template=merged.template,
            template_problem=merged.problem,
        )
        reading = replace(reading, observed=observed)
        plan = self._plan(job, reading.observed, now)
        job = await self._write_status(key, job, plan)
        if plan.status and not plan.acts and self._settles(job, reading, now):
            self._versions.record_settled(key, job["metadata"]["resourceVersion"])
        self._wake(self.waiting_jobs.update(key, job, reading.observed.pods))
        surprised = await apply_plan(self._versions, job, plan, memory)
        refused = plan.workload is not None and await self.kueue.change(job, plan.workload, memory)
        await send_events(self._api, job, plan.events)
        await self._follow_up(key, job, reading, plan, memory)
        if surprised:
            self._queue.add(key)
        elif memory.refusals or memory.foreign or refused or _has_reconcile_problem(reading):
            self._queue.retry(key)
        else:
            self._queue.succeeded(key)

    def object_deleted(self, key: JobKey, ref: ObjectRef) -> None:
        """Record that an object of the job other than a pod was deleted."""
        memory = self._memories.get(self._uids.get(key, ""))
        if memory is not None:
            memory.object_deleted(ref)

    def extra_changed(self, key: JobKey, kind: str) -> None:
        """Record that the job's Workload, PodGroup or ProvisioningRequest was changed or deleted."""
        memory = self._memories.get(self._uids.get(key, ""))
        if memory is not None:
            memory.outdate(kind)

    async def _write_status(self, key: JobKey, job: Json, plan: Plan) -> Json:
        """Write the plan's status, if it has one, and return the changed job. Raises Conflict if the job changed."""
        if plan.status is None:
            self._metrics.record_status(key, job.get("status") or {})
            return job
        version = job["metadata"]["resourceVersion"]
        patch = [
            {"op": "replace", "path": "/metadata/resourceVersion", "value": version},
            {"op": "add", "path": "/status", "value": plan.status},
        ]
        written = await self._api.patch(JOBS, key.namespace, key.name, patch, subresource="status", kind="json")
        self._count(key, job, plan.status)
        return {**job, "metadata": written["metadata"], "status": plan.status}

    def _count(self, key: JobKey, job: Json, status: Mapping[str, Any]) -> None:
        before = job.get("status") or {}
        state = str(status.get("state") or "Pending")
        self._metrics.record_status(key, status)
        if state == "Running" and before.get("state") != "Running" and status.get("attempt") == 1:
            born = datetime.fromisoformat(job["metadata"]["creationTimestamp"].replace("Z", "+00:00"))
            self._metrics.time_to_running.observe(max(0.0, time.time() - born.timestamp()))
        self._metrics.status_changed(before, status)

    def _plan(self, job: Json, observed: Observed, now: datetime) -> Plan:
        return plan_object(job, observed, now, replace(self._settings, pod_schema=self.pod_schema.current))

    def _settles(self, job: Json, reading: ClusterReading, now: datetime) -> bool:
        """Return whether a second plan, for the written status and the same observation, changes nothing."""
        again = self._plan(job, replace(reading.observed, status=job["status"]), now)
        return not (again.acts or again.status)

    async def _follow_up(
        self, key: JobKey, job: Json, reading: ClusterReading, plan: Plan, memory: ReconcileMemory
    ) -> None:
        endpoint = launcher_endpoint(reading)
        if endpoint is not None and not _finished_job(job):
            workers = wanted_workers(job)
            wish = LauncherPollWish(workers, dict(memory.lost_incarnations)) if workers is not None else None
            status = parse_status(job.get("status"))
            before = memory.reported_events[1] if memory.reported_events[0] == status.attempt else ()
            body = pods_document(status, reading.observed.pods, before)
            memory.reported_events = status.attempt, tuple(body["events"])
            self._poller.watch(key, endpoint, wish, body, await self._sites_of(key, job, reading, memory))
        else:
            self._poller.forget(key)
        if plan.requeue_after_s is not None:
            self._queue.add_after(key, plan.requeue_after_s)

    async def _sites_of(
        self, key: JobKey, job: Json, reading: ClusterReading, memory: ReconcileMemory
    ) -> Document | None:
        label = (job["spec"].get("networking") or {}).get("sites")
        if not label:
            return None
        workers = int((job["status"].get("ledger") or {}).get("attemptWorkers") or 0)
        if job["spec"].get("elastic") is not None:  # its workers change: report those that have a node
            workers = 1
        sites = await read_sites(self._api, label, workers, reading.observed.pods, memory.sites)
        if sites is None:  # a node that becomes readable triggers no event
            self._queue.add_after(key, _SITES_AGAIN_S)
        return sites

    def _memory_of(self, key: JobKey, job: Json) -> ReconcileMemory:
        uid = job["metadata"]["uid"]
        if self._uids.get(key) != uid:
            self._forget(key)
            self._uids[key] = uid
        if _finished_job(job):
            self._memories.pop(uid, None)
            return ReconcileMemory()
        return self._memories.setdefault(uid, ReconcileMemory())

    async def _with_others(self, reading: ClusterReading) -> ClusterReading:
        """Return `reading` with the queue of waiting jobs, and, if the job waits for placement, with the devices of all
        nodes."""
        observed = replace(reading.observed, contention=self.waiting_jobs.contention())
        ledger = observed.status.get("ledger") or {}
        if (
            ledger.get("tooLarge")
            or ledger.get("queuedSince")
            or any(pod.place.unschedulable_since and not pod.outlives_attempts for pod in observed.pods)
        ):
            self.waiting_jobs.nodes = await self._nodes.read()
            observed = replace(observed, nodes=self.waiting_jobs.nodes)
        return replace(reading, observed=observed)

    def _wake(self, keys: tuple[JobKey, ...]) -> None:
        for key in keys:
            self._queue.add(key)

    def _forget(self, key: JobKey) -> None:
        uid = self._uids.pop(key, "")
        self._versions.forget(key)
        self._wake(self.waiting_jobs.forget(key))
        self._memories.pop(uid, None)
        self._poller.forget(key)
        self._queue.forget(key)
        self._metrics.job_deleted(key)


def _has_reconcile_problem(reading: ClusterReading) -> bool:
    kueue = reading.observed.kueue
    return kueue is not None and bool(kueue.problem)


def wanted_workers(job: Json) -> int | None:
    """Return the number of workers that an elastic job's launcher must know; None for any other job."""
    ledger = (job.get("status") or {}).get("ledger") or {}
    return int(ledger.get("attemptWorkers") or 0) or None if job["spec"].get("elastic") else None


def launcher_endpoint(reading: ClusterReading) -> LauncherPollEndpoint | None:
    """Return URL and token of the running launcher's /status; None if no launcher runs."""
    for pod in reading.pods:
        labels, status = pod["metadata"].get("labels") or {}, pod.get("status") or {}
        if labels.get(contract.LABEL_ROLE) != contract.ROLE_LAUNCHER or status.get("phase") != "Running":
            continue
        address = status.get("podIP")
        if address and "deletionTimestamp" not in pod["metadata"]:
            host = f"[{address}]" if ":" in address else address
            return LauncherPollEndpoint(f"http://{host}:{_status_port(pod)}/status", status_token(pod))
    return None


def _status_port(pod: Json) -> str:
    env = main_container(pod).get("env") or []
    return next((e["value"] for e in env if e["name"] == contract.ENV_STATUS_PORT), str(contract.PORT_STATUS))


def _finished_job(job: Json) -> bool:
    return (job.get("status") or {}).get("state") in ("Succeeded", "Failed")


REPORTER = "ringtrain-operator"
_MESSAGE_MAX = 1024  # the API's limit on an Event's message


async def send_events(api: ApiClient, job: Mapping[str, Any], events: Iterable[PlannedEvent]) -> None:
    """Write Kubernetes Events about a job. Repeated ones increment a count, also after an operator's restart.

    An event that cannot be written is logged and dropped, because it is not part of the state.
    """
    for event in events:
        try:
            await _send_event(api, job, event)
        except NotLeader:
            raise
        except ApiError as exc:
            log.warning("event %s on %s was not written: %s", event.reason, job["metadata"]["name"], exc)


async def _send_event(api: ApiClient, job: Mapping[str, Any], event: PlannedEvent) -> None:
    meta = job["metadata"]
    namespace, now = meta["namespace"], format_time(datetime.now(UTC))
    body = _build_event(job, event, now)
    try:
        await api.create(EVENTS, namespace, body)
    except AlreadyExists:
        name = body["metadata"]["name"]
        known = await api.get(EVENTS, namespace, name)
        count = int(known.get("count") or 1) + 1
        await api.patch(EVENTS, namespace, name, {"count": count, "lastTimestamp": now})


def _build_event(job: Mapping[str, Any], event: PlannedEvent, now: str) -> dict[str, Any]:
    meta = job["metadata"]
    identity = "\n".join((meta["uid"], event.type, event.reason, event.message))
    digest = hashlib.sha256(identity.encode()).hexdigest()[:16]
    return {
        "apiVersion": EVENTS.api_version,
        "kind": EVENTS.kind,
        "metadata": {"name": f"{meta['name']}.{digest}", "namespace": meta["namespace"]},
        "involvedObject": {
            "apiVersion": job["apiVersion"],
            "kind": job["kind"],
            "name": meta["name"],
            "namespace": meta["namespace"],
            "uid": meta["uid"],
            "resourceVersion": meta["resourceVersion"],
        },
        "type": event.type,
        "reason": event.reason,
        "message": event.message[:_MESSAGE_MAX],
        "source": {"component": REPORTER},
        "reportingComponent": REPORTER,
        "reportingInstance": REPORTER,
        "firstTimestamp": now,
        "lastTimestamp": now,
        "count": 1,
    }
