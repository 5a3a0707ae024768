"""Documents that differ from a good one in a few places, for tests of parsers: hypothesis draws them."""

from __future__ import annotations

import copy
from typing import Any

from hypothesis import strategies as st

# What people and programs write into a field by mistake, and what attackers would.
STRANGE: tuple[Any, ...] = (
    None,
    True,
    0,
    -1,
    1.5,
    10**18,
    "",
    "x",
    "3",
    "²",
    "../../x",
    "/",
    "ü" * 300,
    "2024-13-45",
    [],
    [None],
    [[]],
    ["a", 1],
    {},
    {"a": None},
    {"a": {"b": "c"}},
    {"name": 5},
    [{"name": "a"}, {"name": "a"}],
)


def paths(value: Any, at: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Where something can be put into `value`: the path of every inner value."""
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path for key, item in inner for path in [(*at, key), *paths(item, (*at, key))]]


@st.composite
def mutants(draw: st.DrawFn, good: list[Any], fields: tuple[str, ...] = ()) -> Any:
    """One of `good`, changed in one to three places: a value replaced or taken away, or one of `fields` added."""
    made = copy.deepcopy(draw(st.sampled_from(good)))
    for _ in range(draw(st.integers(1, 3))):
        path = draw(st.sampled_from(paths(made) or [()]))
        if not path:
            break
        parent = made
        for key in path[:-1]:
            parent = parent[key]
        kind = draw(st.sampled_from(("replace", "remove", "add")))
        if kind == "replace":
            parent[path[-1]] = copy.deepcopy(draw(st.sampled_from(STRANGE)))
        elif kind == "remove":
            del parent[path[-1]]
        elif isinstance(parent, dict):
            parent[draw(st.sampled_from((*fields, "extra")))] = copy.deepcopy(draw(st.sampled_from(STRANGE)))
        else:
            parent.append(copy.deepcopy(draw(st.sampled_from(STRANGE))))
    return made
