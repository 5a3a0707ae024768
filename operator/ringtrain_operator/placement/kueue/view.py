"""A job's Workload in Kueue, parsed for `plan`: its quota, the fields for its pods, and Kueue's messages."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

Json = Mapping[str, Any]

# Scheduling gate of pods whose place in the topology Kueue chooses.
TOPOLOGY_GATE = "kueue.x-k8s.io/topology"
WORKLOAD_ANNOTATION = "kueue.x-k8s.io/workload"
# Annotations that mark a pod for topology-aware scheduling by Kueue.
TOPOLOGY_ANNOTATIONS = {
    "required": "kueue.x-k8s.io/podset-required-topology",
    "preferred": "kueue.x-k8s.io/podset-preferred-topology",
}
UNCONSTRAINED_ANNOTATION = "kueue.x-k8s.io/podset-unconstrained-topology"
POD_SET_LABEL = "kueue.x-k8s.io/podset"


@dataclass(frozen=True)
class Grant:
    """Kueue's admission of one pod set: the number of pods, and fields to merge into each pod."""

    count: int
    labels: Mapping[str, str] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)
    node_selector: Mapping[str, str] = field(default_factory=dict)
    tolerations: tuple[Json, ...] = ()
    gates: tuple[str, ...] = ()

    def with_flavors(self, flavors: Sequence[Json]) -> "Grant":
        """Return a copy that adds the node labels and tolerations of these ResourceFlavors."""
        return self.with_updates(
            [{"nodeSelector": f.get("nodeLabels"), "tolerations": f.get("tolerations")} for f in flavors]
        )

    def with_updates(self, updates: Sequence[Json]) -> "Grant":
        """Return a copy that adds the pod fields which these admission checks request."""
        grant = self
        for update in updates:
            new = [t for t in update.get("tolerations") or () if t not in grant.tolerations]
            grant = replace(
                grant,
                labels={**grant.labels, **(update.get("labels") or {})},
                annotations={**grant.annotations, **(update.get("annotations") or {})},
                node_selector={**grant.node_selector, **(update.get("nodeSelector") or {})},
                tolerations=(*grant.tolerations, *new),
            )
        return grant


@dataclass(frozen=True)
class WorkloadView:
    """One Workload. `counts`: pods that the spec requests, by pod set. `grants`: pods that Kueue admitted, by pod
    set. `foreign`: whether this Workload has the name of the job's Workload but belongs to another owner."""

    name: str
    uid: str
    version: str
    queue: str
    counts: Mapping[str, int]
    conditions: tuple[Json, ...] = ()
    grants: Mapping[str, Grant] = field(default_factory=dict)
    checks: tuple[Json, ...] = ()
    reclaimed: Mapping[str, int] = field(default_factory=dict)
    active: bool = True
    ending: bool = False
    foreign: bool = False
    has_owner: bool = True

    def condition(self, kind: str) -> Json | None:
        """Return the Workload's condition of type `kind`; None if absent."""
        return next((c for c in self.conditions if c.get("type") == kind), None)

    def is_true(self, kind: str) -> bool:
        """Return whether the Workload's condition of type `kind` is True."""
        found = self.condition(kind)
        return found is not None and found.get("status") == "True"

    @property
    def reserved(self) -> bool:
        """Whether Kueue has reserved quota for the Workload."""
        return self.is_true("QuotaReserved")

    @property
    def evicted(self) -> Json | None:
        """The Workload's condition Evicted, if Kueue has evicted the Workload; otherwise None."""
        return self.condition("Evicted") if self.is_true("Evicted") else None

    @property
    def may_run(self) -> bool:
        """Whether the job's pods may exist."""
        return self.is_true("Admitted") and not (self.evicted or self.ending or self.foreign or self.finished)

    @property
    def finished(self) -> bool:
        """Whether Kueue counts the Workload as finished, which is permanent."""
        return self.is_true("Finished")

    @property
    def words(self) -> str:
        """Reason why the Workload waits, as Kueue reports it."""
        if not self.active:
            return "the Workload is deactivated (spec.active: false)" + _message(self.evicted)
        waiting = [c for c in self.checks if c.get("state") != "Ready"]
        if self.reserved and waiting:
            text = waiting[0].get("message") or waiting[0].get("state")
            return f"quota is reserved; admission check {waiting[0].get('name')}: {text}"
        quota = self.condition("QuotaReserved")
        return str((quota or {}).get("message") or "Kueue has not processed it yet")


