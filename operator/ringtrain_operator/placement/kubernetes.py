"""Gang scheduling by Kubernetes itself: PodGroups of scheduling.k8s.io (feature gate GangScheduling)."""

from .base import GangScheduler, Json, PlacedGang


def _kubernetes_group_spec(gang: PlacedGang) -> Json:
    """Return the spec of a PodGroup. An API server ignores fields whose feature gates are off."""
    spec: Json = {"schedulingPolicy": {"gang": {"minCount": gang.min_pods}}}
    if gang.topology is not None and gang.topology.required:
        spec["schedulingConstraints"] = {"topology": [{"key": gang.topology.required}]}
    if gang.priority_class:
        spec["priorityClassName"] = gang.priority_class
    return spec


def _join_kubernetes_group(pod: Json, group: str) -> None:
    pod["spec"]["schedulingGroup"] = {"podGroupName": group}


KUBERNETES = GangScheduler(
    "scheduling.k8s.io",
    ("v1beta1", "v1alpha2"),
    "",
    _kubernetes_group_spec,
    _join_kubernetes_group,
    ("PodGroupScheduled", "False"),
)
