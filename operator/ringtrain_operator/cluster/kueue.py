"""Access to Kueue in this cluster: discovery of its API, and reading and writing of a job's Workload."""

import logging
import time
from collections.abc import Mapping
from typing import Any

from ..observe.pods import owned_by
from ..placement.kueue.view import KueueView, flavors_of, view_workload
from ..placement.kueue.workload import KUEUE_GROUP, PRIORITY_LABEL, workload_name
from ..plan.result import WorkloadChange
from ..spec.job import kueue_queue
from .api.client import ApiClient
from .api.errors import AlreadyExists, Conflict, Forbidden, NotFound, Unprocessable
from .api.resources import ApiResource
from .memory import ReconcileMemory

log = logging.getLogger(__name__)
Json = dict[str, Any]

# The newest first.
VERSIONS = ("v1beta2", "v1beta1")
PRIORITY_CLASSES = ApiResource("scheduling.k8s.io/v1", "PriorityClass", "priorityclasses", namespaced=False)
# ResourceFlavors and priority classes change rarely, and many jobs need the same few.
CACHE_S = 30.0


def workloads(version: str) -> ApiResource:
    """Return the resource of Kueue's Workloads in the API version `version`."""
    return ApiResource(f"{KUEUE_GROUP}/{version}", "Workload", "workloads")


class ClusterKueue:
    """Reader and writer of Kueue's Workloads. `version`: version of their API; empty in a cluster without Kueue."""

    def __init__(self, api: ApiClient) -> None:
        self._api = api
        self.version = ""
        self._read_objects: dict[tuple[str, str], tuple[float, Json]] = {}

    async def find(self) -> None:
        """Find out whether the API server serves Kueue's Workloads. Raises ApiError if a request fails."""
        self.version = await self._api.served_version(KUEUE_GROUP, VERSIONS)

    async def observe(self, job: Mapping[str, Any], memory: ReconcileMemory) -> KueueView | None:
        """Return the job's Workload and other state of Kueue; None in a cluster without Kueue. Raises ApiError if a
        request fails."""
        if not self.version:
            return None
        status = job.get("status") or {}
        waits = bool(queue_of_live_job(job)) or (status.get("ledger") or {}).get("queuedAs") == "Workload"
        if not waits:
            return KueueView(self.version)
        workload = await memory.workload.read(lambda: self._read(job))
        if workload is None and status.get("state") in ("Succeeded", "Failed"):
            return KueueView(self.version)
        if workload is None:
            priority, problem = await self._priority(job)
            return KueueView(self.version, None, priority, memory.workload_refused or problem)
        flavors = {name: await self._flavor(name) for name in flavors_of(workload)}
        view = view_workload(workload, flavors, ours=owned_by(workload, job["metadata"]["uid"]))
        return KueueView(self.version, view)

    async def change(self, job: Mapping[str, Any], change: WorkloadChange, memory: ReconcileMemory) -> bool:
        """Apply a plan's change of a Workload. Returns whether the API refused it for a reason to show to users."""
        namespace, resource = job["metadata"]["namespace"], workloads(self.version)
        memory.outdate("Workload")
        refused = ""
        try:
            if change.verb == "create":
                await self._api.create_unread(resource, namespace, change.body)
            elif change.verb == "delete" and change.deletion is not None:
                await self._api.delete(resource, namespace, change.deletion.ref.name, uid=change.deletion.uid)
            else:
                body = change.body
                await self._api.patch(
                    resource,
                    namespace,
                    body["name"],
                    body["patch"],
                    subresource=body["subresource"] or None,
                    kind="json",
                )
        except AlreadyExists:
            pass  # created by an earlier request, or by another owner: it is read next
        except NotFound as absent:
            log.debug("the job's Kueue Workload could not be changed, because an object does not exist: %s", absent)
            if change.verb == "create":
                refused = absent.message  # Kueue or the namespace is being deleted
        except Conflict:
            if change.verb != "delete":
                raise
        except (Forbidden, Unprocessable) as exc:
            refused = f"the API refused its Workload: {exc.message}"
            log.warning("%s", refused, extra={"job": f"{namespace}/{job['metadata']['name']}"})
        memory.workload_refused = refused
        return bool(refused)

    async def _read(self, job: Mapping[str, Any]) -> Json | None:
        namespace = job["metadata"]["namespace"]
        try:
            return await self._api.get(workloads(self.version), namespace, workload_name_of(job))
        except NotFound:
            return None

    async def _flavor(self, name: str) -> Json:
        resource = ApiResource(f"{KUEUE_GROUP}/{self.version}", "ResourceFlavor", "resourceflavors", namespaced=False)
        return dict((await self._known(resource, name)).get("spec") or {})

    async def _priority(self, job: Mapping[str, Any]) -> tuple[Json, str]:
        """Return the priority fields of a new Workload, and what is wrong with the job's priority class (or empty)."""
        labels = job["metadata"].get("labels") or {}
        if name := labels.get(PRIORITY_LABEL):
            group, kind, plural = KUEUE_GROUP, "WorkloadPriorityClass", "workloadpriorityclasses"
            resource = ApiResource(f"{KUEUE_GROUP}/{self.version}", kind, plural, namespaced=False)
        elif name := priority_class_of(job):
            group, kind, resource = "scheduling.k8s.io", "PriorityClass", PRIORITY_CLASSES
        else:
            return {"priority": 0}, ""
        try:
            found = await self._known(resource, name)
        except NotFound:
            return {}, f"{kind} {name!r} does not exist"
        except Forbidden as exc:
            return {}, f"{kind} {name!r} cannot be read: {exc.message}"
        value = {"priority": int(found.get("value") or 0)}
        if self.version == "v1beta1":
            return {**value, "priorityClassName": name, "priorityClassSource": f"{group}/{kind.lower()}"}, ""
        return {**value, "priorityClassRef": {"group": group, "kind": kind, "name": name}}, ""

    async def _known(self, resource: ApiResource, name: str) -> Json:
        """Return a cluster-scoped object, such as a PriorityClass, which is read once per CACHE_S seconds at most."""
        key, now = (resource.kind, name), time.monotonic()
        read_at, found = self._read_objects.get(key, (float("-inf"), {}))
        if now - read_at < CACHE_S:
            return found
        found = await self._api.get(resource, None, name)
        self._read_objects[key] = (now, found)
        return found


def queue_of_live_job(job: Mapping[str, Any]) -> str:
    """Return the LocalQueue of a job as read from the API, even if its spec is invalid."""
    wanted = (job.get("spec") or {}).get("scheduling") or {}
    return kueue_queue(wanted.get("queue"), job["metadata"].get("labels") or {}, wanted.get("gang"))


def workload_name_of(job: Mapping[str, Any]) -> str:
    """Return the name of the Workload of a job as read from the API."""
    meta = job["metadata"]
    return workload_name(meta["name"], meta["uid"], meta.get("labels") or {})


def priority_class_of(job: Mapping[str, Any]) -> str:
    """Return the PriorityClass in a job's worker template or, without one, in spec.scheduling; empty if none is set."""
    wanted = (job.get("spec") or {}).get("scheduling") or {}
    template = ((job.get("spec") or {}).get("worker") or {}).get("template") or {}
    return str((template.get("spec") or {}).get("priorityClassName") or wanted.get("priorityClassName") or "")
