"""Construction of a job's manifest from the arguments of a Python call."""

from __future__ import annotations

import copy
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ringtrain_operator.contract import API_VERSION, KIND
from ringtrain_operator.errors import Invalid, Problem, shown

Json = dict[str, Any]
CONTAINER = "train"


@dataclass(frozen=True)
class Training:
    """Training code of a job, and the resources that the job gets.

    `spec` is merged over the spec made from the other fields: mappings are merged, other values are replaced. The
    result is merged over `template`, a name or a templateRef, which may define the `image`. In `command` and `env` a
    kubelet replaces `$(NAME)` and `$$`.
    """

    command: Sequence[str]
    image: str = ""
    workers: int = 1
    devices: Mapping[str, int] = field(default_factory=dict)
    slots: int | None = None
    env: Mapping[str, str] = field(default_factory=dict)
    resources: Mapping[str, Any] = field(default_factory=dict)
    spec: Mapping[str, Any] = field(default_factory=dict)
    labels: Mapping[str, str] = field(default_factory=dict)
    template: str | Mapping[str, str] = ""


def unique_job_name(stem: str) -> str:
    """Return a unique job name that begins with `stem`, the name of the script."""
    letters = "".join(c if c.isascii() and c.isalnum() else "-" for c in stem.lower()).strip("-")[:40].strip("-")
    return f"{letters if letters[:1].isalpha() else f'train-{letters}'.strip('-')}-{secrets.token_hex(3)}"


def escape_references(value: Any) -> Any:
    """Return a string with each `$` escaped, so that the kubelet does not expand it. Other types are unchanged."""
    return value.replace("$", "$$") if isinstance(value, str) else value


def manifest_of(training: Training, name: str) -> Json:
    """Return the DistributedTrainingJob for `training`. It is not validated yet."""
    # Without a name it is the template's first container.
    container: Json = {} if training.template else {"name": CONTAINER}
    container |= {"image": training.image} if training.image else {}
    container["command"] = list(training.command)
    if training.env:
        container["env"] = [{"name": key, "value": _checked_text(key, value)} for key, value in training.env.items()]
    if training.resources:
        container["resources"] = copy.deepcopy(dict(training.resources))
    worker: Json = {"replicas": training.workers, "template": {"spec": {"containers": [container]}}}
    if training.devices:
        worker["devices"] = dict(training.devices)
    spec: Json = {"worker": worker}
    if training.template:
        reference = training.template
        spec["templateRef"] = {"name": reference} if isinstance(reference, str) else dict(reference)
    if training.slots is not None:
        spec["slotsPerWorker"] = training.slots
    metadata: Json = {"name": name, **({"labels": dict(training.labels)} if training.labels else {})}
    return {
        "apiVersion": API_VERSION,
        "kind": KIND,
        "metadata": metadata,
        "spec": merged_spec_maps(spec, training.spec),
    }


def merged_spec_maps(below: Mapping[str, Any], above: Mapping[str, Any]) -> Json:
    """Return `above` merged over `below`: mappings are merged, other values are replaced."""
    merged: Json = copy.deepcopy(dict(below))
    for key, value in above.items():
        inner = merged.get(key)
        if isinstance(inner, dict) and isinstance(value, Mapping):
            merged[key] = merged_spec_maps(inner, value)
        else:
            merged[key] = copy.deepcopy(value)
    return merged


def _checked_text(name: str, value: object) -> str:
    """Return `value` if it is a string. Otherwise raise Invalid, which names the variable `name`."""
    if not isinstance(value, str):
        raise Invalid([Problem(f"env[{name}]", f"is {shown(value)}, expected a string")])
    return value


def with_volume(job: Json, volume: Json, mount_path: str) -> Json:
    """Return a copy of the job with a read-only volume in its workers' training container."""
    made = copy.deepcopy(job)
    pod = made["spec"]["worker"]["template"]["spec"]
    pod["volumes"] = [*(pod.get("volumes") or []), volume]
    main = pod["containers"][0]
    mount = {"name": volume["name"], "mountPath": mount_path, "readOnly": True}
    main["volumeMounts"] = [*(main.get("volumeMounts") or []), mount]
    return made
