"""Conversion of pydantic models to structural OpenAPI v3 schemas.

Unknown constructs raise SchemaUnsupported. Otherwise a bound could be lost silently, and the API server would accept
values that the models refuse.
"""

import json
import types
from collections.abc import Iterable
from datetime import datetime
from inspect import cleandoc
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from annotated_types import Ge, Le, MaxLen, MinLen
from pydantic import BaseModel, BeforeValidator, PlainSerializer
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from ..errors import SchemaUnsupported
from ..spec.base import Rule, Schema, StatusModel
from ..spec.model_problems import fields_named

OpenAPI = dict[str, Any]

_SCALARS: dict[Any, OpenAPI] = {
    str: {"type": "string"},
    bool: {"type": "boolean"},
    float: {"type": "number"},
    datetime: {"type": "string", "format": "date-time"},
}
# The API server stores integers as int64; as a number (float) they would lose digits silently.
_INTEGER: OpenAPI = {"type": "integer", "format": "int64"}


def object_schema(model: type[BaseModel]) -> OpenAPI:
    """Return the schema of `model`: description, fields, required fields, and rules in CEL."""
    properties, required = {}, []
    for name, info in model.model_fields.items():
        alias = info.alias or name
        properties[alias] = field_schema(info, f"{model.__name__}.{name}")
        if info.is_required():
            required.append(alias)
    description = " ".join(cleandoc(model.__doc__ or "").partition("\n\n")[0].split())
    schema: OpenAPI = {"type": "object", "description": description, "properties": properties}
    if required:
        schema["required"] = required
    every: tuple[Rule, ...] = getattr(model, "RULES", ())
    if rules := [rule for rule in every if not rule.once_fixed]:  # the others are rules of the whole object
        schema["x-kubernetes-validations"] = [_validation(rule, model) for rule in rules]
    if issubclass(model, StatusModel):
        # Only the operator writes a status, so the API server must not fill in defaults.
        for field in properties.values():
            field.pop("default", None)
    return schema


def _validation(rule: Rule, model: type[BaseModel]) -> OpenAPI:
    """Return a rule in CEL. Its message ends with the values of the numbers and words that it is about."""
    made: OpenAPI = {"rule": rule.cel, "message": rule.message, "fieldPath": f".{rule.path}"}
    if "oldSelf" in rule.cel:
        return made
    kinds = {name: kind for name in fields_named(rule) if (kind := _set_scalar(name, rule, model))}
    if kinds:
        # With `+` the API server refuses the CRD: it estimates the cost for texts of numbers of unlimited length.
        found = ", ".join(
            f"{name} is %s" if kind in (bool, float, int) else f"{name} is '%s'" for name, kind in kinds.items()
        )
        text = json.dumps(f"{rule.message.replace('%', '%%')} ({found})")
        made["messageExpression"] = f"{text}.format([{', '.join(f'string(self.{name})' for name in kinds)}])"
    return made


def _set_scalar(path: str, rule: Rule, model: type[BaseModel]) -> Any:
    """Return the type of the field at `path`; None unless it is a scalar, and set in each object that violates the
    rule."""
    kind: Any = model
    names = path.split(".")
    for depth, name in enumerate(names, 1):
        known = {info.alias or key: info for key, info in getattr(kind, "model_fields", {}).items()}
        if name not in known:
            return None
        kind = known[name].annotation
        if type(None) in get_args(kind):
            if f"!has(self.{'.'.join(names[:depth])})" not in rule.cel:
                return None
            (kind,) = (one for one in get_args(kind) if one is not type(None))
        kind = get_args(kind)[0] if get_origin(kind) is Annotated else kind
    return kind if kind in (bool, float, int, str) or get_origin(kind) is Literal else None


def field_schema(info: FieldInfo, where: str) -> OpenAPI:
    """Return the schema of one field: type, constraints, default, description. `where`: its name in errors."""
    if not info.description:
        raise SchemaUnsupported(f"{where} has no description; every field needs one")
    annotation, optional = _without_none(info.annotation, where)
    typed = _typed_schema(annotation, info.metadata, where)
    typed.pop("description", None)  # the type's description; the field has its own
    schema = {"description": info.description, **typed}
    default = info.get_default(call_default_factory=True, validated_data={})
    if default is PydanticUndefined:
        return schema
    if default is None:
        if not optional:
            raise SchemaUnsupported(f"{where} has the default None, but its type does not include None")
        return schema
    schema["default"] = _schema_default(default, where)
    return schema


