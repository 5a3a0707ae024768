"""Helpers for plain values of a manifest."""

from typing import Any

import pytest
from support.jobs import job

from ringtrain_operator.errors import Invalid
from ringtrain_operator.spec.base import field_at, nesting_depth, without_nulls
from ringtrain_operator.spec.parse import parse_job


@pytest.mark.parametrize(
    ("value", "depth"),
    [(3, 0), ("text", 0), (None, 0), ([], 1), ({}, 1), ({"a": 1}, 1), ({"a": [{}, 1]}, 3), ([[[]], [[[1]]]], 4)],
    ids=str,
)
def test_levels_of_mappings_and_lists(value: Any, depth: int) -> None:
    """The deepest one counts."""
    assert nesting_depth(value) == depth


def test_nulls_are_removed_as_the_api_server_does() -> None:
    """Null fields of mappings at any depth; items of lists stay, and so do opaque fields."""
    value = {"a": None, "b": [None, {"c": None, "d": 0}], "e": {"f": None}, "g": {"h": None}}
    assert without_nulls(value, opaque=("g",)) == {"b": [None, {"d": 0}], "e": {}, "g": {"h": None}}


def test_a_field_below_one_that_is_unset_is_none() -> None:
    """By the names that a manifest has."""
    spec = parse_job(job(logs={"report": True})).spec
    assert (field_at(spec, "logs.report"), field_at(spec, "worker.replicas")) == (True, 2)
    assert (field_at(spec, "elastic"), field_at(spec, "elastic.minReplicas")) == (None, None)


@pytest.mark.parametrize("spec", [None, 3, [], "text"], ids=str)
def test_a_spec_that_is_no_mapping_is_refused(spec: Any) -> None:
    """With its path."""
    with pytest.raises(Invalid) as refusal:
        parse_job({**job(), "spec": spec})
    (problem,) = refusal.value.problems
    assert problem.path == "spec"
    assert "a mapping" in problem.message
