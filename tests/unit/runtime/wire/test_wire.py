"""Values sent between ranks can be read back; everything else is refused."""

import re
from collections import OrderedDict
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from ringtrain._core.wire.dtypes import CODES, dtype_of
from ringtrain._core.wire.failure import WorldFailure
from ringtrain._core.wire.messages import (
    HEADER_BYTES,
    FrameHeader,
    PullRequestMessage,
    WireFrame,
    WireStep,
    payload_octets,
    split_frame,
)
from ringtrain._core.wire.signature import (
    WireSignature,
    WireTensorSignature,
    decode_signature,
    describe_mismatch,
    is_signature_text,
)
from ringtrain._core.wire.values import decode_value, encode_value
from ringtrain.errors import ConfigurationError, MismatchError, PeerLost, RingtrainError


def header(payload: np.ndarray[Any, Any], **changes: Any) -> FrameHeader:
    fields = {"generation": 3, "sequence": 2**40, "step": WireStep.RESULT, "segment": 7}
    return FrameHeader(**(fields | {"dtype": payload.dtype.name, "length": payload.nbytes} | changes))


def framed(payload: np.ndarray[Any, Any], **changes: Any) -> WireFrame:
    return WireFrame(header(payload, **changes).encode(), payload_octets(payload))


@pytest.mark.parametrize("dtype", CODES)
@pytest.mark.parametrize("length", [0, 1, 5])
def test_a_frame_is_read_back(dtype: str, length: int) -> None:
    """Header and raw bytes; the payload of a frame that is split shares its memory."""
    payload = np.ones(length, dtype_of(dtype))
    data = framed(payload).joined()
    assert len(data) == HEADER_BYTES + payload.nbytes
    frame = split_frame(data)
    assert frame.payload.obj is data
    read = np.zeros_like(payload)
    assert frame.move_into(header(payload).encode(), payload_octets(read)) is None
    assert read.tobytes() == payload.tobytes()


@pytest.mark.parametrize(
    "changes",
    [
        {"generation": 4},
        {"sequence": 1},
        {"step": WireStep.CONTRIBUTION},
        {"segment": 0},
        {"dtype": "int32"},
        {"length": 4},
    ],
    ids=str,
)
def test_another_frame_than_expected_is_refused(changes: dict[str, Any]) -> None:
    """A frame of another generation, collective, step, segment, dtype or length is never taken for this one."""
    payload = np.ones(3, np.float32)
    read = np.zeros_like(payload)
    difference = framed(payload, **changes).move_into(header(payload).encode(), payload_octets(read))
    assert difference is not None
    assert re.fullmatch(r"expected FrameHeader\(.*\) with 12 .*, got FrameHeader\(.*\) with 12", difference)
    assert not read.any()


@pytest.mark.parametrize(("cut", "got"), [(-1, "FrameHeader.* with 11"), (20, "a frame that begins with 7452.*")])
def test_a_truncated_frame_is_refused(cut: int, got: str) -> None:
    """A frame that lost its end is refused, and shown as far as it came."""
    payload = np.ones(3, np.float32)
    frame = split_frame(framed(payload).joined()[:cut])
    difference = frame.move_into(header(payload).encode(), payload_octets(np.zeros_like(payload)))
    assert re.search(f"got {got}", difference or "")


@pytest.mark.parametrize(
    ("failure", "kind"),
    [
        (WorldFailure("lost", "rank 3 is gone", 3), PeerLost),
        (WorldFailure("mismatch", "differs"), MismatchError),
        (WorldFailure("configuration", "wrong"), ConfigurationError),
        (WorldFailure("internal", "defect"), RingtrainError),
    ],
    ids=lambda value: getattr(value, "kind", ""),
)
def test_a_failure_becomes_the_same_error_everywhere(failure: WorldFailure, kind: type[RingtrainError]) -> None:
    """It keeps its kind, message and rank; each time it is raised as a new exception."""
    read = WorldFailure.decode(failure.encode())
    assert read == failure
    assert type(read.error()) is kind
    assert str(read.error()) == failure.message
    assert read.error() is not read.error()


def test_a_long_failure_fits_a_trailer() -> None:
    """gRPC limits trailers to 8 KiB; text that is no failure at all becomes one of our own defects."""
    assert len(WorldFailure("lost", "x" * 100_000, 1).encode()) < 8000
    assert WorldFailure.decode("not json").kind == "internal"


