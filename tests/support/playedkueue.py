"""Kueue for pure tests: it has one Workload, and the test says what Kueue does to it."""

import json
from dataclasses import dataclass, field
from typing import Any

from ringtrain_operator.placement.kueue.view import KueueView, view_workload
from ringtrain_operator.plan.result import WorkloadChange

Json = dict[str, Any]


@dataclass
class PlayedKueue:
    """One Workload, and the requests. `pods_at_release`: existing pods at the time of the quota's release."""

    version: str = "v1beta2"
    workload: Json | None = None
    flavors: dict[str, Json] = field(default_factory=dict)
    priority: Json = field(default_factory=lambda: {"priority": 0})
    problem: str = ""
    versions: int = 0
    writes: list[str] = field(default_factory=list)
    pods_at_release: list[str] = field(default_factory=list)

    def view(self) -> KueueView:
        """Return the operator's view."""
        seen = view_workload(self.workload, self.flavors) if self.workload is not None else None
        return KueueView(self.version, seen, self.priority, self.problem)

    def change(self, change: WorkloadChange, pods: Json) -> None:
        """Apply the operator's requests as the API server does."""
        self.writes.append(change.verb)
        if change.verb == "create":
            assert self.workload is None, "the Workload exists"
            self.workload = {"status": {}, **json.loads(json.dumps(change.body))}
            self.workload["metadata"]["uid"] = f"workload-{self._next_version()}"
            self._touch()
        elif change.verb == "delete":
            assert change.deletion.uid == self.workload["metadata"]["uid"]
            self.workload = None
            self.pods_at_release += pods
        else:
            self._patch(change.body["patch"], pods)

    def admit(self, workers: int | None = None, *, flavor: str = "default", **more: Any) -> None:
        """Reserve quota in `flavor` for this number of workers, and admit. `more`: fields of each assignment."""
        counts = {p["name"]: p["count"] for p in self.workload["spec"]["podSets"]}
        counts["workers"] = workers or counts["workers"]
        given = [{"name": n, "count": c, "flavors": {"cpu": flavor}, **more} for n, c in counts.items()]
        self.workload["status"]["admission"] = {"clusterQueue": "all", "podSetAssignments": given}
        self.says("QuotaReserved", "True", "QuotaReserved", "Quota reserved in ClusterQueue all")
        self.says("Admitted", "True", "Admitted", "The workload is admitted")
        self.says("Evicted", "False", "QuotaReserved", "")

    def evict(self, reason: str = "Preempted", message: str = "Preempted to accommodate a workload") -> None:
        """Request the quota back."""
        self.says("Evicted", "True", reason, message)

    def says(self, kind: str, status: str, reason: str, message: str) -> None:
        """Set a condition."""
        new = {"type": kind, "status": status, "reason": reason, "message": message, "lastTransitionTime": "now"}
        kept = [c for c in self.workload["status"].get("conditions") or [] if c["type"] != kind]
        self.workload["status"]["conditions"] = [*kept, new]
        self._touch()

    def condition(self, kind: str) -> tuple[str, str]:
        """Return status and reason of a condition; empty if it does not exist."""
        found = (self.workload or {}).get("status", {}).get("conditions") or []
        return next(((c["status"], c["reason"]) for c in found if c["type"] == kind), ("", ""))

    def _patch(self, patch: list[Json], pods: Json) -> None:
        assert patch[0]["value"] == self.workload["metadata"]["resourceVersion"]
        held = "admission" in self.workload["status"]
        for step in patch[1:]:
            *parents, last = step["path"].strip("/").split("/")
            target: Any = self.workload
            for part in parents:
                target = target[int(part)] if isinstance(target, list) else target[part]
            if step["op"] == "remove":
                del target[last]
            else:
                target[last] = step["value"]
        if held and "admission" not in self.workload["status"]:
            self.pods_at_release += pods
        self._touch()

    def _touch(self) -> None:
        self.workload["metadata"]["resourceVersion"] = self._next_version()

    def _next_version(self) -> str:
        self.versions += 1
        return str(self.versions)
