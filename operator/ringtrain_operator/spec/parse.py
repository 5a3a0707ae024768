"""Parse a manifest (a dict) into a `Job`, or report every problem in it."""

import json
import re
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import Any

from pydantic import BaseModel, ValidationError

from ..contract import API_VERSION, KIND
from ..errors import Invalid, Problem, shown, spelling_hint
from .base import MAX_DEPTH, Rule, nesting_depth, parse_time, without_nulls
from .job import KUEUE_PROVISIONS, QUEUE_LABEL, Job, JobSpec
from .labels import metadata_problems
from .launcher_words import MPI, launcher_in
from .metrics_rule import metrics_rule_problem
from .pod_schema import PodSchema, packaged_pod_spec_schema
from .reserved import dangling_reference_problems, reserved_name_problems
from .resolvers import dns_policy_problems
from .template import containers_of, partial_template_problems, shape_problems, worker_template_problems
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
_OPAQUE = frozenset({"template", "emptyDir"})
# Expected types, by pydantic's types of errors.
_EXPECTED_TYPES = {
    "bool_type": "true or false",
    "dict_type": "a mapping",
    "finite_number": "a number",
    "float_type": "a number",
    "int_from_float": "a whole number",
    "int_type": "a whole number",
    "model_type": "a mapping",
    "string_type": "a text: write it in quotes",
    "tuple_type": "a list",
}
# Fields of containers and of pods that users often write at a higher level.
_OF_CONTAINERS = frozenset({"image", "command", "args", "env", "resources", "volumeMounts"})
_OF_PODS = frozenset({"containers", "volumes", "nodeSelector", "tolerations", "affinity", "imagePullSecrets"})
# Sections of the spec with a pod template. The operator fills in omitted fields in all but the worker's.
_TEMPLATES = ("worker", "launcher", "dataWorkers", "evaluator")
_OPTIONAL = {
    f"spec.{section}.template.spec.{field}"
    for section in _TEMPLATES[1:]
    for field in ("containers", "containers[0].name")
}


def parse_job(obj: Mapping[str, Any], *, schema: PodSchema | None = None, templates: bool = True) -> Job:
    """Parse `obj` into a job. Raises Invalid with every problem: path, value, what is allowed.

    A job with a templateRef is merged with the template stored in its status; without a stored template it is invalid.
    Pod templates are checked against `schema`, by default the one in this package. With `templates=False` only the
    parts of templates that this package reads are checked, as for a job that was accepted before.
    """
    metadata = obj.get("metadata")
    if not isinstance(metadata, Mapping):
        raise Invalid([Problem("metadata", f"must be a mapping with a name, is {shown(metadata)}")])
    if isinstance(spec := obj.get("spec"), Mapping) and spec.get("templateRef") is not None:
        obj = resolved_job_spec(obj)
    problems = list(_identity_problems(obj, metadata))
    spec = obj.get("spec")
    if not isinstance(spec, Mapping):
        raise Invalid([*problems, Problem("spec", f"must be a mapping, is {shown(spec)}")])
    if nesting_depth(spec) > MAX_DEPTH:
        message = f"is nested more than {MAX_DEPTH} levels deep; no field of a job or of a pod template is"
        raise Invalid([*problems, Problem("spec", message)])
    parsed, spec_problems = _parse_spec(spec, (schema or packaged_pod_spec_schema()) if templates else None)
    problems += spec_problems
    if parsed is not None and parsed.template_ref is not None:
        reference = parsed.template_ref
        message = f"{reference.kind} {reference.name} is not known here, and the job is incomplete without it"
        problems.append(Problem("spec.templateRef", message))
    if problems or parsed is None:
        raise Invalid(problems)
    job = _parsed_job(metadata, parsed)
    # The label may be added at any time. A running job does not wait in a queue because of it.
    if templates and parsed.scheduling.provisioning is not None and job.queue:
        raise Invalid([Problem(f"metadata.labels[{QUEUE_LABEL}]", KUEUE_PROVISIONS)])
    return job


def _parsed_job(metadata: Mapping[str, Any], parsed: JobSpec) -> Job:
    return Job(
        name=name_in_metadata(metadata),
        namespace=metadata.get("namespace") or "default",
        uid=str(metadata.get("uid") or ""),
        generation=int(metadata.get("generation") or 1),
        created=parse_time(metadata.get("creationTimestamp")) or datetime.fromtimestamp(0, UTC),
        spec=parsed,
        deleting=bool(metadata.get("deletionTimestamp")),
        labels=dict(metadata.get("labels") or {}),
    )


def name_in_metadata(metadata: Mapping[str, Any]) -> Any:
    """Return the object's name, or its `generateName` followed by five zeros."""
    prefix = metadata.get("generateName")
    return metadata.get("name") or (f"{prefix}00000" if isinstance(prefix, str) and prefix else None)


