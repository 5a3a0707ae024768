"""Check that the ConfigMaps and Secrets that a job refers to match those in the same file."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ringtrain_operator.contract import KIND
from ringtrain_operator.errors import found_text, shown, spelling_hint
from ringtrain_operator.spec.job import Job
from ringtrain_operator.spec.reserved import templates_of
from ringtrain_operator.spec.template import containers_of
from ringtrain_operator.spec.training_container import DEFAULT_CONTAINER

from .contents import KINDS, field_problems, read_contents

# Fields of a pod that name an object: the field, the kind, and the field with the name.
_SOURCES = (("configMap", "ConfigMap", "name"), ("secret", "Secret", "secretName"))
_REFERENCES = (("configMap", "ConfigMap"), ("secret", "Secret"))


def reference_problems(job: Job, documents: Sequence[Any]) -> Iterator[tuple[bool, str]]:
    """Yield a pair for each reference that does not match `documents`: whether the problem is certain, and a text.

    A problem is certain if the object in `documents` is in another namespace or lacks a key. It is uncertain if no
    object has the name but one has a similar name. Other names may exist in the cluster and are not reported. Raises
    Invalid.
    """
    yield from ((True, text) for text in (*_default_container_problems(job), *_image_problems(job)))
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
        elif hint := spelling_hint(name, [other for kept, other in here if kept == kind]):
            yield False, f"{kind} {name} is not in this file; {hint}"


def object_problems(documents: Sequence[Any]) -> Iterator[str]:
    """Yield a text for each field of a ConfigMap or Secret, except those with its contents, that `kubectl apply` would
    refuse, and for each job that has the name of an earlier one."""
    jobs = set()
    for document in documents:
        if not isinstance(document, Mapping):
            continue
        metadata, kind = document.get("metadata"), str(document.get("kind"))
        metadata = metadata if isinstance(metadata, Mapping) else {}
        name = metadata.get("name")
        if kind == KIND and name is not None:
            key = (str(metadata.get("namespace") or "default"), str(name))
            if key in jobs:
                yield f"{name}: appears twice; give one of the jobs another name"
            jobs.add(key)
        meant = next((one for one in KINDS if one.lower() == kind.lower()), None)
        if meant is None:
            continue
        if kind != meant:
            yield f"kind: is {shown(kind)}; did you mean {meant}?"
        if document.get("apiVersion") != "v1":
            version = found_text(document.get("apiVersion"))
            yield f"{meant} {name or ''}".strip() + f": apiVersion: {version}; expected 'v1'"
        owner = f"{meant} {name}" if isinstance(name, str) and name else meant
        yield from (f"{owner}: {problem}" for problem in field_problems({**document, "kind": meant}))


def _default_container_problems(job: Job) -> Iterator[str]:
    """Yield a text for each pod template whose annotation names a container that it does not have."""
    for path, template in templates_of(job.spec).items():
        wanted = ((template.get("metadata") or {}).get("annotations") or {}).get(DEFAULT_CONTAINER)
        names = [str(container.get("name")) for container in containers_of(template)]
        if wanted is not None and wanted not in names:
            yield f"{path}: annotation {DEFAULT_CONTAINER} is {shown(wanted)}; expected one of {', '.join(names)}"


def _image_problems(job: Job) -> Iterator[str]:
    """Yield a text for each image that the API server accepts and no node can pull."""
    for path, template in templates_of(job.spec).items():
        for container in (*containers_of(template, "initContainers"), *containers_of(template)):
            image = str(container.get("image") or "")
            first, *rest = image.partition("@")[0].split("/")
            # As in Docker, a first part with a dot, a port or upper-case letters is a registry if more parts follow.
            is_registry = rest and (first != first.lower() or first == "localhost" or set(first) & set(".:"))
            repository = "/".join(rest if is_registry else [first, *rest]).partition(":")[0]
            if len(image.split()) > 1 or repository != repository.lower():
                where = f"{path}: image of container {container.get('name')}"
                yield f"{where} is {shown(image)}; expected no space and a repository in lower case"


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
