"""Gang scheduling by the plugin "coscheduling" of scheduler-plugins: PodGroups of scheduling.x-k8s.io."""

from .base import GangScheduler, Json, PlacedGang

GROUP_LABEL = "scheduling.x-k8s.io/pod-group"


def _coscheduling_spec(gang: PlacedGang) -> Json:
    return {"minMember": gang.min_pods}


def _join_coscheduling_group(pod: Json, group: str) -> None:
    pod["metadata"]["labels"][GROUP_LABEL] = group


COSCHEDULING = GangScheduler(
    "scheduling.x-k8s.io",
    ("v1alpha1",),
    "scheduler-plugins-scheduler",
    _coscheduling_spec,
    _join_coscheduling_group,
)
