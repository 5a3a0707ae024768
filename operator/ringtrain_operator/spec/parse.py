"""Parser of manifests: a dict becomes a `Job`, or every problem in it is reported."""

import json
import re
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import Any

from pydantic import ValidationError

from ..contract import API_VERSION, KIND
from ..errors import MISSING, Invalid, Problem, found_text, shown
from .base import MAX_DEPTH, field_at, nesting_depth, parse_time, without_nulls
from .job import KUEUE_PROVISIONS, QUEUE_LABEL, Job, JobSpec
from .labels import annotation_problems, label_problems
from .launcher_words import MPI, launcher_of
from .metrics_rule import metrics_rule_problem
from .model_problems import model_problems, rule_problems
from .pod_schema import PodSchema, packaged_pod_spec_schema
from .reserved import dangling_reference_problems, reserved_name_problems, templates_of
from .template import (
    TEMPLATES,
    WORKER_TEMPLATES,
    containers_of,
    partial_template_problems,
    shape_problems,
    template_at,
    without_amounts,
    worker_template_problems,
)
from .training_container import original_problem, with_training_containers_first
from .training_template import resolved_job_spec
from .updates import is_spec_fixed

# A pod's name is its host name, limited to 63 characters; this leaves room for "-worker-1023".
MAX_NAME_LENGTH = 51
# Matched in full. The CRD has the same pattern, in RE2's syntax.
NAME_PATTERN = r"^[a-z]([-a-z0-9]*[a-z0-9])?$"
# The job's name is the domain of its pods. Resolvers answer for localhost, local and onion themselves (RFC 6761, 6762,
# 7686), and the API server has the Service kubernetes.
RESERVED_NAMES = ("kubernetes", "localhost", "local", "onion")
ANOTHER_NAME = "give the job another name"
NAMESPACE_PATTERN = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$"

# Dicts of Kubernetes' own types: the API server validates them, nulls included.
_OPAQUE = frozenset({path.rpartition(".")[2] for path in TEMPLATES} | {"emptyDir"})
_OPTIONAL = {
    f"spec.{path}.spec.{field}"
    for path in set(TEMPLATES) - set(WORKER_TEMPLATES)
    for field in ("containers", "containers[0].name", "containers[0].image")
}


def parse_job(obj: Mapping[str, Any], *, schema: PodSchema | None = None, templates: bool = True) -> Job:
    """Parse the manifest `obj` into a job. Raises Invalid with every problem: path, value, what is allowed.

    A job with a templateRef is merged with the template stored in its status; without a stored template it is invalid.
    Pod templates are checked against `schema`, by default the one in this package. With `templates=False` only the
    parts of templates that this package reads are checked, as for a job that was accepted before.
    """
    metadata = obj.get("metadata")
    if not isinstance(metadata, Mapping):
        raise Invalid([Problem("metadata", f"{found_text(metadata)}; expected a mapping with a name")])
    if isinstance(spec := obj.get("spec"), Mapping) and spec.get("templateRef") is not None:
        obj = resolved_job_spec(obj)
    problems = list(_identity_problems(obj, metadata))
    spec = obj.get("spec")
    if not isinstance(spec, Mapping):
        raise Invalid([*problems, Problem("spec", f"{found_text(spec)}; expected a mapping")])
    if nesting_depth(spec) > MAX_DEPTH:
        message = f"is nested more than {MAX_DEPTH} levels deep; no field of a job or of a pod template is"
        raise Invalid([*problems, Problem("spec", message)])
    spec, indexes = with_training_containers_first(spec)
    parsed, spec_problems = _parse_spec(spec, (schema or packaged_pod_spec_schema()) if templates else None)
    problems += [original_problem(problem, indexes) for problem in spec_problems]
    if parsed is not None and parsed.template_ref is not None:
        reference = parsed.template_ref
        message = f"{reference.kind} {reference.name} is not known here, and the job is incomplete without it"
        problems.append(Problem("spec.templateRef", message))
    if problems or parsed is None:
        raise Invalid(problems)
    job = Job(
        name=name_in_metadata(metadata),
        namespace=metadata.get("namespace") or "default",
        uid=str(metadata.get("uid") or ""),
        generation=int(metadata.get("generation") or 1),
        created=parse_time(metadata.get("creationTimestamp")) or datetime.fromtimestamp(0, UTC),
        spec=parsed,
        deleting=bool(metadata.get("deletionTimestamp")),
        labels=dict(metadata.get("labels") or {}),
    )
    # The label may be added at any time. A running job does not wait in a queue because of it.
    if templates and parsed.scheduling.provisioning is not None and job.queue:
        raise Invalid([Problem(f"metadata.labels[{QUEUE_LABEL}]", KUEUE_PROVISIONS)])
    return job


