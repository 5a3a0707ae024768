"""The data path is gRPC: it talks with gRPC's own library both ways, and strangers get nothing from it."""

import contextlib
import logging
import socket
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
import numpy as np
import pytest
from hpack import Encoder
from support.gang import until
from support.ports import free_addresses

import ringtrain as rt
from ring.leftovers import leftovers
from ring.pulls import (
    DEADLINE_S,
    Sizes,
    asking,
    head,
    our_client,
    our_server,
    payload,
    read,
    their_client,
    their_server,
)
from ring.worlds import world_of
from ringtrain._core.transport import frames
from ringtrain._core.transport.base import StreamBroken, StreamEnd, UnexpectedFrame
from ringtrain._core.transport.channel import SocketChannel
from ringtrain._core.transport.connection import Http2Connection
from ringtrain._core.transport.data_path import SocketFrameStream, TransportDataPath
from ringtrain._core.transport.frames import (
    END_HEADERS,
    PREFACE,
    Http2FrameType,
    request_block,
    response_block,
    trailer_block,
)
from ringtrain._core.wire.failure import PullRefused

KIB = 1 << 10
# Nothing, one byte, around the smallest largest frame, around the first window, more than any buffer.
SIZES = [0, 1, 16 * KIB - 1, 16 * KIB, 16 * KIB + 1, 64 * KIB, 300_000, 5 << 20, 0]
TEXT = 'it said "100 %", ü and a\nnew line'
OUR_SERVER = pytest.mark.parametrize("serving", [our_server, their_server], ids=["our-server", "grpc-server"])


@pytest.fixture(autouse=True)
def nothing_is_left() -> Iterator[None]:
    yield
    assert not leftovers()


def code_of(call: Any) -> tuple[str, str]:
    """Return status code and details at the end of a call by gRPC's library."""
    try:
        list(call)
    except grpc.RpcError as error:
        return error.code().name, error.details()  # type: ignore[attr-defined]
    return "OK", ""


@pytest.mark.parametrize("small", [False, True], ids=["probed-window", "least-window"])
def test_grpc_reads_what_our_server_sends(small: bool) -> None:
    """Messages of every size, call after call on one connection, also through a window of 64 KiB."""
    options = {"grpc.http2.bdp_probe": 0, "grpc.http2.lookahead_bytes": 64 * KIB} if small else {}
    with our_server(Sizes()) as port, their_client(port, **options) as pull:
        for _ in range(3):
            came = list(pull(asking(*SIZES), timeout=DEADLINE_S))
            assert [message[:32] for message in came] == [head(i) for i in range(len(SIZES))]
            assert [message[32:] for message in came] == [payload(size, i) for i, size in enumerate(SIZES)]


@pytest.mark.parametrize("window", [frames.MAX_WINDOW, 1000, 70_000], ids=lambda window: f"window-{window}")
@OUR_SERVER
def test_our_client_reads_what_a_server_sends(serving: Callable[[Any], Any], window: int) -> None:
    """Messages of every size, call after call on one connection, through windows of any length."""
    sizes = SIZES if window > 1000 else [0, 1, 999, 1001, 50_000]
    with serving(Sizes()) as port, our_client(port, window) as pull:
        for _ in range(3):
            assert read(pull(asking(*sizes)), sizes) == [payload(size, i) for i, size in enumerate(sizes)]


def test_a_long_request_fits_through_the_first_window() -> None:
    """A signature of thousands of tensors is longer than what a peer may send unasked."""
    request = asking(3, names="x" * 1_000_000)
    for serving in (our_server, their_server):
        with serving(Sizes()) as port, our_client(port) as pull:
            assert read(pull(request), [3]) == [payload(3, 0)]
    with our_server(Sizes()) as port, their_client(port) as theirs:
        assert len(list(theirs(request, timeout=DEADLINE_S))) == 1


