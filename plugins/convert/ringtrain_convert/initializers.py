"""Initializers of a TrainJob or JobSet, which load data before the other pods start, and claims that all pods share.

Trainer and JobSet run each initializer as a Job (pkg/runtime/framework/plugins/jobset/builder.go). Here it is an init
container. JobSet creates the claims (pkg/controllers/volume_claim_policy.go).
"""

import copy
from collections.abc import Mapping
from typing import Any

from ringtrain_convert.metadata import checked_template
from ringtrain_operator.errors import Invalid, Problem
from ringtrain_operator.spec.template import containers_of

Json = dict[str, Any]
# Field of spec.initializer, by name of the replicated job and of its container.
INITIALIZERS = {"dataset-initializer": "dataset", "model-initializer": "model"}
_GIVEN = {"storageUri": str, "env": [{"name": str}], "secretRef": {"name": str}}
SHAPE: Json = {"initializer": dict.fromkeys(INITIALIZERS.values(), _GIVEN)}
CLAIM_SHAPE: Json = {
    "volumeClaimPolicies": [{"templates": [{"metadata": {"name": str, "labels": {}, "annotations": {}}, "spec": {}}]}]
}
_READ = {"containers", "initContainers", "volumes", "restartPolicy"}


def add_variables(container: Json, added: list[Json]) -> None:
    """Set variables of a container, in place. An added variable replaces one of the same name."""
    if added:
        names = {variable.get("name") for variable in added}
        others = [variable for variable in container.get("env") or [] if variable.get("name") not in names]
        container["env"] = others + copy.deepcopy(added)


def initializer_pod(replicated: Mapping[str, Any], step: str, job: Json, path: str) -> Json:
    """Return the pod of an initializer. Its fields of spec.initializer are removed from `job`, the TrainJob's spec."""
    inner = (replicated.get("template") or {}).get("spec") or {}
    pod: Json = copy.deepcopy(checked_template(inner.get("template"), path)["spec"])
    given = job.get("initializer") or {}
    own = given.pop(INITIALIZERS[step], None) or {}
    uri, secret = own.pop("storageUri", None), (own.pop("secretRef", None) or {}).get("name")
    env = [*([{"name": "STORAGE_URI", "value": uri}] if uri else []), *(own.pop("env", None) or ())]
    for container in pod["containers"]:
        if container.get("name") == step:
            add_variables(container, env)
            more = [{"secretRef": {"name": secret}}] if secret else []
            container |= {"envFrom": [*(container.get("envFrom") or ()), *more]} if more else {}
    if own:
        given[INITIALIZERS[step]] = own
    return pod


def add_initializers(pods: Mapping[str, Json], job: Json, notes: list[str]) -> None:
    """Add the containers of `pods` to the first pod of the job with spec `job`, as init containers, in place.

    No rank starts before all pods run. `pods`: pods of initializers, by path. Raises Invalid if volumes differ.
    """
    if not pods:
        return
    launcher, worker = job.get("launcher"), job["worker"]
    if not launcher and worker["replicas"] > 1:
        worker.setdefault("rank0Template", copy.deepcopy(worker["template"]))
    pod = (launcher or {}).get("template", worker.get("rank0Template") or worker["template"])["spec"]
    added: list[Json] = []
    for path, one in pods.items():
        volumes = {volume.get("name"): volume for volume in pod.get("volumes") or ()}
        for volume in one.get("volumes") or ():
            if volume != volumes.get(volume.get("name"), volume):
                message = f"has a volume {volume.get('name')} that differs from the node's: rename one of the two"
                raise Invalid([Problem(f"{path}.spec.volumes", message)])
            if volume.get("name") not in volumes:
                pod["volumes"] = [*(pod.get("volumes") or ()), volume]
        added += [*(one.get("initContainers") or ()), *one["containers"]]
        if left := sorted(field for field in one if field not in _READ and one[field] != pod.get(field)):
            notes.append(f"{path}.spec ({', '.join(left)}) is left out: an init container has its pod's")
    pod["initContainers"] = [*added, *(pod.get("initContainers") or ())]
    names = ", ".join(str(one.get("name")) for one in added)
    where = "launcher" if launcher else "first worker"
    notes.append(f"{names}: init containers of the {where}, which run again if the gang restarts")


def take_claims(section: Json, metadata: Mapping[str, Any], job: Json, notes: list[str]) -> tuple[Json, ...]:
    """Remove volumeClaimPolicies from a JobSet's spec. Return its claims, whose volumes the job with spec `job` gets.

    `metadata`: of the job, after which JobSet names the claims. Raises Invalid if the job has no name.
    """
    policies = section.pop("volumeClaimPolicies", None) or ()
    claims = [claim for policy in policies for claim in policy.get("templates") or ()]
    if claims and not metadata.get("name"):
        message = "is missing; the claims of volumeClaimPolicies are named after the job"
        raise Invalid([Problem("metadata.name", message)])
    templates = [
        job["worker"]["template"],
        job["worker"].get("rank0Template"),
        (job.get("launcher") or {}).get("template"),
    ]
    made = []
    for claim in claims:
        own = claim.get("metadata") or {}
        volume, name = str(own.get("name")), f"{own.get('name')}-{metadata['name']}"
        for template in filter(None, templates):
            containers = [*containers_of(template), *containers_of(template, "initContainers")]
            if any(mount.get("name") == volume for one in containers for mount in one.get("volumeMounts") or ()):
                source = {"name": volume, "persistentVolumeClaim": {"claimName": name}}
                template["spec"]["volumes"] = [*(template["spec"].get("volumes") or ()), source]
        kept = {"name": name, "namespace": metadata.get("namespace")}
        kept |= {key: own.get(key) for key in ("labels", "annotations")}
        of_claim = {"metadata": {key: value for key, value in kept.items() if value}, "spec": claim.get("spec") or {}}
        made.append({"apiVersion": "v1", "kind": "PersistentVolumeClaim", **of_claim})
        notes.append(f"volume {volume} becomes the claim {name}, which remains when the job is deleted")
    return tuple(made)