def name_in_metadata(metadata: Mapping[str, Any]) -> Any:
    """Return the object's name; for `generateName` an example of a name that the API server would generate."""
    prefix, name = metadata.get("generateName"), metadata.get("name")
    if name is not None and name != "":
        return name
    return f"{prefix}00000" if isinstance(prefix, str) and prefix else None


def update_problems(new: JobSpec, old: JobSpec, status: Mapping[str, Any] | None) -> list[Problem]:
    """Return the rules that a change of a spec from `old` to `new` violates. The CRD has the same rules in CEL."""
    return [
        Problem(f"spec.{rule.path}", rule.message)
        for rule in JobSpec.RULES
        if rule.holds_update is not None
        and (is_spec_fixed(status) or not rule.once_fixed)
        and not rule.holds_update(new, old)
    ]


def _identity_problems(obj: Mapping[str, Any], metadata: Mapping[str, Any]) -> Iterator[Problem]:
    """Yield problems in kind, version and metadata that the API server would refuse."""
    for key, expected in (("apiVersion", API_VERSION), ("kind", KIND)):
        if obj.get(key) != expected:
            yield Problem(key, f"{found_text(obj.get(key))}; expected {expected!r}")
    name = name_in_metadata(metadata)
    if not isinstance(name, str) or not re.fullmatch(NAME_PATTERN, name) or len(name) > MAX_NAME_LENGTH:
        is_prefix = name is not None and name != metadata.get("name")
        field, suffix = ("generateName", " with the 5 that the cluster adds") if is_prefix else ("name", "")
        yield Problem(
            f"metadata.{field}",
            f"{found_text(metadata.get(field))}; it becomes the name of a Service and of hosts: expected a letter "
            f"first, then only lower-case letters, digits and '-', and at most {MAX_NAME_LENGTH} characters{suffix}",
        )
    elif name in RESERVED_NAMES:
        yield Problem("metadata.name", f"is {shown(name)}, the name of another host or Service; {ANOTHER_NAME}")
    namespace = metadata.get("namespace") or "default"
    if not isinstance(namespace, str) or not re.fullmatch(NAMESPACE_PATTERN, namespace) or len(namespace) > 63:
        message = f"is {shown(namespace)}; expected at most 63 lower-case letters, digits and '-'"
        yield Problem("metadata.namespace", message)
    yield from shape_problems(metadata, "metadata", {"labels": {}, "annotations": {}, "uid": str})
    for field, problems in (("labels", label_problems), ("annotations", annotation_problems)):
        yield from (Problem(f"metadata.{field}{below}", message) for below, message in problems(metadata.get(field)))
    generation = metadata.get("generation")
    if isinstance(generation, bool) or not isinstance(generation, int | None):
        yield Problem("metadata.generation", f"is {shown(generation)}, expected a whole number")
    try:
        parse_time(metadata.get("creationTimestamp"))
    except ValueError:
        message = f"is {shown(metadata['creationTimestamp'])}, expected a time such as 2026-01-31T12:00:00Z"
        yield Problem("metadata.creationTimestamp", message)


def _parse_spec(raw: Mapping[str, Any], schema: PodSchema | None) -> tuple[JobSpec | None, list[Problem]]:
    pruned = without_nulls(raw, _OPAQUE)
    try:
        # Through JSON: in strict mode only JSON lists become tuples.
        spec = JobSpec.model_validate_json(json.dumps(pruned, default=str))
    except ValidationError as exc:
        problems = model_problems(exc)
        return None, [*problems, *_template_problems(pruned, {p.path for p in problems}, schema)]
    problems = list(rule_problems(spec, "spec"))
    if spec.logs.metrics and (problem := metrics_rule_problem(spec.logs.metrics)):
        problems.append(Problem("spec.logs.metrics", problem))
    problems += _template_problems(pruned, set(), schema)
    if schema is not None and not problems:
        problems += _launcher_problems(spec)
    # Clashes come first: a mount at the operator's path is reported as a clash, whatever volume it names.
    problems = problems or list(reserved_name_problems(spec))
    if schema is not None and not problems:
        problems = [*dangling_reference_problems(spec), *dns_policy_problems(spec)]
    return spec, problems