@OUR_SERVER
@pytest.mark.parametrize("sizes", [(), (10, 100_000)], ids=["at-once", "after-frames"])
def test_reasons_arrive_in_our_client(serving: Callable[[Any], Any], sizes: tuple[int, ...]) -> None:
    """A refusal keeps its kind and text; a rank that leaves is a closed connection; a defect says what it was."""
    with serving(Sizes()) as port, our_client(port) as pull:
        with pytest.raises(PullRefused) as refused:
            read(pull(asking(*sizes, refuse=TEXT)), list(sizes))
        assert (refused.value.failure.kind, refused.value.failure.message) == ("mismatch", TEXT)
        with pytest.raises(StreamBroken) as broken:
            read(pull(asking(*sizes, leave="rank 1 has shut down")), list(sizes))
        assert (broken.value.how, broken.value.detail) == (StreamEnd.CLOSED, "rank 1 has shut down")
        with pytest.raises(PullRefused, match=r"a peer failed to answer: .*out of luck") as defect:
            read(pull(asking(*sizes, fail="out of luck")), list(sizes))
        assert defect.value.failure.kind == "internal"


def test_reasons_of_our_server_arrive_in_grpc() -> None:
    """Status codes and percent-encoded messages are as gRPC writes them."""
    with our_server(Sizes()) as port, their_client(port) as pull:
        code, message = code_of(pull(asking(7, refuse=TEXT), timeout=DEADLINE_S))
        assert code == "FAILED_PRECONDITION"
        assert "100 %" in message
        assert code_of(pull(asking(leave="shut down ü%"), timeout=DEADLINE_S)) == ("UNAVAILABLE", "shut down ü%")
        assert code_of(pull(asking(fail="bad"), timeout=DEADLINE_S)) == ("UNKNOWN", "ValueError: bad")
        assert code_of(pull(asking(3), timeout=DEADLINE_S)) == ("OK", "")


def test_other_calls_are_not_served() -> None:
    """The data port answers Pull and nothing else: control has its own port."""
    with our_server(Sizes()) as port, grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
        with pytest.raises(grpc.RpcError) as error:
            channel.unary_unary("/ringtrain.Ring/Hello")(b"", timeout=DEADLINE_S)
        assert error.value.code() is grpc.StatusCode.UNIMPLEMENTED  # type: ignore[attr-defined]


@OUR_SERVER
def test_a_deadline_ends_our_wait(serving: Callable[[Any], Any]) -> None:
    """A server that says nothing within the timeout: it took that long, and the server learns of it."""
    service = Sizes()
    with serving(service) as port, our_client(port) as pull:
        stream = pull(asking(5, wait=True), 0.5)
        with pytest.raises(StreamBroken) as broken:
            read(stream, [5, 5])
        assert broken.value.how is StreamEnd.TIMEOUT
        assert service.given_up.wait(DEADLINE_S)


def test_a_deadline_of_grpc_ends_our_service() -> None:
    """The header that says how long the caller waits is heeded."""
    service = Sizes()
    with our_server(service) as port, their_client(port) as pull:
        assert code_of(pull(asking(5, wait=True), timeout=0.5))[0] == "DEADLINE_EXCEEDED"
        assert service.given_up.wait(DEADLINE_S)


@OUR_SERVER
def test_cancelling_lets_go_on_both_sides(serving: Callable[[Any], Any]) -> None:
    """From another thread, while the reader waits: it raises, and the service sees that its caller has gone."""
    service = Sizes()
    with serving(service) as port, our_client(port) as pull, ThreadPoolExecutor(1) as pool:
        stream = pull(asking(5, wait=True))
        reading = pool.submit(read, stream, [5, 5])
        assert service.waiting.wait(DEADLINE_S)
        stream.cancel()
        error = reading.exception(DEADLINE_S)
        assert isinstance(error, StreamBroken)
        assert error.how is StreamEnd.CANCELLED
        assert service.given_up.wait(DEADLINE_S)


def test_grpc_may_cancel_and_call_again() -> None:
    """A reset stream ends its call and not the connection."""
    with our_server(service := Sizes()) as port, their_client(port) as pull:
        for _ in range(3):
            service.waiting.clear()
            service.given_up.clear()
            call = pull(asking(5, wait=True), timeout=DEADLINE_S)
            assert len(next(call)) == 32 + 5
            assert service.waiting.wait(DEADLINE_S)
            call.cancel()
            assert service.given_up.wait(DEADLINE_S)
            assert code_of(pull(asking(9), timeout=DEADLINE_S)) == ("OK", "")


