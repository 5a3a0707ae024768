"""Values of the standard library between ranks, without pickle."""

import argparse
import datetime
import pickle
import types
from collections import defaultdict, namedtuple
from dataclasses import dataclass, field
from pathlib import Path, PureWindowsPath
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np
import pytest

from ringtrain._core.wire.values import decode_value, encode_value
from ringtrain.errors import ConfigurationError

called: list[str] = []


@dataclass(frozen=True)
class Options:
    """`__post_init__` is a function of the class, which no message calls."""

    rate: float
    where: Path
    sizes: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        called.append("post_init")


@dataclass(slots=True)
class Slotted:
    value: Any


class Point(NamedTuple):
    x: int
    y: Any


Pair = namedtuple("Pair", "a b")
UTC = datetime.UTC
VALUES = {
    "namespace": argparse.Namespace(lr=0.1, names=["a"], at=Path("x")),
    "simple-namespace": types.SimpleNamespace(a=(1, 2)),
    "path": Path("/data/x"),
    "windows-path": PureWindowsPath("c:/x"),
    "datetime": datetime.datetime(2026, 1, 2, 3, 4, 5, 6),
    "datetime-utc": datetime.datetime(2026, 1, 2, tzinfo=UTC),
    "date": datetime.date(2026, 1, 2),
    "time": datetime.time(3, 4),
    "timedelta": datetime.timedelta(days=-1, seconds=3),
    "range": range(2, 10, 3),
    "slice": slice(None, 4, None),
    "dtype": np.dtype(">f4"),
    "bfloat16": np.dtype(ml_dtypes.bfloat16),
    "defaultdict": defaultdict(list, {"a": [1], ("b", 1): [Path("x")]}),
    "defaultdict-none": defaultdict(None, {1: 2}),
    "dataclass": Options(0.5, Path("y"), [1, 2]),
    "slots": Slotted({"deep": Point(1, np.float32(2))}),
    "named-tuple": Pair(1, Point(2, None)),
}


@pytest.mark.parametrize("value", VALUES.values(), ids=VALUES)
def test_a_value_comes_back_as_pickle_brings_it_back(value: Any) -> None:
    """Of the same type, equal, and alone or within others."""
    before = list(called)
    for given in (value, {"in": [value, (value,)]}):
        found = decode_value(encode_value(given))
        expected = pickle.loads(pickle.dumps(given))
        assert found == expected
        assert type(found) is type(expected)
    found = decode_value(encode_value(value))
    assert getattr(found, "default_factory", 0) is getattr(value, "default_factory", 0)
    assert called == before


def test_what_would_need_a_function_of_its_class_is_refused() -> None:
    """A class itself, a class within a function, a factory of the user's, a time zone that is a table."""

    @dataclass
    class Local:
        x: int = 1

    import zoneinfo

    zoned = datetime.datetime(2026, 1, 2, tzinfo=zoneinfo.ZoneInfo("UTC"))
    for value in (Options, Local(), defaultdict(lambda: 1), zoned, np.dtype([("a", "f4")])):
        with pytest.raises(ConfigurationError, match="not sent between ranks without allow_pickle=True"):
            encode_value(value)


@pytest.mark.parametrize("kind", [ml_dtypes.float8_e5m2, ml_dtypes.float8_e4m3fn, ml_dtypes.int4])
def test_an_array_whose_dtype_numpy_does_not_know_by_name_is_refused(kind: type) -> None:
    """The sender refuses the array, not the receiver; float8_e5m2 has a float's kind."""
    for value in (np.zeros(2, kind), kind(0)):
        with pytest.raises(ConfigurationError, match=r"value is an array of \w+, which is not sent between ranks"):
            encode_value(value)


@pytest.mark.parametrize("place", [["os", "system"], ["subprocess", "Popen"], ["absent", "Name"]])
@pytest.mark.parametrize("kind", ["dataclass", "named tuple"])
def test_a_message_makes_no_object_of_another_class(place: list[str], kind: str) -> None:
    """Only dataclasses and named tuples that this process has loaded."""
    import json
    import struct

    text = json.dumps({"$record": [kind, [*place, {"$dict": []} if kind == "dataclass" else []]]}).encode()
    with pytest.raises(ConfigurationError, match="which this rank has not loaded"):
        decode_value(struct.pack("<Q", len(text)) + text)
