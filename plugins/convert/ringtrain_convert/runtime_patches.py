"""Changes of a TrainJob to its runtime: `runtimePatches`, and before Trainer 2.2 `podTemplateOverrides`.

Trainer applies them by Kubernetes' strategic merge patch, one after the other, before spec.trainer (mergeRuntimePatches
in pkg/runtime/core/trainingruntime.go).
"""

import copy
from collections.abc import Iterator, Mapping
from typing import Any

Json = dict[str, Any]

_JOBS = {"replicatedJobs": [{"name": str, "template": {"metadata": {}, "spec": {"template": {"spec": {}}}}}]}
SHAPE: dict[str, Any] = {
    "runtimePatches": [{"trainingRuntimeSpec": {"template": {"metadata": {}, "spec": _JOBS}}}],
    "podTemplateOverrides": [{"targetJobs": [{"name": str}], "metadata": {}, "spec": {}}],
}
# Keys by which items of two lists correspond; any other list is replaced as a whole.
_KEYS = {
    **dict.fromkeys(("containers", "initContainers", "volumes", "env", "imagePullSecrets", "schedulingGates"), "name"),
    "volumeMounts": "mountPath",
}


def apply_patches(job: Json, runtime: Json) -> Iterator[str]:
    """Remove the patches from a TrainJob's spec and apply them to the spec of its `runtime`, in place.

    Yields a note for each patch without a matching replicated job.
    """
    template = runtime.setdefault("template", {})
    for number, entry in enumerate(job.pop("runtimePatches", None) or ()):
        patch = (entry.get("trainingRuntimeSpec") or {}).get("template") or {}
        template.update(_merged_runtime_patch(template, {"metadata": patch.get("metadata") or {}}))
        for one in (patch.get("spec") or {}).get("replicatedJobs") or ():
            where = f"spec.runtimePatches[{number}]"
            yield from _patch_job(template, str(one.get("name")), one.get("template") or {}, where)
    for number, entry in enumerate(job.pop("podTemplateOverrides", None) or ()):
        pod = {field: entry[field] for field in ("metadata", "spec") if entry.get(field)}
        for target in entry.get("targetJobs") or ():
            where = f"spec.podTemplateOverrides[{number}]"
            yield from _patch_job(template, str(target.get("name")), {"spec": {"template": pod}}, where)


def _patch_job(template: Json, name: str, patch: Mapping[str, Any], where: str) -> Iterator[str]:
    jobs = [one for one in (template.get("spec") or {}).get("replicatedJobs") or () if one.get("name") == name]
    if not jobs:
        yield f"{where} is left out: the runtime has no replicated job {name!r}"
    for one in jobs:
        one["template"] = _merged_runtime_patch(one.get("template") or {}, patch)


def _merged_runtime_patch(value: Mapping[str, Any], patch: Mapping[str, Any]) -> Json:
    """Return `value` with a strategic merge of `patch`, in which null removes a field."""
    made = dict(value)
    for name, new in patch.items():
        old = made.get(name)
        if new is None:
            made.pop(name, None)
        elif isinstance(new, Mapping) and isinstance(old, Mapping):
            made[name] = _merged_runtime_patch(old, new)
        elif name in _KEYS and _are_mappings(old) and _are_mappings(new):
            made[name] = _merged_lists(old or [], new, _KEYS[name])
        else:
            made[name] = copy.deepcopy(new)
    return made


def _are_mappings(value: object) -> bool:
    return isinstance(value, list) and all(isinstance(item, Mapping) for item in value)


def _merged_lists(old: list[Any], new: list[Any], key: str) -> list[Any]:
    made = list(old)
    for item in new:
        same = [index for index, one in enumerate(made) if one.get(key) == item.get(key)]
        if same:
            made[same[0]] = _merged_runtime_patch(made[same[0]], item)
        else:
            made.append(copy.deepcopy(item))
    return made