def test_calls_of_grpc_at_the_same_time_take_turns() -> None:
    """A connection carries one call at a time, and says so."""
    with our_server(Sizes()) as port, their_client(port) as pull, ThreadPoolExecutor(4) as pool:
        list(pull(asking(1), timeout=DEADLINE_S))  # gRPC has read the settings
        calls = [pool.submit(lambda: code_of(pull(asking(200_000), timeout=DEADLINE_S))) for _ in range(8)]
        assert [call.result(DEADLINE_S) for call in calls] == [("OK", "")] * 8


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ([8], "expected .* with 8 bytes of payload, got .* with 7"),
        ([7, 1], "too early"),
        ([], "more data than expected"),
    ],
    ids=["another-length", "too-few", "too-many"],
)
@OUR_SERVER
def test_another_frame_than_expected_is_a_defect(serving: Callable[[Any], Any], sizes: list[int], message: str) -> None:
    """A stream with a frame of another length, or too few or too many frames, raises UnexpectedFrame."""
    with (
        serving(Sizes()) as port,
        our_client(port) as pull,
        pytest.raises(UnexpectedFrame, match=message),
    ):
        read(pull(asking(7)), sizes)


SENT = [30_000, 7]
ANSWER = [
    (Http2FrameType.HEADERS, END_HEADERS, response_block()),
    *(
        (Http2FrameType.DATA, 0, frames.message_front(0, 1, head(i), n)[frames.HEADER_BYTES :] + payload(n, i))
        for i, n in enumerate(SENT)
    ),
    (Http2FrameType.HEADERS, END_HEADERS | frames.END_STREAM, trailer_block(0, "", only=False)),
]


@pytest.mark.parametrize("piece", [1 << 20, 1500, 13], ids=lambda piece: f"pieces-of-{piece}")
@pytest.mark.parametrize("other", ["nothing", "pings", "indexed-headers", "trailers-with-more", "split-data", "padded"])
def test_an_answer_is_read_however_it_is_framed(other: str, piece: int) -> None:
    """As peers of ours frame it, and otherwise: with questions between all frames, headers that use the table,
    another trailer, a message in two frames, padding; and in whatever pieces it comes. Twice on one connection.
    """
    with socket.create_server(("127.0.0.1", 0)) as server, ThreadPoolExecutor(1) as pool:
        one, theirs = socket.create_connection(server.getsockname()), server.accept()[0]
        with theirs, contextlib.closing(SocketChannel(one, 60)) as channel:
            connection, encoder = Http2Connection(channel, is_client=True), Encoder()
            for stream in (1, 3):
                stream_bytes = b"".join(_framed(other, stream, encoder))
                sent = pool.submit(_send_in_pieces, theirs, stream_bytes, piece)
                pull = SocketFrameStream(connection, lambda connection: None)
                pull.ask(b"x", "x:1", DEADLINE_S)
                assert read(pull, SENT) == [payload(length, index) for index, length in enumerate(SENT)]
                sent.result(DEADLINE_S)


def _framed(other: str, stream: int, encoder: Encoder) -> Iterator[bytes]:
    for place, (kind, flags, data) in enumerate(ANSWER):
        if other == "pings":
            yield _frame(Http2FrameType.PING, 0, 0, b"12345678")
        if other == "indexed-headers" and place == 0:
            data = encoder.encode([(":status", "200"), ("content-type", "application/grpc"), ("server", "another")])
        if other == "trailers-with-more" and place == 3:
            data = trailer_block(0, "said", only=False)
        if other == "split-data" and place == 1:
            yield _frame(kind, flags, stream, data[:20])
            data = data[20:]
        if other == "padded" and kind == Http2FrameType.DATA:
            flags, data = flags | frames.PADDED, b"\x02" + data + b"\0\0"
        yield _frame(kind, flags, stream, data)


def _send_in_pieces(sock: socket.socket, data: bytes, length: int) -> None:
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    for start in range(0, len(data), length):
        sock.sendall(data[start : start + length])


def _frame(kind: Http2FrameType, flags: int, stream: int, data: bytes = b"") -> bytes:
    return frames.http2_frame(kind, flags, stream, data)