def update_problems(new: JobSpec, old: JobSpec, status: Mapping[str, Any] | None) -> list[Problem]:
    """Return the rules that forbid the change from `old` to `new`, of a job with `status`. The CRD has the same rules
    in CEL.
    """
    return [
        Problem(f"spec.{rule.path}", rule.message)
        for rule in JobSpec.RULES
        if rule.holds_update is not None
        and (is_spec_fixed(status) or not rule.once_fixed)
        and not rule.holds_update(new, old)
    ]


def _identity_problems(obj: Mapping[str, Any], metadata: Mapping[str, Any]) -> Iterator[Problem]:
    """Yield problems of the metadata, kind and version that the API server would refuse."""
    for key, expected in (("apiVersion", API_VERSION), ("kind", KIND)):
        if obj.get(key) != expected:
            yield Problem(key, f"is {shown(obj.get(key))}, expected {expected!r}")
    name = name_in_metadata(metadata)
    if not isinstance(name, str) or not re.fullmatch(NAME_PATTERN, name) or len(name) > MAX_NAME_LENGTH:
        yield Problem(
            "metadata.name" if metadata.get("name") or name is None else "metadata.generateName",
            f"is {shown(name)}; it becomes the name of a Service and of hosts: expected a letter first, then only "
            f"lower-case letters, digits and '-', and at most {MAX_NAME_LENGTH} characters",
        )
    elif name in RESERVED_NAMES:
        yield Problem("metadata.name", f"is {shown(name)}, the name of another host or Service; {ANOTHER_NAME}")
    namespace = metadata.get("namespace") or "default"
    if not isinstance(namespace, str) or not re.fullmatch(NAMESPACE_PATTERN, namespace) or len(namespace) > 63:
        message = f"is {shown(namespace)}; expected at most 63 lower-case letters, digits and '-'"
        yield Problem("metadata.namespace", message)
    yield from shape_problems(metadata, "metadata", {"labels": {}, "annotations": {}, "uid": str})
    yield from metadata_problems(metadata, "metadata")
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
        problems = [_spec_problem(error) for error in exc.errors(include_url=False)]
        return None, [*problems, *_template_problems(pruned, {p.path for p in problems}, schema)]
    problems = [Problem(f"{path}.{rule.path}", rule.message) for path, rule in _broken_rules(spec, "spec")]
    if spec.logs.metrics and (problem := metrics_rule_problem(spec.logs.metrics)):
        problems.append(Problem("spec.logs.metrics", problem))
    problems += _template_problems(pruned, set(), schema)
    if schema is not None and not problems:
        problems += _launcher_problems(spec)
    # Clashes come first: a mount at the operator's path is reported as a clash, whatever volume it names.
    return spec, problems or list(reserved_name_problems(spec)) or (_pod_problems(spec) if schema is not None else [])


def _pod_problems(spec: JobSpec) -> list[Problem]:
    """Return problems that prevent pods from being created, or from finding each other."""
    return [*dangling_reference_problems(spec), *dns_policy_problems(spec)]


def part_problems(spec: Mapping[str, Any], schema: PodSchema | None = None) -> list[Problem]:
    """Return problems in a part of a spec that no other part can correct: unknown fields, values of wrong types."""
    found = []
    try:
        JobSpec.model_validate_json(json.dumps(spec))
    except ValidationError as exc:
        found = [_spec_problem(error) for error in exc.errors(include_url=False)]
    found += _template_problems(spec, {p.path for p in found}, schema or packaged_pod_spec_schema())
    return [problem for problem in found if not problem.message.startswith(("is missing", "is empty"))]


def _template_problems(spec: Mapping[str, Any], reported: set[str], schema: PodSchema | None) -> Iterator[Problem]:
    """Yield problems of the pod templates, by this package's checks and, for other fields, Kubernetes' schema."""
    for key in _TEMPLATES:
        section = spec.get(key)
        template = section.get("template") if isinstance(section, Mapping) else None
        path = f"spec.{key}.template"
        if not isinstance(template, Mapping) or path in reported:
            continue
        found = shape_problems(template, path)
        metadata = template.get("metadata") if not found and schema is not None else None
        if not found and key == "worker":
            needs_command = not _launcher_names_the_program(spec)
            found = list(worker_template_problems(template, path, needs_command=needs_command))
        elif not found:
            found = list(partial_template_problems(template, path))
        found += metadata_problems(metadata or {}, f"{path}.metadata")
        yield from found
        reported_paths = {problem.path for problem in found}
        for problem in schema.problems(template, path) if schema is not None else ():
            if problem.path not in reported_paths and not (
                problem.path in _OPTIONAL and problem.message == "is missing"
            ):
                yield problem


