"""Contents of ConfigMaps and Secrets for a local job: those in the job's file, and the job's own Secret."""

import base64
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from ringtrain_operator.errors import Invalid, LocalUnsupported, Problem, found_text, shown, spelling_hint
from ringtrain_operator.spec.labels import annotation_problems, is_domain, label_problems

Contents = Mapping[tuple[str, str], Mapping[str, bytes]]
"""Maps kind and name to a mapping of keys to bytes."""

KINDS: Final = ("ConfigMap", "Secret")
# As the API server checks them: a key is the name of a file.
_KEY = re.compile(r"(?!\.\.|\.$)[-._A-Za-z0-9]{1,253}")
# The fields of both kinds, and each kind's fields with their types.
_COMMON = {"apiVersion": object, "kind": str, "metadata": dict, "immutable": bool}
_FIELDS: Final[Mapping[str, Mapping[str, type]]] = {
    "ConfigMap": {**_COMMON, "data": dict, "binaryData": dict},
    "Secret": {**_COMMON, "data": dict, "stringData": dict, "type": str},
}
METADATA_FIELDS: Final = (
    *("name", "generateName", "namespace", "labels", "annotations", "finalizers", "ownerReferences", "uid"),
    *("generation", "resourceVersion", "creationTimestamp", "deletionTimestamp", "deletionGracePeriodSeconds"),
    *("managedFields", "selfLink"),
)
MOST_BYTES: Final = 1 << 20
# Keys that the API server requires in a Secret of a type.
_SECRET_KEYS: Final[Mapping[str, tuple[str, ...]]] = {
    "kubernetes.io/dockerconfigjson": (".dockerconfigjson",),
    "kubernetes.io/dockercfg": (".dockercfg",),
    "kubernetes.io/ssh-auth": ("ssh-privatekey",),
    "kubernetes.io/tls": ("tls.crt", "tls.key"),
}
_VARIABLE = re.compile(r"[A-Za-z_.-][A-Za-z0-9_.-]*")


def read_contents(documents: Sequence[Any], namespace: str) -> dict[tuple[str, str], dict[str, bytes]]:
    """Return the contents of the ConfigMaps and Secrets among `documents` that a job in `namespace` can use.

    Raises Invalid with every field that the API server would refuse.
    """
    found: dict[tuple[str, str], dict[str, bytes]] = {}
    problems: list[Problem] = []
    for document in documents:
        if not isinstance(document, Mapping) or document.get("kind") not in KINDS:
            continue
        metadata = {} if document.get("metadata") is None else document["metadata"]
        if not isinstance(metadata, Mapping):
            problems.append(Problem(f"{document['kind']}: metadata", f"is {shown(metadata)}; expected a mapping"))
        elif not isinstance(own := metadata.get("namespace") or namespace, str) or own == namespace:
            name = str(metadata.get("name"))
            contents, wrong = _decoded_contents(document)
            found[document["kind"], name] = contents
            wrong += [*_field_problems(document), *(() if wrong else _size_problems(document, contents))]
            owner = f"{document['kind']} {name}" if metadata.get("name") else document["kind"]
            problems += [Problem(f"{owner}: {each.path}", each.message) for each in wrong]
    if problems:
        raise Invalid(problems)
    return found


def unknown_fields(value: Mapping[Any, Any], path: str, known: Collection[str]) -> Iterator[Problem]:
    """Yield a problem for each key of `value` that is not `known`. `path`: path of `value`, with a dot at its end."""
    for field in value:
        if field not in known:
            hint = spelling_hint(str(field), known) or f"expected one of {', '.join(known)}"
            yield Problem(f"{path}{field}", f"is not a field here; {hint}")


def _field_problems(document: Mapping[str, Any]) -> Iterator[Problem]:
    """Yield the problems of a ConfigMap or Secret in fields without contents: unknown fields, types and metadata."""
    fields = _FIELDS[document["kind"]]
    yield from unknown_fields(document, "", fields)
    for field, kind in fields.items():
        value = document.get(field)
        if kind in (bool, str) and not isinstance(value, kind | None):
            expected = "true or false" if kind is bool else "a text: write it in quotes"
            yield Problem(field, f"is {shown(value)}; expected {expected}")
    metadata = document.get("metadata") or {}
    name = metadata.get("name")
    if not isinstance(name, str) or not is_domain(name):
        expected = "at most 253 lower-case letters, digits, '-' and '.', with a letter or a digit at both ends"
        yield Problem("metadata.name", f"{found_text(name)}; expected {expected}")
    if not isinstance(metadata.get("namespace"), str | None):
        yield Problem("metadata.namespace", f"is {shown(metadata['namespace'])}; expected a text: write it in quotes")
    for field, problems in (("labels", label_problems), ("annotations", annotation_problems)):
        entries = metadata.get(field)
        if not isinstance(entries, Mapping | None):
            yield Problem(f"metadata.{field}", f"is {shown(entries)}; expected a mapping of names to strings")
        yield from (Problem(f"metadata.{field}{below}", message) for below, message in problems(entries))