GREETING = PREFACE + frames.http2_settings({})
CALL = GREETING + _frame(Http2FrameType.HEADERS, END_HEADERS, 1, request_block("x:1", 60.0))
STRANGERS = {
    "no-preface": (b"GET / HTTP/1.1\r\nHost: x\r\n\r\n" + b"x" * 64, "does not begin with the preface of HTTP/2"),
    "wrong-magic": (PREFACE.replace(b"SM", b"MS") + b"x" * 64, "does not begin with the preface of HTTP/2"),
    "oversized-frame": (
        GREETING + frames.frame_head(Http2FrameType.PING, 0, 0, 1 << 23),
        "type 6 with 8388608 bytes",
    ),
    "oversized-unknown-frame": (GREETING + frames.frame_head(200, 0, 0, 1 << 23), "type 200 with"),
    "data-before-headers": (GREETING + _frame(Http2FrameType.DATA, 0, 1, b"x"), "but the newest stream is 0"),
    "endless-headers": (
        GREETING
        + _frame(Http2FrameType.HEADERS, 0, 1, b"")
        + 40 * _frame(Http2FrameType.CONTINUATION, 0, 1, b"\0" * 1000),
        "headers of more than 16384 bytes",
    ),
    "not-continued": (
        GREETING + _frame(Http2FrameType.HEADERS, 0, 1) + _frame(Http2FrameType.PING, 0, 0, b"x" * 8),
        "not continued",
    ),
    "bad-compression": (GREETING + _frame(Http2FrameType.HEADERS, END_HEADERS, 1, b"\xff" * 20), "can't be decoded"),
    "pushed": (GREETING + _frame(Http2FrameType.PUSH_PROMISE, END_HEADERS, 1, b"xxxx"), "type 5 on stream 1"),
    "short-ping": (GREETING + _frame(Http2FrameType.PING, 0, 0, b"x"), "type 6 with a wrong length, 1 bytes"),
    "no-window": (GREETING + _frame(Http2FrameType.WINDOW_UPDATE, 0, 0, b"\0" * 4), "a window update by 0"),
    "endless-window": (
        GREETING + _frame(Http2FrameType.WINDOW_UPDATE, 0, 0, b"\x7f\xff\xff\xff"), "window update by 2147483647"
    ),
    "bad-frame-size": (
        PREFACE + frames.http2_settings({frames.Http2Setting.MAX_FRAME_SIZE: 1}),
        "a frame size of 1",
    ),
    "no-session": (CALL + _frame(Http2FrameType.DATA, 1, 1, b"\0\0\0\0\4junk"), "no session"),
    "compressed": (CALL + _frame(Http2FrameType.DATA, 1, 1, b"\1\0\0\0\4junk"), "the request is compressed"),
    "huge-request": (CALL + _frame(Http2FrameType.DATA, 0, 1, b"\0\x7f\0\0\0"), "expected at most"),
    "long-padding": (CALL + _frame(Http2FrameType.DATA, frames.PADDED, 1, b"\xff123"), "padding longer"),
    "more-than-one": (CALL + _frame(Http2FrameType.DATA, 1, 1, b"\0\0\0\0\4junk++"), "one whole message"),
    "less-than-one": (CALL + _frame(Http2FrameType.DATA, 1, 1, b"\0\0\0\0\5junk"), "one whole message"),
    "no-message": (CALL + _frame(Http2FrameType.DATA, 1, 1), "has no message"),
}  # fmt: skip


@pytest.mark.parametrize("name", STRANGERS)
def test_strangers_are_closed_out(name: str, caplog: pytest.LogCaptureFixture) -> None:
    """Bytes that are no call of a peer's: the connection ends, one line says why, and peers are served on."""
    sent, reason = STRANGERS[name]
    caplog.set_level(logging.DEBUG, "ringtrain")
    with our_server(Sizes()) as port, our_client(port) as pull:
        assert read(pull(asking(5)), [5])
        with socket.create_connection(("127.0.0.1", port), timeout=DEADLINE_S) as stranger:
            stranger.sendall(sent)
            answered = b""
            while more := _received(stranger):
                answered += more
        assert len(answered) < 2000
        assert read(pull(asking(6)), [6])
    (record,) = [record for record in caplog.records if record.name == "ringtrain"]
    assert reason in record.getMessage()


def _received(sock: socket.socket) -> bytes:
    try:
        return sock.recv(4096)
    except ConnectionResetError:  # it had not read all of ours
        return b""


