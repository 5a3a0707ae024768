"""Source of the agent and launcher programs in a pod: the pod's own image, or a volume that the operator adds."""

import copy
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from .. import contract
from ..spec.job import Job
from ..spec.reserved import VOLUME_AGENT
from .settings import AgentSource, BuildSettings
from .volumes import add_volume

INIT_CONTAINER = "ringtrain-agent"
# Annotation of the job's Service, which exists as long as the job: the agent's image. Absent: the pods' own image.
ANNOTATION_IMAGE = f"{contract.GROUP}/agent-image"
# Paths in a container of the agent's own image.
PROGRAM, PYTHON = "/bin/ringtrain", "/python/bin/python3"
# Mount path of the agent's volume in the container that fills it.
_TARGET = "/target"
# Images of the project's Dockerfile, by registry, name and tag; those of a worker have what the agent's image has.
_AGENT_IMAGE = re.compile(r"(.*/|)agent:([^:/@]+)(?:@.+)?")
_WORKER_IMAGE = re.compile(r"(.*/|)worker(?:-jax|-tensorflow|-torch)?:([^:/@]+)(?:@.+)?")
_REGISTRY = "ghcr.io/ringtrain/"


def agent_source(job: Job, settings: BuildSettings) -> AgentSource | None:
    """Return the image from which the operator adds the agent; None if the job's own image must contain it."""
    source = settings.agent
    if source is None or (job.spec.agent or source.default) != "Inject":
        return None
    return source


def has_ringtrain(image: str, source: AgentSource) -> bool:
    """Return whether a pod's `image` has the agent's version of ringtrain, according to the image's name and tag."""
    agent, worker = _AGENT_IMAGE.fullmatch(source.image), _WORKER_IMAGE.fullmatch(image)
    if agent is None or worker is None:
        return False
    return worker[1] in (agent[1], _REGISTRY) and worker[2] == agent[2]


def _is_agent_needed(job: Job, main: Mapping[str, Any], source: AgentSource) -> bool:
    """Return whether to add the agent to a container, because spec.agent requests it or the image may lack it."""
    changes_path = any(variable.get("name") == "PATH" for variable in main.get("env") or ())
    return job.spec.agent == "Inject" or changes_path or not has_ringtrain(str(main.get("image", "")), source)


def added_pull_secrets(given: Sequence[Mapping[str, Any]], names: Iterable[str]) -> list[dict[str, Any]]:
    """Return the pull secrets `given`, with references to the Secrets `names` added if they are missing."""
    known = {secret.get("name") for secret in given}
    return [*map(dict, given), *({"name": name} for name in names if name not in known)]


def add_agent(job: Job, spec: dict[str, Any], settings: BuildSettings) -> str:
    """Add the agent to a pod's spec in place, unless the image contains it. Returns the path of the agent's program."""
    source = agent_source(job, settings)
    if source is None or not _is_agent_needed(job, spec["containers"][0], source):
        return "ringtrain"
    if source.volume == "ImageVolume":
        volume: dict[str, Any] = {"image": {"reference": source.image, "pullPolicy": "IfNotPresent"}}
    else:
        volume = {"emptyDir": {}}
        copying = {
            "name": INIT_CONTAINER,
            "image": source.image,
            "command": [PROGRAM, "copy", _TARGET],
            "resources": copy.deepcopy(dict(source.resources)),
            "volumeMounts": [{"name": VOLUME_AGENT, "mountPath": _TARGET}],
            # This container is ours, so it can always have the restricted standard.
            "securityContext": {
                "readOnlyRootFilesystem": True,
                "allowPrivilegeEscalation": False,
                "capabilities": {"drop": ["ALL"]},
            },
        }
        spec["initContainers"] = [copying, *(spec.get("initContainers") or ())]
    add_volume(spec, {"name": VOLUME_AGENT, **volume}, contract.AGENT_DIR, read_only=True)
    if spec.get("imagePullSecrets"):  # otherwise admission copies them from the service account
        spec["imagePullSecrets"] = added_pull_secrets(spec["imagePullSecrets"], source.pull_secrets)
    if job.spec.agent == "Inject":
        own = {"name": contract.ENV_AGENT, "value": "Inject"}
        spec["containers"][0]["env"] = [own, *(spec["containers"][0].get("env") or ())]
    return f"{contract.AGENT_DIR}/bin/ringtrain"
