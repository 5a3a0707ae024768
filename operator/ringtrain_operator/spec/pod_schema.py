"""Schema of pod templates in Kubernetes: all fields and their types."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib import resources
from typing import Any

from ..errors import MISSING, Problem, shown, spelling_hint
from .model_problems import QUOTED
from .pod_rule_table import NO_RULES, POD_RULES
from .pod_rules import quantity_hint, quantity_value

Json = dict[str, Any]

_ROOT = "io.k8s.api.core.v1.PodTemplateSpec"
_KEPT = ("type", "required", "enum", "format")
_TYPES: dict[str, tuple[type, ...]] = {
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
    "array": (list,),
    "object": (Mapping,),
}
_BITS = {"int32": 31, "int64": 63}
_TYPE_NAMES = {"array": "a list", "object": "a mapping", "integer": "an integer", "boolean": "true or false"}

# For each type of object: a type with whose fields people confuse its fields, and where that type belongs.
_OTHER_LEVELS = {
    "PodTemplateSpec": ("PodSpec", "the template's spec"),
    "PodSpec": ("Container", "containers[0]"),
    "Container": ("PodSpec", "the pod's spec, beside containers"),
    "PodSecurityContext": ("SecurityContext", "the securityContext of containers[0]"),
    "SecurityContext": ("PodSecurityContext", "the pod's securityContext"),
}


@dataclass(frozen=True)
class PodSchema:
    """Schema of the pod template of one version of Kubernetes.

    `definitions` are OpenAPI schemas by their short names. `way_out` is appended to an error about an unknown field:
    advice for a user whose cluster has that field.
    """

    version: str
    definitions: Mapping[str, Json] = field(repr=False)
    root: str = "PodTemplateSpec"
    way_out: str = ""

    @classmethod
    def from_openapi(cls, document: Mapping[str, Any], version: str) -> "PodSchema":
        """Return the schema of pod templates in an API server's document /openapi/v3/api/v1. Raises ValueError."""
        try:
            schemas = document["components"]["schemas"]
            return cls(version, dict(_reachable_schemas(schemas, _ROOT)))
        except (KeyError, TypeError, AttributeError) as exc:
            raise ValueError(f"the document has no OpenAPI schema of pod templates: {exc!r}") from exc

    def problems(self, value: Mapping[str, Any], path: str, definition: str = "") -> list[Problem]:
        """Return the problems of a pod template, or of an object of another `definition`, by Kubernetes' rules.

        A null field counts as absent.
        """
        return list(self._check(value, {"ref": definition or self.root}, path))

    def _check(self, value: object, schema: Json, path: str) -> Iterator[Problem]:
        definition = schema.get("ref", "")
        schema = self.definitions[definition] if definition else schema
        kinds = schema.get("oneOf") or [schema["type"]] if "oneOf" in schema or "type" in schema else []
        if kinds and not any(_is_of_schema_kind(value, kind) for kind in kinds):
            yield Problem(path, _wrong_type(value, kinds))
        elif schema.get("quantity") and quantity_value(value) is None:
            yield Problem(path, f"is {value!r}; {quantity_hint(value, path.rpartition('[')[2].removesuffix(']'))}")
        elif (bits := _BITS.get(schema.get("format", ""))) and not -(1 << bits) <= int(str(value)) < 1 << bits:
            yield Problem(path, f"is {value}; expected an integer from {-(1 << bits)} to {(1 << bits) - 1}")
        elif "enum" in schema and value not in ("", *schema["enum"]):
            yield Problem(path, f"is {value!r}, allowed: {', '.join(filter(None, schema['enum']))}")
        elif isinstance(value, Mapping):
            yield from self._check_object(value, schema, path, definition)
        elif isinstance(value, list) and "items" in schema:
            for index, item in enumerate(value):
                where = f"{path}[{index}]"
                yield from ([Problem(where, "is null")] if item is None else self._check(item, schema["items"], where))

    def _check_object(self, value: Mapping[Any, Any], schema: Json, path: str, definition: str) -> Iterator[Problem]:
        """Yield problems of the object's fields; if there are none, problems of the object as a whole."""
        rules = POD_RULES.get(definition, NO_RULES)
        found = False
        for problem in self._check_fields(value, definition, schema, path):
            found = True
            yield problem
        for rule in () if found else rules.objects:
            yield from (Problem(f"{path}{below}", message) for below, message in rule(value))

    def _check_fields(self, value: Mapping[Any, Any], definition: str, schema: Json, path: str) -> Iterator[Problem]:
        known, rules = schema.get("properties"), POD_RULES.get(definition, NO_RULES).fields
        for key, inner in value.items():
            if known is not None and key not in known:
                yield Problem(f"{path}.{key}", self._unknown(str(key), definition, known))
            elif inner is None:
                continue
            elif known is not None:
                found = list(self._check(inner, known[key], f"{path}.{key}"))
                if not found and key in rules and inner != "":
                    found = [Problem(f"{path}.{key}{below}", message) for below, message in rules[key](inner)]
                yield from found
            elif "values" in schema:
                yield from self._check(inner, schema["values"], f"{path}[{key}]")
        for key in schema.get("required") or ():
            if value.get(key) is None:
                yield Problem(f"{path}.{key}", MISSING)
            elif value[key] in ("", []) and definition.endswith("VolumeSource"):
                yield Problem(f"{path}.{key}", "is empty; expected a value")

    def _unknown(self, key: str, definition: str, known: Mapping[str, Any]) -> str:
        other, place = _OTHER_LEVELS.get(definition, ("", ""))
        if key in self.definitions.get(other, {}).get("properties", ()):
            return f"is not a field here; it belongs in {place}"
        if definition == "ResourceRequirements" and (key in ("cpu", "memory") or "/" in key):
            return "is not a field here; put it below limits"
        longer = [one for one in known if one.endswith(key[:1].upper() + key[1:])]  # secretName for name
        hint = spelling_hint(key, known) or (f"did you mean {longer[0]}?" if longer else "")
        hint = hint or f"allowed: {', '.join(sorted(known)[:12])}{', …' if len(known) > 12 else ''}"
        return f"is not a field here in Kubernetes {self.version}; {hint}{self.way_out}"


