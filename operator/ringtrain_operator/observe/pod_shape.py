"""What is read of a pod here. Of a list of a thousand pods, 9 MB, all else is skipped while it is decoded.

A name that is missing here is missing in the pods that the operator lists; a test asks every reader.
"""

from typing import TypedDict


class PodOwner(TypedDict, total=False):
    """An entry of `ownerReferences`."""

    kind: str
    name: str
    uid: str
    controller: bool


class PodMetadata(TypedDict, total=False):
    """Of a pod."""

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
    """Of a pod's spec."""

    name: str
    env: list[PodVariable]


class PodSecret(TypedDict, total=False):
    """Of a volume."""

    secretName: str


class PodVolume(TypedDict, total=False):
    """Of a pod's spec."""

    name: str
    secret: PodSecret


class PodSpec(TypedDict, total=False):
    """Of a pod."""

    nodeName: str
    containers: list[PodContainer]
    volumes: list[PodVolume]


class WaitingState(TypedDict, total=False):
    """A container's state."""

    reason: str
    message: str


class RunningState(TypedDict, total=False):
    """A container's state."""

    startedAt: str | None


class TerminatedState(TypedDict, total=False):
    """A container's state."""

    exitCode: int
    reason: str
    message: str
    startedAt: str | None
    finishedAt: str | None


class ContainerState(TypedDict, total=False):
    """Of a container; of three there is one."""

    running: RunningState
    waiting: WaitingState
    terminated: TerminatedState


class ContainerStatus(TypedDict, total=False):
    """What the kubelet says of a container."""

    name: str
    image: str
    imageID: str
    ready: bool
    state: ContainerState
    lastState: ContainerState


class PodCondition(TypedDict, total=False):
    """Of a pod's status."""

    type: str
    status: str
    reason: str
    message: str
    lastTransitionTime: str | None


class PodStatus(TypedDict, total=False):
    """Of a pod."""

    phase: str
    podIP: str
    reason: str
    message: str
    conditions: list[PodCondition]
    containerStatuses: list[ContainerStatus]
    initContainerStatuses: list[ContainerStatus]


class Pod(TypedDict, total=False):
    """A pod."""

    metadata: PodMetadata
    spec: PodSpec
    status: PodStatus


class PodEvent(TypedDict, total=False):
    """What a watch of pods says."""

    type: str
    object: Pod


class PodListMetadata(TypedDict, total=False):
    """Of a list."""

    resourceVersion: str


class PodList(TypedDict, total=False):
    """The answer to a list of pods."""

    metadata: PodListMetadata
    items: list[Pod]
