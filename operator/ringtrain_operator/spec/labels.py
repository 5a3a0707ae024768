"""Validation of labels and annotations by the rules of Kubernetes (apimachinery's validation of object metadata)."""

import re
from collections.abc import Iterator, Mapping
from typing import Any

from ..errors import shown

_NAME = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?")
_DOMAIN = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
_LONGEST_DOMAIN = 253
_MOST_ANNOTATIONS = 256 << 10
LABEL_VALUE = "at most 63 letters, digits, '-', '_' and '.', with a letter or a digit at both ends"


def label_problems(labels: Any) -> Iterator[tuple[str, str]]:
    """Yield ("[key]", reason) for each invalid entry of `labels`, which are labels or a node selector."""
    for key, value in labels.items() if isinstance(labels, Mapping) else ():
        yield from _key_problems(key, key)
        if isinstance(value, str) and not is_label_value(value):
            yield f"[{key}]", f"is {shown(value)}; expected {LABEL_VALUE}"
        elif not isinstance(value, str | None):
            yield f"[{key}]", f"is {shown(value)}; expected a text: write it in quotes"


def annotation_problems(annotations: Any) -> Iterator[tuple[str, str]]:
    """Yield ("[key]", reason) for each invalid annotation, and ("", reason) if the annotations together are too
    large."""
    if not isinstance(annotations, Mapping):
        return
    for key, value in annotations.items():
        domain, slash, name = key.rpartition("/")
        yield from _key_problems(key, f"{domain.lower()}{slash}{name}")
        if not isinstance(value, str | None):
            yield f"[{key}]", f"is {shown(value)}; expected a text: write it in quotes"
    size = sum(len(str(word).encode()) for pair in annotations.items() for word in pair)
    if size > _MOST_ANNOTATIONS:
        yield "", f"have {size} bytes; expected at most {_MOST_ANNOTATIONS}"


def _key_problems(key: str, judged: str) -> Iterator[tuple[str, str]]:
    if not is_qualified_name(judged):
        yield f"[{key}]", f"is a key that Kubernetes refuses; expected {LABEL_VALUE}, perhaps after a domain and '/'"


def is_label_value(text: str) -> bool:
    """Return whether `text` is valid as the value of a label."""
    return not text or bool(_NAME.fullmatch(text))


def is_qualified_name(text: str) -> bool:
    """Return whether `text` is valid as the key of a label: a name, perhaps after a domain and a slash."""
    domain, slash, name = text.rpartition("/")
    return bool(_NAME.fullmatch(name)) and (not slash or is_domain(domain))


def is_domain(text: str) -> bool:
    """Return whether `text` is a DNS name in lower case (RFC 1123)."""
    return len(text) <= _LONGEST_DOMAIN and bool(_DOMAIN.fullmatch(text))
