"""Generator of docs/reference/api.md, with every field of the resource, from the same schema as the CRD."""

import textwrap
from collections.abc import Iterator
from typing import Any

from .. import contract
from ..spec.job import JobSpec
from ..status.model import JobStatus
from .schema import object_schema

# Fields that only the operator reads: no part of the users' reference.
_INTERNAL = frozenset({"status.ledger"})
_INTRODUCTION = f"""# {contract.KIND}

<!-- Generated from the models by `make generate`; do not edit. -->

`apiVersion: {contract.API_VERSION}`, `kind: {contract.KIND}`, short name `{contract.SHORT_NAME}`. Samples are in
`manifests/samples/`. `dtj validate FILE` checks a manifest against everything on this page. The page omits
internal fields.

"""


def reference_page() -> str:
    """Return the reference page of the job's fields in Markdown."""
    spec, status = object_schema(JobSpec), object_schema(JobStatus)
    of_changes = [{"message": rule.message} for rule in JobSpec.RULES if rule.once_fixed]
    spec["x-kubernetes-validations"] += of_changes
    parts = [_INTRODUCTION, *_reference_section("spec", spec), *_reference_section("status", status)]
    return "".join(parts).rstrip() + "\n"


def _reference_section(path: str, schema: dict[str, Any]) -> Iterator[str]:
    """Yield the lines about an object: heading, table of its fields, rules, and then its nested objects."""
    yield f"## `{path}`\n\n{_filled_page(schema['description'])}\n\n"
    yield "| field | type | default | |\n| --- | --- | --- | --- |\n"
    required = schema.get("required", ())
    fields = {name: field for name, field in schema["properties"].items() if f"{path}.{name}" not in _INTERNAL}
    for name, field in fields.items():
        kind, default = _field_type_text(field), _field_default_text(field, name in required)
        yield f"| `{name}` | {kind} | {default} | {field['description']} |\n"
    yield "\n"
    rules = [rule["message"] for rule in schema.get("x-kubernetes-validations", ())]
    if rules:
        yield "Rules:\n\n" + "".join(f"{_filled_page(rule, '* ')}\n" for rule in rules) + "\n"
    for name, field in fields.items():
        inner, suffix = (field["items"], "[]") if field["type"] == "array" else (field, "")
        if "properties" in inner and "x-kubernetes-preserve-unknown-fields" not in inner:
            yield from _reference_section(f"{path}.{name}{suffix}", inner)


def _filled_page(text: str, mark: str = "") -> str:
    """Return `text` wrapped at 120 columns. `mark`: marker of a list item, such as `* `."""
    return textwrap.fill(
        text,
        120,
        initial_indent=mark,
        subsequent_indent=" " * len(mark),
        break_long_words=False,
        break_on_hyphens=False,
    )


def _field_type_text(field: dict[str, Any]) -> str:
    kind = field["type"]
    if "enum" in field:
        return " \\| ".join(f"`{value}`" for value in field["enum"])
    if kind == "array":
        return f"list of {_field_type_text(field['items'])}{_field_bounds_text(field)}"
    if kind == "object" and "additionalProperties" in field:
        return f"map of {_field_type_text(field['additionalProperties'])}"
    if field.get("format") == "date-time":
        return "time"
    if field.get("x-kubernetes-preserve-unknown-fields"):
        return "Kubernetes' own object"
    return f"{kind}{_field_bounds_text(field)}"


def _field_bounds_text(field: dict[str, Any]) -> str:
    low, high = field.get("minimum"), field.get("maximum")
    if low is not None and high is not None:
        return f", {low} to {high}" if high < 2**31 - 1 else f", at least {low}"
    if "maxItems" in field:
        return f", at most {field['maxItems']}"
    return ""


def _field_default_text(field: dict[str, Any], required: bool) -> str:
    if required:
        return "required"
    default = field.get("default")
    if default in (None, "", [], {}):
        return ""
    return f"`{str(default).lower() if isinstance(default, bool) else default}`"
