"""A job's manifest from what a program says in one call."""

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
    """What to run and where. `spec` is laid over the spec that the rest makes, as a merge of mappings; all of it
    is laid over `template`, a name or a templateRef, which may have the `image`.

    In `command` and `env` a kubelet replaces `$(NAME)` and `$$`.
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


def fresh_job_name(stem: str) -> str:
    """A name for a job that no other has, from that of its script."""
    letters = "".join(c if c.isascii() and c.isalnum() else "-" for c in stem.lower()).strip("-")[:40].strip("-")
    return f"{letters if letters[:1].isalpha() else f'train-{letters}'.strip('-')}-{secrets.token_hex(3)}"


def yaml_literal(value: Any) -> Any:
    """A text for a command or a variable which a container then gets as `value` is; anything else as it is."""
    return value.replace("$", "$$") if isinstance(value, str) else value


def manifest_of(training: Training, name: str) -> Json:
    """The DistributedTrainingJob that runs it, not checked yet."""
    container: Json = {} if training.template else {"name": CONTAINER}  # without a name: the template's first
    container |= {"image": training.image} if training.image else {}
    container["command"] = list(training.command)
    if training.env:
        container["env"] = [{"name": key, "value": _manifest_text(key, value)} for key, value in training.env.items()]
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
    """`below` with `above` laid over it: mappings are merged, anything else is replaced."""
    found: Json = copy.deepcopy(dict(below))
    for key, value in above.items():
        inner = found.get(key)
        if isinstance(inner, dict) and isinstance(value, Mapping):
            found[key] = merged_spec_maps(inner, value)
        else:
            found[key] = copy.deepcopy(value)
    return found


def _manifest_text(name: str, value: object) -> str:
    if not isinstance(value, str):
        raise Invalid([Problem(f"env[{name}]", f"is {shown(value)}, expected a text")])
    return value


def with_volume(job: Json, volume: Json, mount_path: str) -> Json:
    """The job with a volume in its workers' training container."""
    made = copy.deepcopy(job)
    pod = made["spec"]["worker"]["template"]["spec"]
    pod["volumes"] = [*(pod.get("volumes") or []), volume]
    main = pod["containers"][0]
    mount = {"name": volume["name"], "mountPath": mount_path, "readOnly": True}
    main["volumeMounts"] = [*(main.get("volumeMounts") or []), mount]
    return made