@dataclass(frozen=True)
class KueueView:
    """A job's Workload, and data for a new one, in a cluster where the operator may write Workloads.

    `version`: version of Kueue's API. `priority`: fields for a new Workload. `problem`: reason for which none can be
    created.
    """

    version: str
    workload: WorkloadView | None = None
    priority: dict[str, Any] = field(default_factory=dict)
    problem: str = ""


def flavors_of(workload: Json) -> tuple[str, ...]:
    """Return the names of the ResourceFlavors that the admission of a Workload assigns."""
    return tuple(dict.fromkeys(name for given in _assignments(workload) for name in _flavors(given)))


def view_workload(workload: Json, flavors: Mapping[str, Json], *, ours: bool = True) -> WorkloadView:
    """Parse a Workload. `flavors`: spec of each assigned ResourceFlavor. `ours`: whether the job controls it."""
    metadata, spec, status = workload["metadata"], workload.get("spec") or {}, workload.get("status") or {}
    checks = tuple(status.get("admissionChecks") or ())
    pod_sets = {str(p["name"]): p for p in spec.get("podSets") or ()}
    owners = metadata.get("ownerReferences") or ()
    return WorkloadView(
        name=str(metadata["name"]),
        uid=str(metadata.get("uid") or ""),
        version=str(metadata.get("resourceVersion") or ""),
        queue=str(spec.get("queueName") or ""),
        counts={name: int(pod_set.get("count") or 0) for name, pod_set in pod_sets.items()},
        conditions=tuple(status.get("conditions") or ()),
        grants={
            str(given["name"]): _grant(str(metadata["name"]), given, pod_sets.get(str(given["name"])) or {})
            .with_flavors([flavors.get(name) or {} for name in _flavors(given)])
            .with_updates([u for c in checks for u in c.get("podSetUpdates") or () if u["name"] == given["name"]])
            for given in _assignments(workload)
        },
        checks=checks,
        reclaimed={str(r["name"]): int(r["count"]) for r in status.get("reclaimablePods") or ()},
        active=spec.get("active") is not False,
        ending="deletionTimestamp" in metadata,
        foreign=bool(owners) and not ours,
        has_owner=bool(owners),
    )


def _assignments(workload: Json) -> Sequence[Json]:
    return ((workload.get("status") or {}).get("admission") or {}).get("podSetAssignments") or ()


def _flavors(assigned: Json) -> tuple[str, ...]:
    return tuple(dict.fromkeys(map(str, (assigned.get("flavors") or {}).values())))


def _grant(name: str, assigned: Json, pod_set: Json) -> Grant:
    """Return Kueue's admission of a pod set. If Kueue places the pods in a topology, the admission adds a scheduling
    gate to them."""
    count = assigned.get("count")
    annotations: dict[str, str] = {WORKLOAD_ANNOTATION: name}
    gates: tuple[str, ...] = ()
    if assigned.get("topologyAssignment") or assigned.get("delayedTopologyRequest"):
        request = pod_set.get("topologyRequest") or {}
        levels = {key: str(request[level]) for level, key in TOPOLOGY_ANNOTATIONS.items() if request.get(level)}
        annotations |= levels or {UNCONSTRAINED_ANNOTATION: "true"}
        gates = (TOPOLOGY_GATE,)
    return Grant(
        count=int(pod_set.get("count") or 0) if count is None else int(count),
        labels={POD_SET_LABEL: str(assigned["name"])},
        annotations=annotations,
        gates=gates,
    )


def _message(condition: Json | None) -> str:
    return f": {condition['message']}" if condition and condition.get("message") else ""
