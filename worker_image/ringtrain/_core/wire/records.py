"""Encoding of dataclasses, named tuples, dates, paths and similar values as plain values, and back.

Objects are built from their parts: no function of a class, nor one that a sender names, is called. A class must have
been loaded by this process.
"""

import argparse
import dataclasses
import datetime
import pathlib
import sys
import types
from collections import defaultdict
from collections.abc import Callable
from typing import Any, Final

import numpy as np

from ringtrain.errors import ConfigurationError

_DATACLASS, _NAMED_TUPLE, _DEFAULTS = "dataclass", "named tuple", "defaultdict"
# Default factories that are supported for a defaultdict.
_FACTORIES: Final[dict[str, Any]] = {
    **{factory.__name__: factory for factory in (bool, dict, float, int, list, set, str, tuple)},
    "None": None,
}


@dataclasses.dataclass(frozen=True)
class _RecordKind:
    """Functions that encode and decode values of exactly the type `of`.

    `parts` returns plain values, and `make` builds the value from them.
    """

    of: type
    parts: Callable[[Any], Any]
    make: Callable[[Any], Any]


def _record_time_zone(value: Any) -> None:
    """Raise ConfigurationError for a time zone that is not a fixed offset from UTC."""
    if value.tzinfo is not None and not isinstance(value.tzinfo, datetime.timezone):
        raise ConfigurationError(
            f"a {type(value).__name__} with the time zone {value.tzinfo} is not sent between ranks without "
            "allow_pickle=True; expected a datetime.timezone or no time zone"
        )


def _record_clock_text(value: Any) -> str:
    _record_time_zone(value)
    return str(value.isoformat())


def _delta(value: datetime.timedelta) -> list[int]:
    return [value.days, value.seconds, value.microseconds]


_PATHS: Final = tuple(
    _RecordKind(kind, str, kind)
    for kind in (type(pathlib.Path()), pathlib.PurePosixPath, pathlib.PureWindowsPath, pathlib.PurePath)
)
_KINDS: Final[dict[str, _RecordKind]] = {
    kind.of.__name__: kind
    for kind in (
        *_PATHS,
        _RecordKind(argparse.Namespace, vars, lambda fields: argparse.Namespace(**fields)),
        _RecordKind(types.SimpleNamespace, vars, lambda fields: types.SimpleNamespace(**fields)),
        _RecordKind(datetime.date, datetime.date.isoformat, datetime.date.fromisoformat),
        _RecordKind(datetime.datetime, _record_clock_text, datetime.datetime.fromisoformat),
        _RecordKind(datetime.time, _record_clock_text, datetime.time.fromisoformat),
        _RecordKind(datetime.timedelta, _delta, lambda parts: datetime.timedelta(*parts)),
        _RecordKind(range, lambda r: [r.start, r.stop, r.step], lambda parts: range(*parts)),
        _RecordKind(slice, lambda s: [s.start, s.stop, s.step], lambda parts: slice(*parts)),
    )
}


def parts_of(value: Any) -> tuple[str, Any] | None:
    """Return the kind of `value` and the plain values to encode; None if its type is not supported."""
    kind = type(value)
    if (known := _KINDS.get(kind.__name__)) is not None and known.of is kind:
        return kind.__name__, known.parts(value)
    if isinstance(value, np.dtype) and not value.hasobject and value.fields is None and value.subdtype is None:
        return "dtype", value.name if value.name == "bfloat16" else value.str
    if kind is defaultdict:
        factory = getattr(value.default_factory, "__name__", "None")
        if _FACTORIES.get(factory, kind) is value.default_factory:
            return _DEFAULTS, [factory, dict(value)]
    if dataclasses.is_dataclass(value) and not isinstance(value, type) and _is_record_module_loaded(kind):
        fields = [field.name for field in dataclasses.fields(value)]
        if set(vars(value) if hasattr(value, "__dict__") else fields) <= set(fields):
            return _DATACLASS, [*_record_place(kind), {name: getattr(value, name) for name in fields}]
    if isinstance(value, tuple) and hasattr(kind, "_fields") and _is_record_module_loaded(kind):
        return _NAMED_TUPLE, [*_record_place(kind), list(value)]
    return None


def make_record(kind: str, parts: Any) -> Any:
    """Return the value that `parts_of` has encoded. Raises ConfigurationError for an unknown kind or class."""
    if kind in _KINDS:
        return _KINDS[kind].make(parts)
    if kind == "dtype":
        from ringtrain._core.wire.dtypes import dtype_of

        return dtype_of("bfloat16") if parts == "bfloat16" else np.dtype(parts)
    if kind == _DEFAULTS:
        return defaultdict(_FACTORIES[parts[0]], parts[1])
    if kind == _DATACLASS:
        made = object.__new__(_record_class_of(kind, *parts[:2]))
        for name, field in parts[2].items():
            object.__setattr__(made, name, field)
        return made
    if kind == _NAMED_TUPLE:
        return tuple.__new__(_record_class_of(kind, *parts[:2]), parts[2])
    raise ConfigurationError(f"received a value of unknown kind {kind!r}; run one version of ringtrain on all ranks")


def _record_place(kind: type) -> tuple[str, str]:
    return kind.__module__, kind.__qualname__


def _is_record_module_loaded(kind: type) -> bool:
    return _found_record_class(*_record_place(kind)) is kind


def _found_record_class(module: str, qualname: str) -> Any:
    found: Any = sys.modules.get(module)
    for name in qualname.split("."):
        found = getattr(found, name, None)
    return found


def _record_class_of(kind: str, module: str, qualname: str) -> Any:
    found = _found_record_class(module, qualname)
    is_right = isinstance(found, type) and (
        dataclasses.is_dataclass(found)
        if kind == _DATACLASS
        else issubclass(found, tuple) and hasattr(found, "_fields")
    )
    if not is_right:
        raise ConfigurationError(
            f"received a {kind} of the class {module}.{qualname}, which this rank has not loaded; "
            "import the class on every rank, at the top of a module"
        )
    return found
