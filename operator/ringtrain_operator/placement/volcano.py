"""Gang scheduling by Volcano: PodGroups of scheduling.volcano.sh."""

from .base import GangScheduler, Json, PlacedGang

GROUP_ANNOTATION = "scheduling.k8s.io/group-name"


def _volcano_group_spec(gang: PlacedGang) -> Json:
    spec: Json = {"minMember": gang.min_pods}
    if gang.queue:
        spec["queue"] = gang.queue
    if gang.priority_class:
        spec["priorityClassName"] = gang.priority_class
    if gang.topology is not None:
        # Volcano has tiers of HyperNodes instead of labels; its default is the lowest tier.
        spec["networkTopology"] = {"mode": "hard" if gang.topology.required else "soft"}
    return spec


def _join_volcano_group(pod: Json, group: str) -> None:
    pod["metadata"].setdefault("annotations", {})[GROUP_ANNOTATION] = group


VOLCANO = GangScheduler(
    "scheduling.volcano.sh",
    ("v1beta1",),
    "volcano",
    _volcano_group_spec,
    _join_volcano_group,
    ("Unschedulable", "True"),
)