def _typed_schema(annotation: Any, metadata: Iterable[Any], where: str) -> OpenAPI:
    """Return the schema of a type with its constraints. `where`: name of the field in errors."""
    constraints = list(metadata)
    while get_origin(annotation) is Annotated:
        annotation, *inner = get_args(annotation)
        constraints = inner + constraints
    constraints = [c for item in constraints for c in (item.metadata if isinstance(item, FieldInfo) else [item])]
    for item in constraints:
        if isinstance(item, Schema):
            return dict(item.openapi)
    schema = _bare_schema(annotation, where)
    for item in constraints:
        schema.update(_constraint_schema(item, schema["type"], where))
    return schema


def _bare_schema(annotation: Any, where: str) -> OpenAPI:
    """Return the schema of a type without constraints. `where`: name of the field in errors."""
    if annotation in _SCALARS:
        return dict(_SCALARS[annotation])
    if annotation is int:
        return dict(_INTEGER)
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return object_schema(annotation)
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Literal and all(isinstance(value, str) for value in arguments):
        return {"type": "string", "enum": list(arguments)}
    if origin is tuple and len(arguments) == 2 and arguments[1] is Ellipsis:
        items = _typed_schema(arguments[0], (), f"{where}[]")
        return {"type": "array", "items": items, "x-kubernetes-list-type": "atomic"}
    if origin is dict and arguments[0] is str:
        return {"type": "object", "additionalProperties": _typed_schema(arguments[1], (), f"{where}{{}}")}
    raise SchemaUnsupported(f"{where}: no schema for {annotation!r}")


def _constraint_schema(item: Any, kind: str, where: str) -> OpenAPI:
    """Return the constraint `item` as OpenAPI keywords for the type `kind`. `where`: name of the field in errors."""
    suffix = {"string": "Length", "array": "Items", "object": "Properties"}.get(kind)
    pattern = getattr(item, "pattern", None)
    match item:
        case Ge(ge=bound) if kind in ("integer", "number"):
            return {"minimum": bound}
        case Le(le=bound) if kind in ("integer", "number"):
            return {"maximum": bound}
        case MinLen(min_length=bound) if suffix:
            return {f"min{suffix}": bound}
        case MaxLen(max_length=bound) if suffix:
            return {f"max{suffix}": bound}
        case _ if kind == "string" and isinstance(pattern, str) and set(vars(item)) == {"pattern"}:
            return {"pattern": pattern}
        # For times in a status: they only determine how Python reads and writes a date-time.
        case BeforeValidator() | PlainSerializer() if kind == "string":
            return {}
    raise SchemaUnsupported(f"{where}: no schema for the constraint {item!r} on {kind}")


def _without_none(annotation: Any, where: str) -> tuple[Any, bool]:
    """Return `(T, True)` for `T | None`, and `(T, False)` for `T`. Any other union is an error."""
    if get_origin(annotation) not in (Union, types.UnionType):
        return annotation, False
    others = [part for part in get_args(annotation) if part is not type(None)]
    if len(others) != 1:
        raise SchemaUnsupported(f"{where}: a union of {others} has no structural schema")
    return others[0], True


def _schema_default(default: Any, where: str) -> Any:
    """Return a default as the API server needs it: {} for a model, whose fields have their own defaults."""
    if isinstance(default, BaseModel):
        if default.model_dump(exclude_defaults=True):
            raise SchemaUnsupported(
                f"{where}: the default differs from {type(default).__name__}(); only the model "
                "without arguments is supported"
            )
        return {}
    if isinstance(default, tuple | list) and not default:
        return []
    if isinstance(default, str | bool | int | float) or default == {}:
        return default
    raise SchemaUnsupported(f"{where}: no JSON for the default {default!r}")
