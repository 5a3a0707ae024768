"""Texts about an invalid spec: errors of the pydantic models, and violated rules with the values found."""

import difflib
import re
from collections.abc import Iterator, Mapping
from typing import Any

from pydantic import BaseModel, ValidationError

from ..errors import MISSING, Problem, shown, spelling_hint
from .base import Rule, field_at
from .job import MANAGER_NAME, JobSpec
from .scheduling import LABEL_KEY
from .storage import MOUNT_PATH, STORE_URI

# What people write a level too high.
_OF_CONTAINERS = frozenset({"image", "command", "args", "env", "resources", "volumeMounts"})
_OF_PODS = frozenset({"containers", "volumes", "nodeSelector", "tolerations", "affinity", "imagePullSecrets"})
# By the kind of error that pydantic gives, with names of its context.
_EXPECTED: Mapping[str, str] = {
    "bool_type": "true or false",
    "dict_type": "a mapping",
    "greater_than_equal": "at least {ge}",
    "int_from_float": "a whole number",
    "int_type": "a whole number",
    "finite_number": "a number",
    "float_type": "a number",
    "less_than_equal": "at most {le}",
    "list_type": "a list",
    "tuple_type": "a list",
    "too_short": "at least {min_length} of them",
    "too_long": "at most {max_length} of them",
    "model_type": "a mapping",
    "string_type": "a text: write it in quotes",
    "string_too_long": "at most {max_length} characters",
    "string_too_short": "at least {min_length} characters",
}
_PATTERNS = {
    MANAGER_NAME: "a domain, '/' and a name, for example kueue.x-k8s.io/multikueue",
    LABEL_KEY: "the key of a label, for example topology.kubernetes.io/zone",
    MOUNT_PATH: "an absolute path without ':' and without '/' at its end",
    STORE_URI: "a place in an object store, for example s3://bucket/path, gs://bucket or az://container",
}
_A_NAME = "lower-case letters, digits, '-' and '.', with a letter or a digit at both ends"
# A whole number or a boolean that was written in quotes.
QUOTED = re.compile(r"[+-]?\d+|[Tt]rue|[Ff]alse")
_FIELD = re.compile(r"[a-z][A-Za-z]*(?:\.[a-z][A-Za-z]*)*")


def model_problems(error: ValidationError) -> list[Problem]:
    """Convert the errors of a pydantic model to problems with path and message."""
    return [_model_problem(one) for one in error.errors(include_url=False)]


def rule_problems(model: BaseModel, path: str) -> Iterator[Problem]:
    """Yield a problem for each rule that `model` or a model in it violates, with the values found."""
    for rule in getattr(type(model), "RULES", ()):
        if rule.holds is not None and not rule.holds(model):
            yield Problem(f"{path}.{rule.path}", f"{rule.message}{_values_named(rule, model)}")
    for name, info in type(model).model_fields.items():
        value, where = getattr(model, name), f"{path}.{info.alias or name}"
        if isinstance(value, BaseModel):
            yield from rule_problems(value, where)
        elif isinstance(value, tuple):
            for index, item in enumerate(value):
                if isinstance(item, BaseModel):
                    yield from rule_problems(item, f"{where}[{index}]")


def fields_named(rule: Rule) -> list[str]:
    """Return the paths, relative to the model, that a rule is about. Some are only words of the rule's message."""
    return list(dict.fromkeys((rule.path, *_FIELD.findall(rule.message))))


def _values_named(rule: Rule, model: BaseModel) -> str:
    """Return the values of the fields that a rule's message names, in brackets, as an addition to the message."""
    found = {}
    for name in fields_named(rule):
        try:
            value = field_at(model, name)
        except KeyError:
            continue
        if isinstance(value, int | float | str | dict):
            found[name] = f"{name} is {shown(value)}"
    return f" ({', '.join(found.values())})" if found else ""


def _model_problem(error: Any) -> Problem:
    location = tuple(error["loc"])
    path = "spec" + "".join(f"[{x}]" if isinstance(x, int) or "/" in x else f".{x}" for x in location)
    kind, value, context = error["type"], error["input"], error.get("ctx", {})
    if kind == "missing":
        return Problem(path, MISSING)
    if kind == "extra_forbidden":
        return Problem(path, _unknown_field(location))
    if kind == "literal_error":
        return Problem(path, f"is {shown(value)}, allowed: {context['expected']}")
    if kind == "string_pattern_mismatch":
        return Problem(path, f"is {shown(value)}; expected {_PATTERNS.get(context['pattern'], _A_NAME)}")
    expected = _EXPECTED.get(kind, error["msg"]).format(**context)
    if kind in ("int_type", "bool_type") and isinstance(value, str) and QUOTED.fullmatch(value):
        expected += " without quotes"
    elif kind == "string_type" and isinstance(value, list | dict):
        expected = f"a text, not a {'list' if isinstance(value, list) else 'mapping'}"
    return Problem(path, f"is {shown(value)}; expected {expected}")


def _unknown_field(location: tuple[Any, ...]) -> str:
    known, name = _fields_at(location[:-1]), str(location[-1])
    by_letters = {one.lower(): one for one in known}
    if close := difflib.get_close_matches(name.lower(), by_letters, n=1, cutoff=0.8):
        return f"is not a field here; did you mean {by_letters[close[0]]}?"
    if near := next((one for one in known if one.lower().endswith(name.lower())), ""):
        return f"is not a field here; did you mean {near}?"
    places = _paths_of_fields()
    if name in places:
        return f"is not a field here; it is {places[name]}"
    by_letters = {one.lower(): place for one, place in places.items()}
    if close := difflib.get_close_matches(name.lower(), by_letters, n=1, cutoff=0.85):
        return f"is not a field here; did you mean {by_letters[close[0]]}?"
    hint = spelling_hint(name, known) or f"allowed: {', '.join(sorted(known))}"
    return f"is not a field here; {hint}"


def _paths_of_fields() -> dict[str, str]:
    """Return the path in a job of each field of its sections, of a worker's pod and of its container, by name."""
    sections = {info.alias or field: info.annotation for field, info in JobSpec.model_fields.items()}
    pod = "spec.worker.template.spec"
    places = {name: f"{pod}.{name}" for name in _OF_PODS} | {
        name: f"{pod}.containers[0].{name}" for name in _OF_CONTAINERS
    }
    for section in (*reversed(sections), "worker"):
        for model in _models_in(sections[section]):
            places |= {n: f"spec.{section}.{n}" for n in (info.alias or f for f, info in model.model_fields.items())}
    return places


def _fields_at(location: tuple[Any, ...]) -> list[str]:
    """Return the names (in YAML) of all fields of the model at `location` in a job."""
    model: type[BaseModel] = JobSpec
    for part in location:
        if isinstance(part, int):
            continue
        field = next(info for name, info in model.model_fields.items() if part in (info.alias, name))
        model = next(iter(_models_in(field.annotation)), model)
    return [info.alias or name for name, info in model.model_fields.items()]


def _models_in(annotation: Any) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for argument in getattr(annotation, "__args__", ()):
        yield from _models_in(argument)