def _size_problems(document: Mapping[str, Any], contents: Mapping[str, bytes]) -> Iterator[Problem]:
    """Yield problems of the contents of a ConfigMap or Secret as a whole: size, keys used twice, missing keys."""
    size = sum(len(value) for value in contents.values())
    if size > MOST_BYTES:
        yield Problem("data", f"has {size} bytes; expected at most {MOST_BYTES}")
    if document["kind"] == "ConfigMap":
        twice = set(document.get("data") or ()) & set(document.get("binaryData") or ())
        yield from (Problem(f"binaryData.{key}", "is a key of data, too; remove one of them") for key in sorted(twice))
    for key in _SECRET_KEYS.get(str(document.get("type")), ()) if document["kind"] == "Secret" else ():
        if key not in contents:
            yield Problem(f"data[{key}]", f"is missing; a Secret of type {document['type']} needs it")


def _decoded_contents(document: Mapping[str, Any]) -> tuple[dict[str, bytes], list[Problem]]:
    """Return an object's values as bytes by key, and its problems. `stringData` overrides `data`, as in the API."""
    plain = "data" if document["kind"] == "ConfigMap" else "stringData"
    contents, problems = {}, []
    for field in ("binaryData", "data") if document["kind"] == "ConfigMap" else ("data", "stringData"):
        entries = {} if document.get(field) is None else document[field]
        if not isinstance(entries, Mapping):
            problems.append(Problem(field, f"is {shown(entries)}; expected a mapping of names to strings"))
            continue
        for key, value in entries.items():
            if not _KEY.fullmatch(str(key)):
                expected = "expected letters, digits, '-', '_' and '.', at most 253"
                problems.append(Problem(f"{field}[{shown(key)}]", f"is not a valid key; {expected}"))
            if not isinstance(value, str):
                problems.append(Problem(f"{field}.{key}", f"is {shown(value)}; expected a string: put it in quotes"))
                continue
            try:
                contents[str(key)] = value.encode() if field == plain else _from_base64(value)
            except ValueError:  # not ASCII, or not base64
                # A Secret's value is not printed.
                text = "is not base64; stringData" if field == "data" else f"is {shown(value)}, not base64; data"
                problems.append(Problem(f"{field}.{key}", f"{text} takes plain text"))
    return contents, problems


def _from_base64(text: str) -> bytes:
    return base64.b64decode(text.replace("\n", "").replace("\r", ""), validate=True)  # the API ignores no other space


def contents_of(kind: str, reference: Mapping[str, Any], contents: Contents) -> Mapping[str, bytes] | None:
    """Return the contents of the ConfigMap or Secret (`kind`) that `reference` names.

    If the object is absent, return None for an optional reference and raise LocalUnsupported for a required one.
    """
    name = str(reference.get("name", reference.get("secretName")))
    found = contents.get((kind, name))
    if found is None and not reference.get("optional"):
        raise LocalUnsupported(f"{kind} {name!r} is not in the job's file; add it to the file")
    return found


def value_of(kind: str, reference: Mapping[str, Any], contents: Contents) -> str | None:
    """Return the value of a `configMapKeyRef` or `secretKeyRef`; None if it is optional and absent.

    Raises LocalUnsupported.
    """
    found, key = contents_of(kind, reference, contents), str(reference.get("key"))
    if found is None:
        return None
    if key not in found:
        if reference.get("optional"):
            return None
        raise LocalUnsupported(f"{kind} {reference.get('name')!r} has no key {key!r}; it has {_found_keys(found)}")
    return found[key].decode(errors="replace")


def variables_from(sources: Iterable[Mapping[str, Any]], contents: Contents) -> dict[str, str]:
    """Return the variables of a container's `envFrom`; later sources override earlier ones. Raises LocalUnsupported if
    one is required and absent, or needs a cluster."""
    variables = {}
    for source in sources:
        kind = "ConfigMap" if "configMapRef" in source else "Secret"
        reference = source.get("configMapRef") or source.get("secretRef")
        if not reference:
            raise LocalUnsupported(
                f"envFrom {shown(dict(source))} needs a cluster; dtj local supports configMapRef and secretRef"
            )
        for key, value in (contents_of(kind, reference, contents) or {}).items():
            name = f"{source.get('prefix') or ''}{key}"
            if _VARIABLE.fullmatch(name):  # a kubelet skips other names, too
                variables[name] = value.decode(errors="replace")
    return variables


def files_of(kind: str, source: Mapping[str, Any], contents: Contents) -> dict[str, bytes]:
    """Return the files of a ConfigMap or Secret volume: contents by path. Raises LocalUnsupported if the object or a
    key is required and absent."""
    found = contents_of(kind, source, contents)
    if found is None:
        return {}
    if not source.get("items"):
        return dict(found)
    files = {}
    for item in source["items"]:
        if item.get("key") in found:
            files[item.get("path")] = found[item["key"]]
        elif not source.get("optional"):
            name = source.get("name", source.get("secretName"))
            raise LocalUnsupported(f"{kind} {name!r} has no key {item.get('key')!r}; it has {_found_keys(found)}")
    return files


def _found_keys(found: Mapping[str, bytes]) -> str:
    """Return the existing keys as a text for an error message."""
    return ", ".join(sorted(found)) or "none"
