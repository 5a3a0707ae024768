"""Fields of a pod that the operator reads. Others are not decoded, as 1,000 pods have 9 MB of JSON.

A field that is missing here is missing in the listed pods; a test checks this for every reader.
"""

from typing import TypedDict


class PodOwner(TypedDict, total=False):
    """An entry of `ownerReferences`."""

    kind: str
    name: str
    uid: str
    controller: bool


class PodMetadata(TypedDict, total=False):
    """A pod's `metadata`."""

    name: str
    namespace: str
    uid: str
    resourceVersion: str
    labels: dict[str, str]
    creationTimestamp: str
    deletionTimestamp: str
    ownerReferences: list[PodOwner]


class PodVariable(TypedDict, total=False):
    """An entry of a container's `env`."""

    name: str
    value: str


class PodContainer(TypedDict, total=False):
    """An entry of a pod's `containers`."""

    name: str
    env: list[PodVariable]
    restartPolicyRules: list[object]


class PodSecret(TypedDict, total=False):
    """The `secret` of a volume."""

    secretName: str


class PodVolume(TypedDict, total=False):
    """An entry of a pod's `volumes`."""

    name: str
    secret: PodSecret


class PodSpec(TypedDict, total=False):
    """A pod's `spec`."""

    nodeName: str
    restartPolicy: str
    containers: list[PodContainer]
    volumes: list[PodVolume]


class WaitingState(TypedDict, total=False):
    """State of a container that has not started."""

    reason: str
    message: str


class RunningState(TypedDict, total=False):
    """State of a running container."""

    startedAt: str | None


class TerminatedState(TypedDict, total=False):
    """State of a container that has ended."""

    exitCode: int
    reason: str
    message: str
    startedAt: str | None
    finishedAt: str | None


class ContainerState(TypedDict, total=False):
    """A container's state, of which one of the three fields is set."""

    running: RunningState
    waiting: WaitingState
    terminated: TerminatedState


class ContainerStatus(TypedDict, total=False):
    """A kubelet's status of a container."""

    name: str
    image: str
    imageID: str
    ready: bool
    state: ContainerState
    lastState: ContainerState


class PodCondition(TypedDict, total=False):
    """An entry of a pod's `conditions`."""

    type: str
    status: str
    reason: str
    message: str
    lastTransitionTime: str | None


class PodStatus(TypedDict, total=False):
    """A pod's `status`."""

    phase: str
    podIP: str
    reason: str
    message: str
    conditions: list[PodCondition]
    containerStatuses: list[ContainerStatus]
    initContainerStatuses: list[ContainerStatus]


class Pod(TypedDict, total=False):
    """A pod as decoded JSON, reduced to the fields that the operator reads."""

    metadata: PodMetadata
    spec: PodSpec
    status: PodStatus


class PodEvent(TypedDict, total=False):
    """One event of a watch of pods."""

    type: str
    object: Pod


class PodListMetadata(TypedDict, total=False):
    """The `metadata` of a list."""

    resourceVersion: str


class PodList(TypedDict, total=False):
    """Response to a list request for pods."""

    metadata: PodListMetadata
    items: list[Pod]
