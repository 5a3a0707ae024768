"""Settings of the operator's installation that affect the objects of every job."""

import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from ..spec.pod_schema import PodSchema
from .credentials import TOKEN_BYTES, Issuer, issue_credentials

Json = Mapping[str, Any]

# Requests suffice to collect logs. Limits exist because a quota on limits refuses pods without them; a launcher of a
# small world uses about 100 MiB, and mpirun of a large one needs more.
LAUNCHER_RESOURCES: Json = {
    "requests": {"cpu": "100m", "memory": "128Mi"},
    "limits": {"cpu": "2", "memory": "1Gi"},
}


# For the container that copies the agent (66 MB). Its CPU is a launcher's, so that no pod requests more.
AGENT_RESOURCES: Json = {
    "requests": {"cpu": "100m", "memory": "32Mi"},
    "limits": {"cpu": "2", "memory": "128Mi"},
}

# Any group other than root's works.
FS_GROUP = 65532

# The mechanism that adds the agent to a pod: an image volume, or a container that copies it first.
AgentVolume = Literal["ImageVolume", "InitContainer"]


@dataclass(frozen=True)
class AgentSource:
    """Image with the agent, and the way in which the operator adds it to pods.

    `default`: agent source of jobs without spec.agent. `resources`: resources of the container that copies the agent.
    `pull_secrets`: names of Secrets in the jobs' namespaces for pulling the image.
    """

    image: str
    volume: AgentVolume = "InitContainer"
    default: Literal["Inject", "Image"] = "Inject"
    resources: Json = field(default_factory=lambda: AGENT_RESOURCES)
    pull_secrets: Sequence[str] = ()


def random_secret_token() -> str:
    """Return a random token that cannot be guessed, for reading the launcher's status."""
    return secrets.token_urlsafe(TOKEN_BYTES)


@dataclass(frozen=True)
class BuildSettings:
    """Settings of the operator's installation that change the objects of jobs.

    `metrics_from`: NetworkPolicyPeers that may reach the launchers' status port. `template_ports_from`:
    NetworkPolicyPeers that may reach the ports declared in templates. `operator_namespace` is empty if the operator
    does not run in a pod. `issue` makes a job's credentials and `token` a launcher's token, both from random numbers.
    `pod_schema` defaults to the schema in this package. `fs_group`: group of the claims that the operator mounts; None
    if the cluster assigns one, as OpenShift does. `agent`: source of the agent, or None if pods use the `ringtrain` of
    their image or of this machine, whatever spec.agent says.
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
