"""References between the objects of one file: ConfigMaps and Secrets that a job names."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ringtrain_operator.errors import spelling_hint
from ringtrain_operator.spec.job import Job
from ringtrain_operator.spec.reserved import templates_of
from ringtrain_operator.spec.template import containers_of

from .contents import KINDS, read_contents

# Fields of a pod that name an object: the field, the kind, and the field with the name.
_SOURCES = (("configMap", "ConfigMap", "name"), ("secret", "Secret", "secretName"))
_REFERENCES = (("configMap", "ConfigMap"), ("secret", "Secret"))


def reference_problems(job: Job, documents: Sequence[Any]) -> Iterator[tuple[bool, str]]:
    """Yield references of the job's pods that do not match `documents`, and whether each is certainly wrong.

    Certain: an object in another namespace, and a missing key. Uncertain: a name similar to an object of the file.
    Other names may exist in the cluster and are no problems. Raises Invalid.
    """
    here = read_contents(documents, job.namespace)
    elsewhere = {
        (doc["kind"], str(metadata.get("name"))): metadata.get("namespace")
        for doc in documents
        if isinstance(doc, Mapping) and doc.get("kind") in KINDS and (metadata := doc.get("metadata") or {})
    }
    for kind, name, keys in _required_references(job):
        if (kind, name) in here:
            missing = sorted(keys - set(here[kind, name]))
            has = ", ".join(sorted(here[kind, name])) or "none"
            yield from ((True, f"{kind} {name} of this file has no key {key}; it has {has}") for key in missing)
        elif (kind, name) in elsewhere:
            where = f"is in namespace {elsewhere[kind, name]}, the job in {job.namespace}"
            yield True, f"{kind} {name} of this file {where}: its pods see those of their own namespace"
        elif hint := spelling_hint(name, [other for found, other in here if found == kind]):
            yield False, f"{kind} {name} is not in this file; {hint}"


def _required_references(job: Job) -> Iterator[tuple[str, str, set[str]]]:
    """Yield kind, name and keys of the objects that the templates require."""
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