def test_requests_and_signatures_are_read_back() -> None:
    """A Pull carries session, place and signature."""
    signature = WireSignature(
        "allreduce",
        (WireTensorSignature("w", "float32", (2, 3)), WireTensorSignature(None, "bool", ())),
        "Sum",
        1,
        (4, 5),
    )
    request = PullRequestMessage(b"s" * 16, 2, 1, 9, signature.encode())
    read = PullRequestMessage.decode(request.encode())
    assert read == request
    assert decode_signature(read.compared) == signature
    assert signature.label == 'allreduce "w"'


element_types = st.sampled_from([np.dtype("float32"), np.dtype("int64"), np.dtype("U3")])
leaves = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(allow_nan=False),
    st.text(),
    st.binary(),
    st.binary().map(bytearray),
    st.complex_numbers(allow_nan=False),
    st.sets(st.integers(min_value=0, max_value=2)),
    st.frozensets(st.tuples(st.integers(min_value=0, max_value=2))),
    hnp.arrays(element_types, hnp.array_shapes(min_dims=0)),
)
keys = st.one_of(st.text(), st.integers(), st.booleans(), st.none(), st.binary(), st.tuples(st.integers()))
values = st.recursive(
    leaves,
    lambda inner: st.one_of(
        st.lists(inner),
        st.lists(inner).map(tuple),
        st.dictionaries(keys, inner),
        st.dictionaries(keys, inner).map(OrderedDict),
    ),
    max_leaves=12,
)


@pytest.mark.slow
@given(values)
def test_plain_values_are_read_back(value: Any) -> None:
    """Any nesting of plain values, arrays and bytes; dicts with any key, also one like our own marks."""
    assert repr(decode_value(encode_value(value))) == repr(value)
    assert repr(decode_value(encode_value({"$array": value}))) == repr({"$array": value})


@pytest.mark.parametrize(
    "value",
    [object(), np.ma.array([1, 2], mask=[0, 1]), np.array([object()]), [{"deep": (1, print)}]],
    ids=["object", "masked-array", "array-of-objects", "deep-in-a-list"],
)
def test_what_would_need_pickle_is_refused(value: Any) -> None:
    """Nothing is pickled unless it is asked for by name."""
    with pytest.raises(ConfigurationError, match="without allow_pickle=True"):
        encode_value(value)


def group_of(tensors: int, last: int) -> WireSignature:
    """A group of `tensors` scalars, but for the last one, which is a vector of `last`."""
    return WireSignature(
        "allreduce",
        (
            *[WireTensorSignature(None, "float32", ())] * (tensors - 1),
            WireTensorSignature(None, "float32", (last,)),
        ),
    )


@pytest.mark.parametrize("tensors", [1, 10_000], ids=["short", "long"])
def test_what_ranks_compare_is_short_and_tells_every_difference(tensors: int) -> None:
    """For any length of signature: equal ones compare equal, and one number at the end makes them differ."""
    one, same, other = (group_of(tensors, last).compared for last in (3, 3, 4))
    assert one == same != other
    assert len(one) < 20_000
    assert is_signature_text(one) == (tensors == 1)


@pytest.mark.parametrize(
    ("one", "other", "values"),
    [
        (WireSignature("add(" + "1, " * 2000 + "7)"), WireSignature("add(" + "1, " * 2000 + "8)"), ("7)", "8)")),
        (
            WireSignature("gather", layout=(*range(100), 901)),
            WireSignature("gather", layout=(*range(100), 902)),
            ("901", "902"),
        ),
        (
            WireSignature("allreduce", (WireTensorSignature("a" * 9000 + "bias", "float32", ()),)),
            WireSignature("allreduce", (WireTensorSignature("a" * 9000 + "kernel", "float32", ()),)),
            ("bias", "kernel"),
        ),
        (
            WireSignature("broadcast", (WireTensorSignature("a" * 9000, "float32", (1,)),)),
            WireSignature("broadcast", (WireTensorSignature("a" * 9000, "float32", (2,)),)),
            ("(1,)", "(2,)"),
        ),
    ],
    ids=["kind", "bounds", "name", "shape"],
)
def test_a_mismatch_shows_both_values_however_late_they_differ(
    one: WireSignature, other: WireSignature, values: tuple[str, str]
) -> None:
    """The message that crosses the wire has what differs, and not only the equal beginning."""
    failure = WorldFailure("mismatch", describe_mismatch(1, (0, one), (1, other)))
    message = WorldFailure.decode(failure.encode()).message
    assert all(value in message for value in values), message
    assert message.endswith(("order", "same", "model")), message
