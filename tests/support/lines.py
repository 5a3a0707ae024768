"""Strategies for malformed lines and JSON."""

import json
from typing import Any

from hypothesis import strategies as st

# Any characters, including lone surrogates and NUL.
TEXTS: st.SearchStrategy[str] = st.text(st.characters(), max_size=30) | st.sampled_from(
    ["\ud800", "\x00", "\n", "\x1b[2J", "\udcff\udcff", "9" * 401]
)
NUMBERS: st.SearchStrategy[Any] = (
    st.integers()
    | st.floats()
    | st.sampled_from([10**400, -(10**400), 2**63, 2**63 - 1, 2**70, 1e308, -1e308, 5e-324, True])
)
JSON_VALUES: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | NUMBERS | TEXTS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXTS, inner, max_size=4),
    max_leaves=8,
)
_FIELDS = (
    "step",
    "time",
    "totalSteps",
    "epoch",
    "samples",
    "loss",
    "unit",
    "metrics",
    "dropped",
    "rank",
    "attempt",
)


def nested(depth: int) -> str:
    """Return JSON of `depth` nested lists."""
    return "[" * depth + "]" * depth


def report_lines() -> st.SearchStrategy[bytes]:
    """Return lines similar to report lines: the contract's fields with any values, some repeated, some raw."""
    sane = {"step": st.integers(0, 5), "time": st.floats(0, 2e9), "unit": TEXTS}
    value = st.one_of(JSON_VALUES.map(json.dumps), st.sampled_from([nested(500), nested(50_000), "1e999", "9" * 5000]))
    pairs = [st.tuples(st.just(name), sane.get(name, JSON_VALUES).map(json.dumps) | value) for name in ("step", "time")]
    more = st.lists(st.tuples(st.sampled_from(_FIELDS) | TEXTS, value), max_size=5)
    return st.tuples(*pairs, more).map(lambda parts: _line([parts[0], parts[1], *parts[2]]))


def _line(pairs: list[tuple[str, str]]) -> bytes:
    return ("{" + ",".join(f"{json.dumps(name)}:{value}" for name, value in pairs) + "}").encode()
