"""The operator's decoder covers exactly the fields of a pod that its readers read."""

import json
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any, get_args, get_type_hints, is_typeddict

from ringtrain_operator import contract
from ringtrain_operator.cluster.api.decode import decode_api_answer
from ringtrain_operator.cluster.observe import ClusterReading, split_owned
from ringtrain_operator.cluster.reconcile import launcher_endpoint
from ringtrain_operator.observe.model import Observed
from ringtrain_operator.observe.pod_shape import Pod, PodList
from ringtrain_operator.observe.pods import view_pod
from ringtrain_operator.spec.reserved import VOLUME_SECRET

TIME = "2026-01-01T00:00:00Z"
ENDED = {"exitCode": 1, "reason": "Error", "message": '{"outcome": "Failed"}', "finishedAt": TIME}
LAST = {"terminated": ENDED}
PLACED = {"type": "PodScheduled", "status": "True", "reason": "r", "message": "m", "lastTransitionTime": TIME}
READ_ELSEWHERE = {"metadata.resourceVersion", "metadata.namespace"}  # by Versions.list_pods and kopf


class Noted(dict[str, Any]):
    """A dict that notes in `seen` what is asked of it, by its path."""

    def __init__(self, value: dict[str, Any], seen: set[str], path: str = "") -> None:
        super().__init__(value)
        self._seen, self._path = seen, path

    def __getitem__(self, key: str) -> Any:
        return self._note(key, super().__getitem__(key))

    def get(self, key: str, default: Any = None) -> Any:
        return self._note(key, super().get(key, default))

    def __contains__(self, key: object) -> bool:
        self._note(str(key), None)
        return super().__contains__(key)

    def _note(self, key: str, value: Any) -> Any:
        path = f"{self._path}.{key}".removeprefix(".")
        self._seen.add(path)
        if isinstance(value, list):
            return [Noted(item, self._seen, path) for item in value]
        return Noted(value, self._seen, path) if isinstance(value, dict) else value


def paths(shape: Any, path: str = "") -> Iterator[str]:
    """Yield the paths that a TypedDict declares, at all levels."""
    for name, hint in get_type_hints(shape).items():
        yield f"{path}.{name}".removeprefix(".")
        inner = next((one for one in (hint, *get_args(hint)) if is_typeddict(one)), None)
        if inner is not None:
            yield from paths(inner, f"{path}.{name}")


def by_type(path: str) -> str:
    """Init containers are described as others are, and a container's last state as its present one."""
    return path.replace("initContainer", "container").replace("lastState", "state")


def pod(role: str = "worker", *, owner: str = "uid-1", **status: Any) -> dict[str, Any]:
    """A pod as the API server lists it, with much that nobody here reads."""
    owned = {"apiVersion": "ringtrain.dev/v1", "kind": "Job", "name": "digits", "uid": owner, "controller": True}
    env = [{"name": "A", "value": "b"}, {"name": "C", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}]
    return {
        "metadata": {
            "name": "digits-worker-0",
            "namespace": "default",
            "uid": "u",
            "resourceVersion": "7",
            "creationTimestamp": TIME,
            "labels": {contract.LABEL_ROLE: role, contract.LABEL_ATTEMPT: "1"},
            "ownerReferences": [owned],
            "managedFields": [{"manager": "m", "fieldsV1": {"f:spec": {}}}],
        },
        "spec": {
            "nodeName": "n",
            "restartPolicy": "Never",
            "containers": [{"name": "train", "image": "i", "env": env}, {"name": "side"}],
            "volumes": [{"name": VOLUME_SECRET, "secret": {"secretName": "s", "optional": False}}, {}],
        },
        "status": {"phase": "Running", "podIP": "10.0.0.7", "qosClass": "Burstable", **status},
    }


def container(name: str, **state: Any) -> dict[str, Any]:
    """A container's status with this state."""
    return {"name": name, "image": "i", "imageID": "i@sha256:1", "ready": False, "state": state, "lastState": {}}


PODS = [
    pod("launcher", conditions=[PLACED], containerStatuses=[container("train", running={"startedAt": TIME})]),
    pod(containerStatuses=[container("side", running={"startedAt": None}), container("train", terminated=ENDED)]),
    pod(containerStatuses=[{**container("train", waiting={"reason": "x", "message": "y"}), "lastState": LAST}]),
    pod(phase="Failed", initContainerStatuses=[container("init", terminated={"exitCode": 2, "finishedAt": None})]),
    pod(owner="another", phase="Pending", conditions=[{**PLACED, "status": "False", "lastTransitionTime": None}]),
    pod(phase="Failed", reason="Evicted", message="m", conditions=[{**PLACED, "type": "DisruptionTarget"}]),
]


def objects_read_at(pods: list[dict[str, Any]]) -> tuple[Any, ...]:
    """Return the results of all readers for pods."""
    ours, others = split_owned(pods, "uid-1")
    endpoint = launcher_endpoint(ClusterReading(Observed(), tuple(ours)))
    return tuple(view_pod(one) for one in pods), others, endpoint


def test_what_is_read_is_what_is_decoded() -> None:
    """All that is declared is read, and all that is read is declared."""
    seen: set[str] = set()
    objects_read_at([Noted(one, seen) for one in PODS])
    named = {path for path in seen if not path.startswith("metadata.labels.")}
    assert {by_type(path) for path in named | READ_ELSEWHERE} == {by_type(path) for path in paths(Pod)}


def test_readers_see_no_difference() -> None:
    """Between pods that are decoded whole, and what is decoded of a list."""
    raw = json.dumps({"metadata": {"resourceVersion": "9", "continue": ""}, "items": PODS}).encode()
    listed = decode_api_answer(raw, PodList)
    assert "managedFields" not in listed["items"][0]["metadata"]
    assert objects_read_at(listed["items"]) == objects_read_at(PODS)
    assert listed["items"][0]["metadata"]["resourceVersion"] == "7"
    assert objects_read_at(PODS)[0][1].end.time == datetime(2026, 1, 1, tzinfo=UTC)


def test_an_answer_of_another_shape_is_decoded_whole() -> None:
    """An API server that says null, or has a number where a name was, is read as before."""
    odd = {"metadata": {"resourceVersion": 9}, "items": None}
    assert decode_api_answer(json.dumps(odd).encode(), PodList) == odd
