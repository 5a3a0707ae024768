"""Functions that build rules for the values in a pod template: formats of fields, and relations between fields.

A rule gets a value of the type in Kubernetes' schema. It yields the path below the value and what is wrong there.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from decimal import Decimal
from typing import Any

from ..errors import MISSING, shown

Found = Iterator[tuple[str, str]]
PodRule = Callable[[Any], Found]

_SUFFIXES = {"": 0, "n": -9, "u": -6, "m": -3, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18}
_QUANTITY = re.compile(r"([+-]?(?:\d+\.?\d*|\.\d+))(?:[eE]([+-]?\d{1,3})|([KMGTPE])i|([numkMGTPE]?))")


def quantity_value(value: object) -> Decimal | None:
    """Return a Kubernetes quantity such as 500m or 4Gi as a number; None if `value` is not a quantity."""
    found = _QUANTITY.fullmatch(str(value))
    if found is None:
        return None
    digits, exponent, binary, suffix = found.groups()
    if binary:
        return Decimal(digits) * Decimal(1024 ** ("KMGTPE".index(binary) + 1))
    return Decimal(digits).scaleb(int(exponent) if exponent else _SUFFIXES[suffix])


def quantity_hint(value: object, resource: str = "") -> str:
    """Return what to write instead of `value`, which is not a quantity: for 4GB, 4G or 4Gi; of cpu for 100mi, 100m."""
    found = re.fullmatch(r"(\d+\.?\d*)\s*([kmgtpe])(?:i?b|i)?(?:ytes?)?", str(value).strip(), re.IGNORECASE)
    if resource == "cpu":
        return f"did you mean {found[1]}m?" if found and found[2] in "mM" else "expected CPUs, for example 500m or 2"
    if found is None:
        return "expected a quantity, for example 500m, 2 or 4Gi"
    number, prefix = found[1], found[2].upper()
    return f"did you mean {number}{prefix}i or {number}{'k' if prefix == 'K' else prefix}?"


def text(is_right: Callable[[Any], object], expected: str) -> PodRule:
    """Return a rule for a value that `is_right` must accept. `expected`: description for the message."""

    def rule(value: Any) -> Found:
        if not is_right(value):
            yield "", f"is {shown(value)}; expected {expected}"

    return rule


def matching(pattern: str, expected: str) -> PodRule:
    """Return a rule for a string that must match the regular expression `pattern` completely."""
    return text(re.compile(pattern).fullmatch, expected)


def number(least: int, most: int | None = None) -> PodRule:
    """Return a rule for an integer that must be from `least` to `most`."""
    expected = f"an integer of at least {least}" if most is None else f"an integer from {least} to {most}"
    return text(lambda value: value >= least and (most is None or value <= most), expected)


def choice(*words: str) -> PodRule:
    """Return a rule for a string that must be one of `words`."""
    return text(lambda value: value in words, f"{', '.join(words[:-1])} or {words[-1]}")


def each(rule: PodRule) -> PodRule:
    """Return a rule for a list whose items must satisfy `rule`."""
    return lambda values: ((f"[{i}]{path}", said) for i, value in enumerate(values) for path, said in rule(value))


def in_field(field: str, rule: PodRule) -> PodRule:
    """Return a rule for an object: its `field` (a dotted path), if present, must satisfy `rule`."""

    def inner(value: Any) -> Found:
        for word in field.split("."):
            value = value.get(word) if value is not None else None
        return ((f".{field}{path}", said) for path, said in rule(value)) if value is not None else iter(())

    return inner


def needs(*fields: str) -> PodRule:
    """Return a rule for an object: all of `fields` must be present and not empty."""

    def rule(value: Mapping[str, Any]) -> Found:
        for field in fields:
            if value.get(field) in (None, "", []):
                yield f".{field}", MISSING if value.get(field) is None else "is empty; expected a value"

    return rule


def needs_if(field: str, why: str, applies: Callable[[Mapping[str, Any]], object]) -> PodRule:
    """Return a rule for an object: `field` must be present if `applies`. `why`: end of the message."""

    def rule(value: Mapping[str, Any]) -> Found:
        if value.get(field) is None and applies(value):
            yield f".{field}", f"{MISSING} {why}"

    return rule


def one_of(*fields: str, least: int = 1) -> PodRule:
    """Return a rule for an object: exactly one of `fields` must be present, or at most one if `least` is 0."""

    def rule(value: Mapping[str, Any]) -> Found:
        given = [field for field in fields if value.get(field) is not None]
        if len(given) > 1:
            yield "", f"has {' and '.join(given)}; expected one of them"
        elif len(given) < least:
            yield "", f"has none of {', '.join(fields)}; expected one of them"

    return rule


def not_both(first: str, second: str) -> PodRule:
    """Return a rule for an object: of two fields, at most one may have a value that is not empty."""

    def rule(value: Mapping[str, Any]) -> Found:
        if value.get(first) and value.get(second):
            yield f".{second}", f"is set in addition to {first}; expected one of them"

    return rule


def at_most_one_besides(*fields: str) -> PodRule:
    """Return a rule for an object: apart from `fields`, it may have only one field."""
    return lambda value: one_of(*(key for key in value if key not in fields), least=0)(value)


def no_field(field: str, why: str, applies: Callable[[Mapping[str, Any]], object]) -> PodRule:
    """Return a rule for an object: `field` must be absent if `applies`. `why`: end of the message."""

    def rule(value: Mapping[str, Any]) -> Found:
        if value.get(field) and applies(value):
            yield f".{field}", f"is {shown(value[field])}; expected none {why}"

    return rule


def only(*fields: str) -> PodRule:
    """Return a rule for an object: it may have a value only in `fields`."""
    return lambda one: (
        (f".{key}", f"is {shown(value)}; expected only {' and '.join(fields)} here")
        for key, value in one.items()
        if value and key not in fields
    )


def items_of(owner: Mapping[str, Any], *fields: str) -> list[tuple[str, Mapping[str, Any]]]:
    """Return the items of an object's lists `fields`, each after its path."""
    return [(f".{field}[{i}]", item) for field in fields for i, item in enumerate(owner.get(field) or ())]


def different(*places: str) -> PodRule:
    """Return a rule for an object: the items of its lists must have different values. `places`: LIST.KEY of each."""
    pairs = [place.split(".") for place in places]
    return lambda one: given_twice((f"{p}.{key}", v.get(key)) for field, key in pairs for p, v in items_of(one, field))


def given_twice(named: Iterable[tuple[str, object]]) -> Found:
    """Yield a problem for each of the (path, value) pairs `named` whose value occurred in an earlier pair."""
    first: dict[object, str] = {}
    for path, name in named:
        if name is not None and first.setdefault(name, path) != path:
            yield path, f"is {shown(name)}, as is {first[name].removeprefix('.')}; expected another one"
