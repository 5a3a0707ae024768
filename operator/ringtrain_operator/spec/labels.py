"""Validation of labels and annotations by the rules of Kubernetes (apimachinery's validation of object metadata)."""

import re
from collections.abc import Iterator, Mapping
from typing import Any

from ..errors import Problem, shown

_NAME = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?")
_WORD = "at most 63 letters, digits, '-', '_' and '.', with a letter or a digit at both ends"
_DOMAIN = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
_LONGEST_DOMAIN = 253
_MOST_ANNOTATIONS = 256 << 10


def metadata_problems(metadata: Mapping[str, Any], path: str) -> Iterator[Problem]:
    """Yield each label or annotation of an object or a pod template that the API server would refuse."""
    for kind in ("labels", "annotations"):
        given = metadata.get(kind)
        for key, value in given.items() if isinstance(given, Mapping) else ():
            yield from _entry_problems(kind, str(key), value, f"{path}.{kind}[{key}]")
    annotations = metadata.get("annotations")
    if isinstance(annotations, Mapping):
        size = sum(len(str(word).encode()) for pair in annotations.items() for word in pair)
        if size > _MOST_ANNOTATIONS:
            yield Problem(f"{path}.annotations", f"have {size} bytes, expected at most {_MOST_ANNOTATIONS}")


def _entry_problems(kind: str, key: str, value: object, path: str) -> Iterator[Problem]:
    domain, slash, name = key.rpartition("/")
    # The API server lowercases an annotation's key before it checks the domain.
    domain = domain.lower() if kind == "annotations" else domain
    if not _NAME.fullmatch(name) or (slash and not _is_domain(domain)):
        yield Problem(
            path,
            f"has a key that Kubernetes refuses: expected {_WORD}, optionally after a domain and '/'",
        )
    if value is None:
        return
    if not isinstance(value, str):
        yield Problem(path, f"is {shown(value)}, expected a text: write it in quotes")
    elif kind == "labels" and value and not _NAME.fullmatch(value):
        yield Problem(path, f"is {shown(value)}, expected {_WORD}")


def _is_domain(text: str) -> bool:
    return len(text) <= _LONGEST_DOMAIN and bool(_DOMAIN.fullmatch(text))
