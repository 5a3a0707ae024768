"""For any bytes at a rank's ports, parsers raise only MalformedMessage or the errors that they document."""

import json
import struct
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from support.memory_transport import MemoryCaller, MemoryNetwork, MemoryTransport

from ringtrain._core.transport import frames
from ringtrain._core.transport.base import StreamBroken
from ringtrain._core.transport.frames import Http2BlockReader
from ringtrain._core.wire.failure import PullRefused, WorldFailure
from ringtrain._core.wire.messages import (
    ABORT,
    HEADER_BYTES,
    METHODS,
    PROTOCOL_VERSION,
    PROVE,
    HelloMessage,
    MalformedMessage,
    PullRequestMessage,
    decode_message,
    decode_message_fields,
    describe_difference,
    encode_wire_message,
    split_frame,
)
from ringtrain._core.world.membership import WorldMembership
from ringtrain._core.world.ring_config import RingConfig
from ringtrain.shared.connection_errors import ProtocolError

HELLO = HelloMessage(PROTOCOL_VERSION, 1, 2, 1, "b:1", "x", "n").__dict__
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=10),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)
# Hellos with any field changed, alone and as a part of a Prove; identities; and what is none of these.
HELLOS = st.dictionaries(st.sampled_from(sorted(HELLO)), JSON).map(lambda changed: {**HELLO, **changed})
PARTS = {"hello": HELLOS | JSON, "proof": JSON, "rank": JSON, "session": JSON, "failure": JSON}
REQUESTS = (HELLOS | st.fixed_dictionaries({}, optional=PARTS) | JSON).map(lambda value: json.dumps(value).encode())
BYTES = st.binary(max_size=200) | REQUESTS


@given(BYTES)
@example(b"[" * 50_000)
@example(b'{"a":' * 10_000)
@example(b"9" * 5000)
@example(b'"\\ud800"')
@example(b"\xef\xbb\xbf{}")
@example(b"Infinity")
def test_any_bytes_as_a_message(data: bytes) -> None:
    """Values, or MalformedMessage."""
    with suppress(MalformedMessage):
        HelloMessage.parse(decode_message(data))
    with suppress(MalformedMessage):
        decode_message_fields(data, rank=int, session=bytes, hello=dict)


@given(st.sampled_from(METHODS), BYTES, st.sampled_from([None, b"token"]))
@example(ABORT, encode_wire_message({"rank": 1, "session": "", "proof": "", "failure": '{"rank": Infinity}'}), None)
@example(ABORT, encode_wire_message({"rank": 1, "session": "zz", "proof": "", "failure": ""}), None)
@example(PROVE, encode_wire_message({"hello": {**HELLO, "rank": 10**40}, "proof": ""}), b"token")
@example("Hello", json.dumps({**HELLO, "address": "\ud800"}).encode(), b"token")
@example(PROVE, json.dumps({"hello": HELLO, "proof": "\ud800"}).encode(), b"token")
def test_any_request_to_a_rank(method: str, data: bytes, token: bytes | None) -> None:
    """A rank that meets its peers answers or refuses, and does not fail."""
    member = WorldMembership(
        RingConfig(0, 2, ("a:1", "b:1"), token=token, timeout_s=0.01), MemoryTransport(MemoryNetwork(), 0)
    )
    with suppress(PullRefused, StreamBroken):
        member.answer(method, data, MemoryCaller(0.01))
    assert member.failure_state.failure is None


@given(st.binary(max_size=100))
@example(b"")
def test_any_bytes_as_a_pull(data: bytes) -> None:
    """A request, or struct.error, which the rank turns into a refusal."""
    with suppress(struct.error):
        PullRequestMessage.decode(data)


@pytest.mark.slow
@given(st.binary(max_size=100), st.binary(max_size=100))
@example(b"", bytes(HEADER_BYTES))
def test_any_bytes_as_a_frame(expected: bytes, data: bytes) -> None:
    """Another frame than expected is described and not stored."""
    frame = split_frame(data)
    target = bytearray(len(frame.payload))
    difference = frame.move_into(expected, memoryview(target))
    assert (difference is None) == (frame.head == expected)
    assert difference is None or target == bytes(len(target))
    assert describe_difference(expected, 1, data, 2)


@given(st.text(max_size=100) | JSON.map(json.dumps))
@example("[" * 50_000)
@example('{"kind": "lost", "message": "x", "rank": Infinity}')
def test_any_text_as_a_failure(text: str) -> None:
    """Any refusal text of a peer can be raised as an error."""
    assert WorldFailure.decode(text).error()


@given(st.lists(st.binary(max_size=60), max_size=4))
def test_any_bytes_as_headers(blocks: list[bytes]) -> None:
    """Header blocks of HTTP/2: fields, or ProtocolError."""
    reader: Any = Http2BlockReader()
    with suppress(ProtocolError):
        for block in blocks:
            reader.read(block)


@given(st.binary(min_size=9, max_size=9), st.binary(max_size=40))
def test_any_bytes_as_a_frame_of_http2(head: bytes, payload: bytes) -> None:
    """Heads and settings have no bytes that can't be read."""
    found = frames.http2_head_of(head)
    assert frames.frame_head(*(found.kind, found.flags, found.stream, found.length))[:5] == head[:5]
    frames.http2_settings_of(payload[: len(payload) // 6 * 6])