def _launcher_names_the_program(spec: Mapping[str, Any]) -> bool:
    """Return whether the workers need no command: in an mpi job the launcher may have it."""
    launcher = spec.get("launcher")
    template = launcher.get("template") if isinstance(launcher, Mapping) else None
    if not isinstance(template, Mapping) or shape_problems(template, ""):
        return False
    containers = containers_of(template)
    return spec.get("backend") == "mpi" and bool(containers and containers[0].get("command"))


def _broken_rules(model: BaseModel, path: str) -> Iterator[tuple[str, Rule]]:
    """Yield every rule that `model` or a nested model breaks, with the path of that model."""
    for rule in getattr(type(model), "RULES", ()):
        if rule.holds is not None and not rule.holds(model):
            yield path, rule
    for name, info in type(model).model_fields.items():
        value, where = getattr(model, name), f"{path}.{info.alias or name}"
        if isinstance(value, BaseModel):
            yield from _broken_rules(value, where)
        elif isinstance(value, tuple):
            for index, item in enumerate(value):
                if isinstance(item, BaseModel):
                    yield from _broken_rules(item, f"{where}[{index}]")


def _spec_problem(error: Any) -> Problem:
    """Translate one pydantic error into a problem in this package's words."""
    location = tuple(error["loc"])
    path = "spec" + "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in location)
    kind, value, context = error["type"], error["input"], error.get("ctx", {})
    if kind == "missing":
        return Problem(path, "is missing")
    if kind == "extra_forbidden":
        return Problem(path, _unknown_field(location))
    if kind == "literal_error":
        return Problem(path, f"is {shown(value)}, allowed: {context['expected']}")
    return Problem(path, f"is {shown(value)}; {_expected_value(kind, context)}")


def _expected_value(kind: str, context: Mapping[str, Any]) -> str:
    """Return the expectation that a value did not meet. `kind` and `context` are a pydantic error's type and limits."""
    if kind in _EXPECTED_TYPES:
        return f"expected {_EXPECTED_TYPES[kind]}"
    if "pattern" in context:
        return f"expected a text that matches {context['pattern']}"
    bounds = {"ge": "at least", "gt": "more than", "le": "at most", "lt": "less than"}
    if found := next((f"{words} {context[key]}" for key, words in bounds.items() if key in context), ""):
        return f"expected {found}"
    unit = "characters" if kind.startswith("string") else "entries"
    if "min_length" in context:
        return f"expected at least {context['min_length']} {unit}"
    return f"expected at most {context['max_length']} {unit}" if "max_length" in context else "it is not valid here"


def _unknown_field(location: tuple[Any, ...]) -> str:
    known, name = _fields_at(location[:-1]), str(location[-1])
    if elsewhere := _path_of_field(name):
        return f"is not a field here; it is {elsewhere}"
    hint = spelling_hint(name, known) or f"allowed: {', '.join(sorted(known))}"
    return f"is not a field here; {hint}"


def _path_of_field(name: str) -> str:
    """Return the path at which a field of this name is valid; empty if nowhere. Fields of pods are in the worker's
    template.
    """
    sections = {info.alias or field: info.annotation for field, info in JobSpec.model_fields.items()}
    for section in ("worker", *sections):
        for model in _models_in(sections[section]):
            if name in (info.alias or field for field, info in model.model_fields.items()):
                return f"spec.{section}.{name}"
    pod = "spec.worker.template.spec"
    return f"{pod}.containers[0].{name}" if name in _OF_CONTAINERS else f"{pod}.{name}" if name in _OF_PODS else ""


def _fields_at(location: tuple[Any, ...]) -> list[str]:
    """Return the YAML names of the fields of the model at `location`."""
    model: type[BaseModel] = JobSpec
    for part in location:
        if isinstance(part, int):
            continue
        field = next(info for name, info in model.model_fields.items() if part in (info.alias, name))
        model = next(iter(_models_in(field.annotation)), model)
    return [info.alias or name for name, info in model.model_fields.items()]


def _models_in(annotation: Any) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for argument in getattr(annotation, "__args__", ()):
        yield from _models_in(argument)


def _launcher_problems(spec: JobSpec) -> Iterator[Problem]:
    """Yield a problem if the command of a ring job with several ranks starts a launcher such as torchrun."""
    if spec.backend != "ring" or spec.slots * spec.worker.replicas < 2:
        return
    main = containers_of(spec.worker.template)[0]
    found = launcher_in([*(main.get("command") or []), *(main.get("args") or [])])
    if not found:
        return
    mpi = "; for a program of MPI set spec.backend: mpi" if found in MPI | {"horovodrun"} else ""
    yield Problem(
        "spec.worker.template.spec.containers[0].command",
        f"starts {found}, and every rank would start a world of its own: leave {found} and its options out and "
        f"write the program that it starts (python train.py), which the agent starts once per rank{mpi}",
    )