def part_problems(spec: Mapping[str, Any], schema: PodSchema | None = None) -> list[Problem]:
    """Return problems in a part of a spec (a template) that the rest of the spec cannot repair."""
    found = []
    try:
        JobSpec.model_validate_json(json.dumps(spec))
    except ValidationError as exc:
        found = model_problems(exc)
    found += _template_problems(spec, {p.path for p in found}, schema or packaged_pod_spec_schema())
    return [problem for problem in found if not problem.message.startswith(("is missing", "is empty"))]


def _template_problems(spec: Mapping[str, Any], reported: set[str], schema: PodSchema | None) -> Iterator[Problem]:
    """Yield problems of the pod templates, found by this package and by Kubernetes' schema."""
    for field in TEMPLATES:
        template, path = template_at(spec, field), f"spec.{field}"
        if template is None or path in reported:
            continue
        found = shape_problems(template, path)
        is_shaped = not found
        if is_shaped and field in WORKER_TEMPLATES:
            needs_command = not _launcher_names_the_program(spec)
            found = list(worker_template_problems(template, path, needs_command=needs_command))
        elif is_shaped:
            found = list(partial_template_problems(template, path))
        yield from found
        reported_paths = {problem.path for problem in found}
        devices = spec[field.partition(".")[0]].get("devices")
        judged = without_amounts(template, devices) if is_shaped else template
        for problem in schema.problems(judged, path) if schema is not None else ():
            if problem.path not in reported_paths and not (problem.path in _OPTIONAL and problem.message == MISSING):
                yield problem
    logs = spec.get("logs")
    empty_dir = logs.get("emptyDir") if isinstance(logs, Mapping) else None
    if schema is not None and isinstance(empty_dir, Mapping):
        yield from schema.problems(empty_dir, "spec.logs.emptyDir", "EmptyDirVolumeSource")


def _launcher_names_the_program(spec: Mapping[str, Any]) -> bool:
    """Return whether the workers need no command, because the launcher of an mpi job has it."""
    template = template_at(spec, "launcher.template")
    if template is None or shape_problems(template, ""):
        return False
    containers = containers_of(template)
    return spec.get("backend") == "mpi" and bool(containers and containers[0].get("command"))


def _launcher_problems(spec: JobSpec) -> Iterator[Problem]:
    """Yield a problem if a ring job's launcher has a command, or if each rank would start one, such as torchrun."""
    if spec.backend != "ring":
        return
    if any(container.get("command") for container in containers_of(spec.launcher.template or {})[:1]):
        path = "spec.launcher.template.spec.containers[0].command"
        yield Problem(path, "is for spec.backend: mpi; the launcher of a ring job runs no program, so remove it")
    if spec.slots * spec.worker.replicas < 2:
        return
    for path in WORKER_TEMPLATES:
        for main in containers_of(field_at(spec, path) or {})[:1]:
            found = launcher_of([*(main.get("command") or []), *(main.get("args") or [])])
            mpi = "; for a program of MPI set spec.backend: mpi" if found in MPI | {"horovodrun"} else ""
            message = (
                f"starts {found}, and every rank would start a world of its own: leave {found} and its options out and "
                f"write the program that it starts (python train.py), which the agent starts once per rank{mpi}"
            )
            if found:
                yield Problem(f"spec.{path}.spec.containers[0].command", message)


# Search domain of a namespace's Services: <namespace>.svc.<domain of the cluster>.
_OF_SERVICES = re.compile(r"[a-z0-9-]+\.svc(\.|$)")
_WAYS = "leave it out, or write ClusterFirst"


def dns_policy_problems(spec: JobSpec) -> Iterator[Problem]:
    """Yield a problem for each DNS policy with which a pod could not find the launcher."""
    for field, template in templates_of(spec).items():
        pod = template.get("spec") or {}
        policy, path = pod.get("dnsPolicy"), f"spec.{field}.spec.dnsPolicy"
        if not field.startswith(("worker.", "dataWorkers.")):
            continue
        if policy == "Default":
            yield Problem(path, f"is 'Default': the node's DNS does not know the launcher's name; {_WAYS}")
        searched = (pod.get("dnsConfig") or {}).get("searches") or ()
        if policy == "None" and not any(_OF_SERVICES.match(str(domain)) for domain in searched):
            yield Problem(
                path,
                "is 'None', and dnsConfig.searches has no <namespace>.svc.<domain of the cluster>, which the "
                f"launcher's name needs; add it, or {_WAYS}",
            )
