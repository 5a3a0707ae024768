"""Checks of the objects in a file besides the job's spec: other objects, and what the job refers to in them."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

from ringtrain_operator.contract import GROUP, KIND, VERSION
from ringtrain_operator.errors import Invalid, Problem, found_text, shown, spelling_hint
from ringtrain_operator.spec.job import Job
from ringtrain_operator.spec.parse import parse_job, part_problems
from ringtrain_operator.spec.parts import TEMPLATE_KINDS
from ringtrain_operator.spec.pod_schema import PodSchema, packaged_pod_spec_schema
from ringtrain_operator.spec.reserved import templates_of
from ringtrain_operator.spec.template import containers_of
from ringtrain_operator.spec.training_container import DEFAULT_CONTAINER
from ringtrain_operator.spec.training_template import is_template, read_template

from .contents import KINDS, METADATA_FIELDS, read_contents, unknown_fields

# Fields of a pod that name an object: the field, the kind, and the field with the name.
_SOURCES = (("configMap", "ConfigMap", "name"), ("secret", "Secret", "secretName"))
_JOB_FIELDS = ("apiVersion", "kind", "metadata", "spec", "status")
_OWN_KINDS = (KIND, *TEMPLATE_KINDS)
_REFERENCES = (("configMap", "ConfigMap"), ("secret", "Secret"))


def file_problems(
    documents: Sequence[Any], namespaces: Iterable[str], schema: PodSchema | None = None
) -> list[Problem]:
    """Return the problems of a file that are not in a job's spec: those of `_object_problems`, of templates, and
    contents of ConfigMaps and Secrets, which jobs in `namespaces` can use, that the API server would refuse."""
    problems = [*_object_problems(documents), *_job_template_problems(documents, schema)]
    for namespace in dict.fromkeys(namespaces):
        try:
            read_contents(documents, namespace)
        except Invalid as exc:
            problems += exc.problems
    return list(dict.fromkeys(problems))


def check_job(obj: dict[str, Any], documents: Sequence[Any], schema: PodSchema | None = None) -> tuple[Job, list[str]]:
    """Return the job in `obj`, and hints about names that `documents` do not have but nearly have.

    Raises Invalid with every problem of the spec, or of the references to objects in `documents`.
    """
    job = parse_job(obj, schema=schema)
    references = list(_reference_problems(job, documents))
    if problems := [Problem("", text) for is_certain, text in references if is_certain]:
        raise Invalid(problems)
    return job, [text for _, text in references]


def _reference_problems(job: Job, documents: Sequence[Any]) -> Iterator[tuple[bool, str]]:
    """Yield a pair for each reference that does not match `documents`: whether the problem is certain, and a text.

    A problem is certain if the object in `documents` is in another namespace or lacks a key. It is uncertain if no
    object has the name but one has a similar name. Other names may exist in the cluster and are not reported.
    """
    yield from ((True, text) for text in _default_container_problems(job))
    here = {}
    with suppress(Invalid):  # file_problems reports it
        here = read_contents(documents, job.namespace)
    placed = {
        (doc["kind"], str(metadata.get("name")), metadata.get("namespace") or job.namespace)
        for doc in documents
        if isinstance(doc, Mapping) and doc.get("kind") in KINDS
        if isinstance(metadata := doc.get("metadata"), Mapping) and isinstance(metadata.get("namespace"), str | None)
    }
    for kind, name, keys in _required_references(job):
        if (kind, name) in here:
            missing = sorted(keys - set(here[kind, name]))
            has = ", ".join(sorted(here[kind, name])) or "none"
            yield from ((True, f"{kind} {name} of this file has no key {key}; it has {has}") for key in missing)
        elif (others := [one[2] for one in placed if one[:2] == (kind, name)]) and job.namespace not in others:
            where = f"is in namespace {min(others)}, the job in {job.namespace}"
            yield True, f"{kind} {name} of this file {where}: its pods see those of their own namespace"
        elif hint := spelling_hint(name, [other for kept, other in here if kept == kind]):
            yield False, f"{kind} {name} is not in this file; {hint}"


def _object_problems(documents: Sequence[Any]) -> Iterator[Problem]:
    """Yield a problem for each document that is no object, each unknown field of an object or of its metadata, each
    wrong kind or version of a ConfigMap or Secret or of our group, and each object with the name of an earlier one."""
    names = set()
    for number, document in enumerate(documents, 1):
        if document is None:  # "---" at the file's end; kubectl ignores it
            continue
        if not isinstance(document, Mapping):
            message = f"is {shown(document)}; expected an object with apiVersion, kind and metadata"
            yield Problem(f"document {number}", message)
            continue
        metadata, kind = document.get("metadata"), str(document.get("kind"))
        if not isinstance(metadata, Mapping | None) and kind not in _OWN_KINDS:
            yield Problem(f"{kind}: metadata", f"is {shown(metadata)}; expected a mapping")
        metadata = metadata if isinstance(metadata, Mapping) else {}
        name = metadata.get("name")
        meant = next((one for one in KINDS if one.lower() == kind.lower()), None)
        owner = " ".join(str(part) for part in (meant, name) if part)
        if meant is not None and kind != meant:
            yield Problem("kind", f"is {shown(kind)}; did you mean {meant}?")
        if meant is not None and document.get("apiVersion") != "v1":
            yield Problem(f"{owner}: apiVersion", f"{found_text(document.get('apiVersion'))}; expected 'v1'")
        if (version := str(document.get("apiVersion"))).partition("/")[0] == GROUP and kind not in _OWN_KINDS:
            yield Problem(f"{kind} {name}: kind", f"is {shown(kind)}; expected one of {', '.join(_OWN_KINDS)}")
        if kind in TEMPLATE_KINDS and version != f"{GROUP}/{VERSION}":
            yield Problem(f"{kind} {name}: apiVersion", f"is {shown(version)}; expected '{GROUP}/{VERSION}'")
        if kind == KIND:
            yield from unknown_fields(document, f"{name}: ", _JOB_FIELDS)
        if meant is not None or kind == KIND:
            yield from unknown_fields(metadata, f"{owner or name}: metadata.", METADATA_FIELDS)
            judged = {field: metadata.get(field) for field in ("finalizers", "ownerReferences")}
            yield from packaged_pod_spec_schema().problems(judged, f"{owner or name}: metadata", "ObjectMeta")
            key = (kind, str(metadata.get("namespace") or "default"), str(name))
            if name is not None and key in names:
                yield Problem(owner or str(name), "appears twice; give one of the two another name")
            names.add(key)


def _job_template_problems(documents: Sequence[Any], schema: PodSchema | None) -> Iterator[Problem]:
    """Yield the problems of the templates of a file, whether or not a job names them."""
    for template in map(read_template, filter(is_template, documents)):
        for problem in part_problems(template.spec, schema):
            yield Problem(f"{template}: {problem.path.replace('spec', 'spec.job', 1)}", problem.message)


def _default_container_problems(job: Job) -> Iterator[str]:
    """Yield a text for each pod template whose annotation names a container that it does not have."""
    for path, template in templates_of(job.spec).items():
        wanted = ((template.get("metadata") or {}).get("annotations") or {}).get(DEFAULT_CONTAINER)
        names = [str(container.get("name")) for container in containers_of(template)]
        if wanted is not None and wanted not in names:
            yield f"spec.{path}: annotation {DEFAULT_CONTAINER} is {shown(wanted)}; expected one of {', '.join(names)}"


def _required_references(job: Job) -> Iterator[tuple[str, str, set[str]]]:
    """Yield kind, name and needed keys of each ConfigMap and Secret that the job's pods require."""
    for template in templates_of(job.spec).values():
        for volume in (template.get("spec") or {}).get("volumes") or ():
            for field, kind, by in _SOURCES:
                if source := _required_reference(volume.get(field)):
                    yield kind, str(source.get(by)), {str(item.get("key")) for item in source.get("items") or ()}
        for container in (*containers_of(template, "initContainers"), *containers_of(template)):
            yield from _references_of_variables(container)


def _references_of_variables(container: Mapping[str, Any]) -> Iterator[tuple[str, str, set[str]]]:
    for field, kind in _REFERENCES:
        for variable in container.get("env") or ():
            if source := _required_reference((variable.get("valueFrom") or {}).get(f"{field}KeyRef")):
                yield kind, str(source.get("name")), {str(source.get("key"))}
        for source_field in container.get("envFrom") or ():
            if source := _required_reference(source_field.get(f"{field}Ref")):
                yield kind, str(source.get("name")), set()


def _required_reference(source: Any) -> Mapping[str, Any] | None:
    """Return `source` if it is a reference that is not optional."""
    return source if isinstance(source, Mapping) and not source.get("optional") else None
