"""Files as people edit them: each value of a document replaced by a wrong one."""

import copy
from collections.abc import Iterator
from typing import Any

WRONG: tuple[Any, ...] = (None, "x", 5, -1, 10**400, 1.5, [], ["x"], [None], {}, {"a": 1}, True)


def edits_of(document: Any) -> list[tuple[tuple[Any, ...], Any]]:
    """Return the place and the new value of each edit of `document`."""
    return [(place, value) for place in _places(document) for value in WRONG]


def edited(document: Any, place: tuple[Any, ...], value: Any) -> Any:
    """Return a copy of `document` with `value` at `place`."""
    changed = copy.deepcopy(document)
    *above, last = place
    inner = changed
    for key in above:
        inner = inner[key]
    inner[last] = value
    return changed


def _places(value: Any, above: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    entries = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, below in entries:
        yield (*above, key)
        yield from _places(below, (*above, key))
