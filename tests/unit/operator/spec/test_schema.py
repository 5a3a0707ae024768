"""The converter expresses all of a model, or raises."""

from typing import Annotated, Any, Literal

import pytest
from pydantic import BaseModel, Field, create_model

from ringtrain_operator.errors import SchemaUnsupported
from ringtrain_operator.generate.schema import object_schema
from ringtrain_operator.spec.base import Devices, Rule, SpecModel

INTEGER = {"type": "integer", "format": "int64"}


def field(annotation: Any, **options: Any) -> dict[str, Any]:
    """The schema of a model's only field."""
    info = Field(description="d", **options)
    model = create_model("M", __base__=SpecModel, __doc__="A model.", one_field=(annotation, info))
    schema = object_schema(model)
    return schema["properties"]["oneField"]


@pytest.mark.parametrize(
    ("annotation", "options", "schema"),
    [
        pytest.param(int, {"ge": 1, "le": 9}, INTEGER | {"minimum": 1, "maximum": 9}, id="int"),
        pytest.param(str, {"min_length": 1}, {"type": "string", "minLength": 1}, id="str"),
        pytest.param(str, {"pattern": "^a$"}, {"type": "string", "pattern": "^a$"}, id="pattern"),
        pytest.param(bool, {"default": False}, {"type": "boolean", "default": False}, id="bool"),
        pytest.param(Literal["A", "B"], {}, {"type": "string", "enum": ["A", "B"]}, id="enum"),
        pytest.param(str | None, {"default": None}, {"type": "string"}, id="optional"),
        pytest.param(
            dict[str, Annotated[int, Field(ge=1)]],
            {"max_length": 3},
            {
                "type": "object",
                "additionalProperties": INTEGER | {"minimum": 1},
                "maxProperties": 3,
            },
            id="map",
        ),
        pytest.param(
            tuple[str, ...],
            {"max_length": 2, "default": ()},
            {
                "type": "array",
                "items": {"type": "string"},
                "x-kubernetes-list-type": "atomic",
                "maxItems": 2,
                "default": [],
            },
            id="list",
        ),
    ],
)
def test_understood(annotation: Any, options: dict[str, Any], schema: dict[str, Any]) -> None:
    """Types, bounds, enums and defaults, in OpenAPI's words."""
    assert field(annotation, **options) == {"description": "d", **schema}


class _Other(BaseModel):
    """Another model."""

    x: int = Field(default=1, description="x")


@pytest.mark.parametrize(
    ("annotation", "options"),
    [
        pytest.param(int | str, {}, id="union"),
        pytest.param(Any, {}, id="any"),
        pytest.param(set[str], {}, id="set"),
        pytest.param(tuple[int, str], {}, id="fixed-tuple"),
        pytest.param(dict[int, str], {}, id="integer-keys"),
        pytest.param(Literal[1, 2], {}, id="integer-enum"),
        pytest.param(int, {"gt": 1}, id="exclusive-bound"),
        pytest.param(int, {"multiple_of": 2}, id="multiple-of"),
        pytest.param(str, {"default": None}, id="none-for-a-string"),
        pytest.param(_Other, {"default": _Other(x=2)}, id="model-with-another-default"),
        pytest.param(tuple[int, ...], {"default": (1,)}, id="list-default"),
    ],
)
def test_not_understood(annotation: Any, options: dict[str, Any]) -> None:
    """An annotation that the schema cannot express raises an error that names the field."""
    with pytest.raises(SchemaUnsupported, match=r"M\.one_field"):
        field(annotation, **options)


def test_a_field_without_description_raises() -> None:
    """The reference page would have a hole."""
    model = create_model("M", __base__=SpecModel, __doc__="A model.", x=(int, 1))
    with pytest.raises(SchemaUnsupported, match="description"):
        object_schema(model)


def test_a_field_says_what_it_is_for() -> None:
    """Not what its type is, which others have, too; a promise of two lines is whole."""

    class Claim(SpecModel):
        """A claim, or
        two."""

    class Holder(SpecModel):
        """Holds one."""

        claim: Claim = Field(description="Claim that only the launcher mounts.")

    assert object_schema(Claim)["description"] == "A claim, or two."
    assert object_schema(Holder)["properties"]["claim"]["description"] == "Claim that only the launcher mounts."


def test_rules_become_cel() -> None:
    """A rule's CEL, message and field are in the schema. The message shows fields that it names and that are set."""

    class Ruled(SpecModel):
        """A model with rules."""

        a: int = Field(description="a")
        b: int | None = Field(default=None, description="b")
        c: Devices = Field(default={}, description="c")
        d: Literal["on", "off"] = Field(default="on", description="d")
        RULES = (
            Rule(cel="self.a > 0", message="positive; or set b", path="a", holds=lambda m: m.a > 0),
            Rule(cel="!has(self.b) || self.b > self.a", message='b is "above" a', path="b"),
            Rule(cel="self.c.size() > 0", message="c is empty", path="c"),
            Rule(cel="self.d == 'on'", message="d must be on", path="d"),
            Rule(cel="self.a == oldSelf.a", message="a cannot change", path="a"),
        )

    made = object_schema(Ruled)["x-kubernetes-validations"]
    assert made[0] == {
        "rule": "self.a > 0",
        "message": "positive; or set b",
        "fieldPath": ".a",
        "messageExpression": '"positive; or set b (a is %s)".format([string(self.a)])',
    }
    assert [rule.get("messageExpression") for rule in made[1:]] == [
        '"b is \\"above\\" a (b is %s, a is %s)".format([string(self.b), string(self.a)])',
        None,
        "\"d must be on (d is '%s')\".format([string(self.d)])",
        None,
    ]
