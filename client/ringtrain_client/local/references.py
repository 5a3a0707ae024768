"""What the objects of one file say of each other: ConfigMaps and Secrets that a job names."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ringtrain_operator.errors import spelling_hint
from ringtrain_operator.spec.job import Job
from ringtrain_operator.spec.reserved import templates_of
from ringtrain_operator.spec.template import containers_of

from .contents import KINDS, contents_beside

# Where a pod names one: the field, the kind, and by which field of it.
_SOURCES = (("configMap", "ConfigMap", "name"), ("secret", "Secret", "secretName"))
_REFERENCES = (("configMap", "ConfigMap"), ("secret", "Secret"))


def reference_problems(job: Job, documents: Sequence[Any]) -> Iterator[tuple[bool, str]]:
    """Yield what the job's pods name and `documents` have otherwise, and whether that is certain.

    That is another namespace, a key that is not there, and a name that is nearly one of theirs: what is in no
    document may be in the cluster. Raises Invalid.
    """
    here = contents_beside(documents, job.namespace)
    elsewhere = {
        (doc["kind"], str(metadata.get("name"))): metadata.get("namespace")
        for doc in documents
        if isinstance(doc, Mapping) and doc.get("kind") in KINDS and (metadata := doc.get("metadata") or {})
    }
    for kind, name, keys in _named_references(job):
        if (kind, name) in here:
            missing = sorted(keys - set(here[kind, name]))
            has = ", ".join(sorted(here[kind, name])) or "none"
            yield from ((True, f"{kind} {name} of this file has no key {key}; it has {has}") for key in missing)
        elif (kind, name) in elsewhere:
            where = f"is in namespace {elsewhere[kind, name]}, the job in {job.namespace}"
            yield True, f"{kind} {name} of this file {where}: its pods see those of their own namespace"
        elif hint := spelling_hint(name, [other for found, other in here if found == kind]):
            yield False, f"{kind} {name} is not in this file; {hint}"


def _named_references(job: Job) -> Iterator[tuple[str, str, set[str]]]:
    """Kind, name and keys of what the templates name and need."""
    for template in templates_of(job.spec).values():
        for volume in (template.get("spec") or {}).get("volumes") or ():
            for field, kind, by in _SOURCES:
                if source := _needed_references(volume.get(field)):
                    yield kind, str(source.get(by)), {str(item.get("key")) for item in source.get("items") or ()}
        for container in (*containers_of(template, "initContainers"), *containers_of(template)):
            yield from _references_of_variables(container)


def _references_of_variables(container: Mapping[str, Any]) -> Iterator[tuple[str, str, set[str]]]:
    for field, kind in _REFERENCES:
        for variable in container.get("env") or ():
            if source := _needed_references((variable.get("valueFrom") or {}).get(f"{field}KeyRef")):
                yield kind, str(source.get("name")), {str(source.get("key"))}
        for given in container.get("envFrom") or ():
            if source := _needed_references(given.get(f"{field}Ref")):
                yield kind, str(source.get("name")), set()


def _needed_references(source: Any) -> Mapping[str, Any] | None:
    return source if isinstance(source, Mapping) and not source.get("optional") else None
