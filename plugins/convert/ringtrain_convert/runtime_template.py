"""Converter of a Kubeflow Trainer runtime to a template, and of its TrainJobs to jobs that name the template."""

from collections.abc import Iterator, Mapping
from typing import Any

from ringtrain_convert.metadata import Converted
from ringtrain_convert.trainjob import GROUP, VERSION, convert_trainjob
from ringtrain_operator.contract import API_VERSION
from ringtrain_operator.errors import Invalid
from ringtrain_operator.spec.parts import CLUSTER
from ringtrain_operator.spec.template import containers_of
from ringtrain_operator.spec.training_template import Template, merged_spec, read_template

Json = dict[str, Any]
_KINDS = {"ClusterTrainingRuntime": CLUSTER, "TrainingRuntime": "TrainingTemplate"}
_ITS_COMMAND = "COMMAND-OF-THE-JOB"
# Fields that a TrainJob must set if its runtime does not, with placeholders.
_SAID_BY_JOBS: Json = {"command": [_ITS_COMMAND], "numProcPerNode": 1}
_CONTAINERS = ("containers", "initContainers")
_BY_NAME = ("env", "volumes", "volumeMounts")


def convert_runtime(runtime: Mapping[str, Any]) -> Converted:
    """Convert a runtime to a template. Raises Invalid, with paths of the runtime."""
    made, trainer = _template_of_runtime_job(runtime)
    spec, meta = made.manifest["spec"], runtime.get("metadata") or {}
    del spec["worker"]["replicas"]
    if "numProcPerNode" in trainer or _counts_devices(runtime):
        spec.pop("slotsPerWorker", None)
    for section in ("worker", "launcher"):
        # A command that only a job has is omitted, including the shell that sets its variables.
        for container in containers_of((spec.get(section) or {}).get("template") or {})[:1]:
            if any(_ITS_COMMAND in word for word in container.get("command") or []):
                del container["command"]
    kept = {key: meta[key] for key in ("name", "namespace", "labels") if meta.get(key)}
    manifest = {
        "apiVersion": API_VERSION,
        "kind": _KINDS[str(runtime["kind"])],
        "metadata": kept,
        "spec": {"description": f"From {runtime['kind']} {kept.get('name')} of Kubeflow Trainer.", "job": spec},
    }
    read_template(manifest)
    return Converted(manifest, made.notes)


def _counts_devices(runtime: Mapping[str, Any]) -> bool:
    """Return whether the number of ranks follows from the GPUs of each job's pods, so that no template sets it."""
    policy = (runtime.get("spec") or {}).get("mlPolicy") or {}
    given = [(policy[source] or {}).get("numProcPerNode") for source in ("torch", "mpi") if source in policy]
    container = next(iter(_trainer_containers(runtime)), {})
    return bool(given) and str(given[0]) in ("None", "auto", "1") and not container.get("resources")


def _trainer_containers(runtime: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    for job in ((runtime["spec"].get("template") or {}).get("spec") or {}).get("replicatedJobs") or ():
        spec = ((job.get("template") or {}).get("spec") or {}).get("template") or {}
        yield from (one for one in containers_of(spec) if one.get("name") == "node")


def _template_of_runtime_job(runtime: Mapping[str, Any]) -> tuple[Converted, Json]:
    """Convert a TrainJob that only names `runtime`. Return the result, and the fields of the TrainJob's trainer.

    These are fields that a TrainJob must set with this runtime.
    """
    reference = {"kind": runtime["kind"], "name": (runtime.get("metadata") or {}).get("name")}
    trainer: Json = {}
    while True:
        spec = {"runtimeRef": reference, "trainer": trainer}
        job = {
            "apiVersion": f"{GROUP}/{VERSION}",
            "kind": "TrainJob",
            "metadata": {"generateName": "any-"},
            "spec": spec,
        }
        try:
            return convert_trainjob(job, runtime), trainer
        except Invalid as exc:
            asked = {problem.path.rpartition(".")[2] for problem in exc.problems}
            if not asked or asked - (_SAID_BY_JOBS.keys() - trainer.keys()):
                raise
            trainer = {**trainer, **{name: _SAID_BY_JOBS[name] for name in asked}}


def beyond_template(manifest: Json, template: Template) -> Json | None:
    """Return the job reduced to the fields that it adds to its template.

    Returns None if the template with these fields merged over it is not the same job.
    """
    spec = {
        **_beyond_runtime_template(template.spec, manifest["spec"]),
        "templateRef": {"kind": template.kind, "name": template.name},
    }
    merged = merged_spec(spec, template.spec)
    same = _fields_in_order(merged_spec(merged, {})) == _fields_in_order(merged_spec(manifest["spec"], {}))
    return {**manifest, "spec": spec} if same else None


def _beyond_runtime_template(below: Mapping[str, Any], whole: Mapping[str, Any]) -> Json:
    """Return the fields that must be merged over `below` to get `whole`."""
    found: Json = {key: None for key in below if key not in whole}
    for key, value in whole.items():
        under = below.get(key)
        if value == under:
            continue
        if isinstance(value, Mapping) and isinstance(under, Mapping):
            found[key] = _beyond_runtime_template(under, value)
        elif key in _CONTAINERS and isinstance(under, list):
            found[key] = _containers_beyond(under, value)
        elif key in _BY_NAME and isinstance(under, list):
            found[key] = [one for one in value if one not in under]
        else:
            found[key] = value
    return found


def _containers_beyond(below: list[Json], whole: list[Json]) -> list[Json]:
    under = {container.get("name"): container for container in below}
    more = ({"name": one.get("name"), **_beyond_runtime_template(under.get(one.get("name"), {}), one)} for one in whole)
    return [one for one in more if len(one) > 1]


def _fields_in_order(value: Any) -> Any:
    """Return `value` with lists of named entries in the order of their names, for a comparison."""
    if isinstance(value, Mapping):
        return {key: _fields_in_order(inner) for key, inner in value.items()}
    if not isinstance(value, list):
        return value
    entries = [_fields_in_order(one) for one in value]
    named = all(isinstance(one, Mapping) and isinstance(one.get("name"), str) for one in entries)
    return sorted(entries, key=lambda one: str(one["name"])) if named else entries
