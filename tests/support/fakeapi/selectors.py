"""Label and field selectors, as a list or watch is asked for them."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from support.fakeapi.errors import bad_request

_SET = re.compile(r"^\s*(\S+)\s+(in|notin)\s+\(([^)]*)\)\s*$")


@dataclass(frozen=True)
class Selector:
    """Both selectors of one request; `matches(obj)` is their conjunction."""

    labels: str = ""
    fields: str = ""

    def matches(self, obj: Mapping[str, Any]) -> bool:
        """Whether `obj` satisfies every term of both selectors."""
        labels = obj["metadata"].get("labels") or {}
        return all(_label_term(t, labels) for t in _split(self.labels)) and all(
            _field_term(t, obj) for t in _split(self.fields)
        )


def _split(selector: str) -> list[str]:
    # commas inside "in (a,b)" do not separate terms
    return [t for t in re.split(r",(?![^(]*\))", selector) if t.strip()]


def _label_term(term: str, labels: Mapping[str, str]) -> bool:
    if found := _SET.match(term):
        key, operator, values = found.groups()
        chosen = labels.get(key) in {v.strip() for v in values.split(",")}
        return chosen if operator == "in" else not chosen
    if "!=" in term:
        key, value = (p.strip() for p in term.split("!=", 1))
        return labels.get(key) != value
    if "=" in term:
        key, value = (p.strip() for p in term.replace("==", "=").split("=", 1))
        return labels.get(key) == value
    key = term.strip()
    return key[1:] not in labels if key.startswith("!") else key in labels


def _field_term(term: str, obj: Mapping[str, Any]) -> bool:
    negated = "!=" in term
    key, _, value = (term.replace("!=", "=").replace("==", "=")).partition("=")
    found: Any = obj
    for part in key.strip().split("."):
        if not isinstance(found, Mapping):
            raise bad_request(f"field label not supported: {key}")
        found = found.get(part, "")
    return (str(found) == value.strip()) != negated
