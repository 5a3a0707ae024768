"""The schema of pod templates: read from an API server's OpenAPI document, and checked by kinds of values."""

import json
from typing import Any

import pytest

from ringtrain_operator.spec.pod_schema import PodSchema, dump_pod_spec_schema

Json = dict[str, Any]
CORE = "io.k8s.api.core.v1"
REF = {"$ref": f"#/components/schemas/{CORE}.PodSpec"}
QUANTITY = "io.k8s.apimachinery.pkg.api.resource.Quantity"


def document(**fields: Json) -> Json:
    """Return an OpenAPI document whose pod spec has these fields."""
    schemas = {
        f"{CORE}.PodTemplateSpec": {"type": "object", "properties": {"spec": {"allOf": [REF], "description": "pod"}}},
        f"{CORE}.PodSpec": {"type": "object", "properties": fields, "required": ["name"], "description": "the pod"},
        f"{CORE}.Service": {"type": "object"},
        QUANTITY: {"oneOf": [{"type": "string"}, {"type": "number"}]},
    }
    return {"components": {"schemas": schemas}}


def test_only_what_a_pod_template_refers_to_is_read() -> None:
    """By short names and without descriptions; the text of the file is that of the definitions."""
    fields = {
        "name": {"type": "string", "description": "a name"},
        "size": {"$ref": f"#/components/schemas/{QUANTITY}"},
        "tags": {"type": "object", "additionalProperties": {"type": "string"}},
        "list": {"type": "array", "items": {"type": "integer", "format": "int32"}},
    }
    schema = PodSchema.from_openapi(document(**fields), "v1.40")
    assert schema.definitions == {
        "PodTemplateSpec": {"type": "object", "properties": {"spec": {"ref": "PodSpec"}}},
        "PodSpec": {
            "type": "object",
            "required": ["name"],
            "properties": {
                "name": {"type": "string"},
                "size": {"ref": "Quantity"},
                "tags": {"type": "object", "values": {"type": "string"}},
                "list": {"type": "array", "items": {"type": "integer", "format": "int32"}},
            },
        },
        "Quantity": {"oneOf": ["string", "number"], "quantity": True},
    }
    dumped = json.loads(dump_pod_spec_schema(schema))
    assert (dumped["version"], dumped["definitions"]) == ("v1.40", schema.definitions)


@pytest.mark.parametrize("other", [{}, {"components": None}, {"components": {"schemas": {}}}], ids=str)
def test_a_document_without_pod_templates_is_refused(other: Json) -> None:
    """With what was expected in it."""
    with pytest.raises(ValueError, match="has no OpenAPI schema of pod templates"):
        PodSchema.from_openapi(other, "v1.40")


@pytest.mark.parametrize(
    ("kind", "good", "bad"),
    [
        ("string", ["", "a"], [1, True, ["a"], {}]),
        ("integer", [0, -3], ["1", 1.5, True]),
        ("number", [0, 1.5], ["1", False]),
        ("boolean", [True, False], [0, "true"]),
        ("array", [[], [1]], ["a", {}]),
        ("object", [{}, {"a": 1}], [[], "a"]),
    ],
)
def test_values_of_a_kind(kind: str, good: list[Any], bad: list[Any]) -> None:
    """A bool is no number, and a number no string."""
    schema = PodSchema.from_openapi(document(name={"type": kind}), "v1.40")
    assert [schema.problems({"spec": {"name": value}}, "t") for value in good] == [[]] * len(good)
    assert [[one.path for one in schema.problems({"spec": {"name": value}}, "t")] for value in bad] == [
        ["t.spec.name"]
    ] * len(bad)


@pytest.mark.parametrize(
    ("spec", "path", "message"),
    [
        ({}, "t.spec.name", "is missing; expected a value"),
        ({"name": "a", "nmae": 1}, "t.spec.nmae", "is not a field here in Kubernetes v1.40; did you mean name?"),
        ({"name": "a", "list": [1, None]}, "t.spec.list[1]", "is null"),
        ({"name": "a", "list": [1, "2"]}, "t.spec.list[1]", "is '2'; must be an integer without quotes"),
        ({"name": "a", "kind": "C"}, "t.spec.kind", "is 'C', allowed: A, B"),
        ({"name": 3}, "t.spec.name", "is 3; must be a string: put it in quotes"),
        ({"name": "a", "size": "much"}, "t.spec.size", "is 'much'; expected a quantity, for example 500m, 2 or 4Gi"),
    ],
)
def test_a_problem_has_its_path_and_the_way_out(spec: Json, path: str, message: str) -> None:
    """The only problem of each; null stands for an absent field."""
    fields = {
        "name": {"type": "string"},
        "list": {"type": "array", "items": {"type": "integer"}},
        "kind": {"type": "string", "enum": ["A", "B"]},
        "size": {"$ref": f"#/components/schemas/{QUANTITY}"},
    }
    schema = PodSchema.from_openapi(document(**fields), "v1.40")
    (problem,) = schema.problems({"spec": {"list": None, **spec}}, "t")
    assert (problem.path, problem.message) == (path, message)
