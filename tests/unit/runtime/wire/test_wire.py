"""What travels between ranks can be read back, and nothing else can."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from ringtrain.errors import ConfigurationError, MismatchError, PeerLost, RingtrainError
from ringtrain.wire.dtypes import CODES, dtype_of
from ringtrain.wire.failure import Failure
from ringtrain.wire.frame import HEADER_BYTES, FrameHeader, Step, decode_frame, encode_frame
from ringtrain.wire.messages import PullRequest
from ringtrain.wire.signature import Signature, Tensor, decode_signature
from ringtrain.wire.values import decode_value, encode_value


def header(payload: np.ndarray[Any, Any], **changes: Any) -> FrameHeader:
    fields = {"generation": 3, "sequence": 2**40, "step": Step.RESULT, "segment": 7}
    return FrameHeader(**(fields | {"dtype": payload.dtype.name, "length": payload.nbytes} | changes))


@pytest.mark.parametrize("dtype", CODES)
@pytest.mark.parametrize("length", [0, 1, 5])
def test_a_frame_is_read_back_without_a_copy(dtype: str, length: int) -> None:
    """Header and raw bytes; the payload that is read shares the frame's memory."""
    payload = np.ones(length, dtype_of(dtype))
    frame = encode_frame(header(payload), payload)
    assert len(frame) == HEADER_BYTES + payload.nbytes
    read = decode_frame(frame, header(payload))
    assert read.tobytes() == payload.tobytes()
    assert not read.flags.owndata
    assert read.dtype == payload.dtype


@pytest.mark.parametrize(
    "changes",
    [
        {"generation": 4},
        {"sequence": 1},
        {"step": Step.CONTRIBUTION},
        {"segment": 0},
        {"dtype": "int32"},
        {"length": 4},
    ],
    ids=str,
)
def test_another_frame_than_expected_is_refused(changes: dict[str, Any]) -> None:
    """A frame of another generation, collective, step, segment, dtype or length is never taken for this one."""
    payload = np.ones(3, np.float32)
    with pytest.raises(RingtrainError, match="expected FrameHeader"):
        decode_frame(encode_frame(header(payload), payload), header(payload, **changes))


def test_a_truncated_frame_is_refused() -> None:
    """A frame that lost its end is refused even though its header is right."""
    payload = np.ones(3, np.float32)
    with pytest.raises(RingtrainError, match="got a frame of 43 bytes"):
        decode_frame(encode_frame(header(payload), payload)[:-1], header(payload))


@pytest.mark.parametrize(
    ("failure", "kind"),
    [
        (Failure("lost", "rank 3 is gone", 3), PeerLost),
        (Failure("mismatch", "differs"), MismatchError),
        (Failure("configuration", "wrong"), ConfigurationError),
        (Failure("internal", "defect"), RingtrainError),
    ],
    ids=lambda value: getattr(value, "kind", ""),
)
def test_a_failure_becomes_the_same_error_everywhere(failure: Failure, kind: type[RingtrainError]) -> None:
    """It keeps its kind, message and rank; each time it is raised as a new exception."""
    read = Failure.decode(failure.encode())
    assert read == failure
    assert type(read.error()) is kind
    assert str(read.error()) == failure.message
    assert read.error() is not read.error()


def test_a_long_failure_fits_a_trailer() -> None:
    """gRPC limits trailers to 8 KiB; text that is no failure at all becomes one of our own defects."""
    assert len(Failure("lost", "x" * 100_000, 1).encode()) < 8000
    assert Failure.decode("not json").kind == "internal"


def test_requests_and_signatures_are_read_back() -> None:
    """A Pull carries session, place and signature."""
    signature = Signature(
        "allreduce", (Tensor("w", "float32", (2, 3)), Tensor(None, "bool", ())), "Sum", 1, (4, 5)
    )
    request = PullRequest(b"s" * 16, 2, 1, 9, signature.encode())
    read = PullRequest.decode(request.encode())
    assert read == request
    assert decode_signature(read.signature) == signature
    assert signature.label == 'allreduce "w"'


element_types = st.sampled_from([np.dtype("float32"), np.dtype("int64"), np.dtype("U3")])
leaves = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(allow_nan=False),
    st.text(),
    st.binary(),
    hnp.arrays(element_types, hnp.array_shapes(min_dims=0)),
)
keys = st.one_of(st.text(), st.integers(), st.booleans(), st.none(), st.binary(), st.tuples(st.integers()))
values = st.recursive(
    leaves,
    lambda inner: st.one_of(st.lists(inner), st.lists(inner).map(tuple), st.dictionaries(keys, inner)),
    max_leaves=12,
)


@given(values)
def test_plain_values_are_read_back(value: Any) -> None:
    """Any nesting of plain values, arrays and bytes; dicts with any key, also one like our own marks."""
    assert repr(decode_value(encode_value(value))) == repr(value)
    assert repr(decode_value(encode_value({"$array": value}))) == repr({"$array": value})


@pytest.mark.parametrize("value", [object(), {1, 2}, np.array([object()]), [{"deep": (1, print)}]], ids=repr)
def test_what_would_need_pickle_is_refused(value: Any) -> None:
    """Nothing is pickled unless it is asked for by name."""
    with pytest.raises(ConfigurationError, match="without allow_pickle=True"):
        encode_value(value)