def test_few_strangers_stay_at_a_time(caplog: pytest.LogCaptureFixture) -> None:
    """For a connection without a session that is one too many the oldest has to go: peers are served at once."""
    caplog.set_level(logging.DEBUG, "ringtrain")
    with our_server(Sizes()) as port:
        strangers = [socket.create_connection(("127.0.0.1", port), timeout=DEADLINE_S) for _ in range(70)]
        assert all(_greeted(stranger) for stranger in strangers[6:])
        assert all(_ends(stranger) for stranger in strangers[:6])
        assert _served(port)
        for stranger in strangers:
            stranger.close()
    assert len([record for record in caplog.records if record.name == "ringtrain"]) <= 10


def _ends(sock: socket.socket) -> bool:
    while _received(sock):
        pass
    return True


def _greeted(sock: socket.socket) -> bool:
    return len(_received(sock)) > 0


def _served(port: int) -> bool:
    try:
        with our_client(port) as pull:
            return read(pull(asking(5)), [5]) == [payload(5, 0)]
    except StreamBroken:
        return False


def test_a_connection_that_was_closed_meanwhile_is_dialled_again() -> None:
    """One connection carries one Pull after another; one that the peer has let go of is replaced."""
    path = TransportDataPath(0, ["127.0.0.1:1", "127.0.0.1:2"], DEADLINE_S)

    def pulled() -> Http2Connection:
        stream = path.pull(1, asking(5), DEADLINE_S)
        assert read(stream, [5]) == [payload(5, 0)]
        return stream._connection

    try:
        with our_server(Sizes()) as port:
            path.dial(1, port, asking(refuse="hello"))
            first = pulled()
            assert pulled() is first
            first.channel.shut()
            second = pulled()
            assert second is not first
            assert pulled() is second
    finally:
        path.close(1.0)


def test_connections_that_rest_have_no_thread_of_their_own() -> None:
    """However many peers have pulled: soon one thread waits for all of them, and each can pull again, end,
    or be left over to a server that closes."""

    def serving() -> int:
        return sum(thread.name == "ringtrain-data" for thread in threading.enumerate())

    with our_server(Sizes()) as port, contextlib.ExitStack() as peers:
        pulls = [peers.enter_context(our_client(port)) for _ in range(4)]
        with our_client(port) as ending:
            for _ in range(2):
                for pull in (*pulls, ending):
                    assert read(pull(asking(5)), [5]) == [payload(5, 0)]
                until("all connections rest", lambda: serving() == 0)
        until("the end of one was seen", lambda: serving() == 0)
        with ThreadPoolExecutor(4) as pool:  # all at once
            assert list(pool.map(lambda pull: read(pull(asking(5)), [5]), pulls)) == [[payload(5, 0)]] * 4
        until("all connections rest again", lambda: serving() == 0)


def test_ranks_whose_data_ports_are_out_of_reach_use_the_ring_s(caplog: pytest.LogCaptureFixture) -> None:
    """A firewall that lets only the ring's port through costs speed and one line in each rank's log."""
    caplog.set_level(logging.INFO, "ringtrain")
    with world_of(3, "firewalled") as world:
        x = np.arange(1000, dtype=np.float32)
        for _ in range(2):
            for got in world.run(lambda rank: rt.allreduce(x, rt.Sum)):
                assert np.array_equal(got, 3 * x)
    lines = [record.getMessage() for record in caplog.records if "can't reach the data port" in record.getMessage()]
    assert sorted(line.split(" can't")[0] for line in lines) == ["rank 0", "rank 1", "rank 2"]


def test_ranks_with_and_without_a_data_port_meet() -> None:
    """RINGTRAIN_DATA_PATH is each rank's own."""
    with world_of(3, "mixed") as world:
        x = np.arange(100_000, dtype=np.float32)
        for got in world.run(lambda rank: rt.allreduce(x, rt.Sum)):
            assert np.array_equal(got, 3 * x)


def test_nothing_is_dialled_without_a_port() -> None:
    """A peer that told no data port is pulled from through the ring's."""
    path = TransportDataPath(0, free_addresses(2), DEADLINE_S)
    assert path.pull(1, asking(5), DEADLINE_S) is None
    path.close(1.0)
