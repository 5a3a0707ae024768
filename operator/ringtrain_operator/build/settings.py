"""What the operator's installation decides about the objects of every job."""

import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from ..spec.pod_schema import PodSchema
from .credentials import TOKEN_BYTES, Issuer, issue_credentials

Json = Mapping[str, Any]

# Requests: enough to gather logs. Limits: a quota on limits admits only pods that have them; a launcher of a small
# world takes some 100 MiB, and mpirun of a large one needs room.
LAUNCHER_RESOURCES: Json = {
    "requests": {"cpu": "100m", "memory": "128Mi"},
    "limits": {"cpu": "2", "memory": "1Gi"},
}


# Of the container that copies the agent, over 100 MB. It asks for a launcher's CPU, so that no pod asks for more.
AGENT_RESOURCES: Json = {
    "requests": {"cpu": "100m", "memory": "32Mi"},
    "limits": {"cpu": "2", "memory": "128Mi"},
}

# Any number does that is not root's.
FS_GROUP = 65532

# What puts the agent into a pod: the kubelet, or a container that copies it first.
AgentVolume = Literal["ImageVolume", "InitContainer"]


@dataclass(frozen=True)
class AgentSource:
    """The agent that the operator brings into pods: the image that has it, and how. `default`: for jobs that say
    nothing in spec.agent. `resources`: of the container that copies it. `pull_secrets`: names of Secrets in the
    jobs' namespaces that may pull the image.
    """

    image: str
    volume: AgentVolume = "InitContainer"
    default: Literal["Inject", "Image"] = "Inject"
    resources: Json = field(default_factory=lambda: AGENT_RESOURCES)
    pull_secrets: Sequence[str] = ()


def random_secret_token() -> str:
    """A token that nobody guesses."""
    return secrets.token_urlsafe(TOKEN_BYTES)


@dataclass(frozen=True)
class BuildSettings:
    """`metrics_from`, `template_ports_from`: NetworkPolicyPeers that may reach launchers' status port, and the
    ports that templates' containers declare. `operator_namespace` empty: the operator runs in no pod. `issue` and
    `token` are where randomness comes from. `pod_schema` None: that of this package.
    `fs_group`: of the claims that we mount; None: the cluster gives one itself, as OpenShift does.
    `agent` None: pods run the `ringtrain` of their image, or of this machine, whatever the job says.
    """

    operator_namespace: str = "ringtrain-system"
    launcher_resources: Json = field(default_factory=lambda: LAUNCHER_RESOURCES)
    metrics_from: Sequence[Json] = ()
    template_ports_from: Sequence[Json] = ()
    pod_schema: PodSchema | None = None
    agent: AgentSource | None = None
    fs_group: int | None = FS_GROUP
    issue: Issuer = issue_credentials
    token: Callable[[], str] = random_secret_token