@cache
def packaged_pod_spec_schema() -> PodSchema:
    """Return the schema in this package, which is used without an API server."""
    raw = json.loads(resources.files(__package__).joinpath("pod_schema.json").read_text(encoding="utf-8"))
    return PodSchema(raw["version"], raw["definitions"])


def dump_pod_spec_schema(schema: PodSchema) -> str:
    """Return `schema` as the text of the file pod_schema.json."""
    content = {"version": schema.version, "definitions": schema.definitions}
    return json.dumps(content, indent=1, sort_keys=True) + "\n"


def _reachable_schemas(schemas: Mapping[str, Any], root: str) -> Iterator[tuple[str, Json]]:
    seen, todo = set(), [root]
    while todo:
        name = todo.pop()
        if name in seen:
            continue
        seen.add(name)
        schema = _reduced_schema(schemas[name])
        if _short_schema_name(name) == "Quantity":
            schema["quantity"] = True
        todo += sorted(_schema_references(schemas[name]))
        yield _short_schema_name(name), schema


def _reduced_schema(schema: Mapping[str, Any]) -> Json:
    """Return an OpenAPI schema without what is not checked: descriptions, defaults, merge hints."""
    (wrapped,) = schema.get("allOf") or [schema]
    if "$ref" in wrapped:
        return {"ref": _short_schema_name(wrapped["$ref"])}
    found: Json = {key: schema[key] for key in _KEPT if key in schema}
    if "oneOf" in schema:
        found["oneOf"] = [one["type"] for one in schema["oneOf"]]
    if "properties" in schema:
        found["properties"] = {key: _reduced_schema(inner) for key, inner in schema["properties"].items()}
    if "items" in schema:
        found["items"] = _reduced_schema(schema["items"])
    if isinstance(schema.get("additionalProperties"), Mapping):
        found["values"] = _reduced_schema(schema["additionalProperties"])
    return found


def _schema_references(schema: object) -> Iterator[str]:
    if isinstance(schema, Mapping):
        for key, inner in schema.items():
            if key == "$ref" and isinstance(inner, str):
                yield inner.rpartition("/")[2]
            else:
                yield from _schema_references(inner)
    elif isinstance(schema, list):
        for inner in schema:
            yield from _schema_references(inner)


def _short_schema_name(name: str) -> str:
    return name.rpartition(".")[2]


def _is_of_schema_kind(value: object, kind: str) -> bool:
    if isinstance(value, bool):
        return kind == "boolean"
    return isinstance(value, _TYPES.get(kind, (object,)))


def _wrong_type(value: object, kinds: list[str]) -> str:
    expected = " or ".join(_TYPE_NAMES.get(kind, f"a {kind}") for kind in kinds)
    quotes = ": put it in quotes" if kinds == ["string"] and not isinstance(value, Mapping | list) else ""
    if kinds in (["integer"], ["boolean"]) and isinstance(value, str) and QUOTED.fullmatch(value):
        quotes = " without quotes"
    return f"is {shown(value)}; must be {expected}{quotes}"
