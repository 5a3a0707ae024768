"""Options of gRPC channels and servers."""

from typing import Final

from ringtrain._core.wire.messages import MOST_CONTROL_BYTES

# Concurrent calls without a session: each has a thread, and a message of at most 64 KiB. Ranks in the handshake have no
# session yet: in a world of twice the size each has two more partners, each with two calls.
MOST_CALLS: Final = 16
MORE_CALLS: Final = 4
_UNLIMITED = -1
# Concurrent connections. A peer has one.
_MOST_CONNECTIONS = 256
_HANDSHAKE_MS = 10_000
# A connection without a request for this long is not a peer's: a watching peer has an open request, and any other
# closes its connection earlier, within twice its own time, and reopens it for its next request. With one common time
# that request could reach a server that is closing, and its rank be considered lost.
_IDLE_MS = 30_000
_CLIENT_IDLE_MS = 5_000
# Options of gRPC, all derived from the one timeout.
Options = list[tuple[str, int]]


def grpc_channel_options(timeout_s: float) -> Options:
    """Return the gRPC options of a channel to another rank."""
    return [
        *_common_channel_options(timeout_s),
        ("grpc.max_receive_message_length", _UNLIMITED),
        ("grpc.use_local_subchannel_pool", 1),
        # Ranks of one job start within seconds of each other: gRPC's own backoff would add at least a second.
        ("grpc.initial_reconnect_backoff_ms", 50),
        # Limit of a connection attempt (a refused one ends at once): the same as for a ping. A rank on a busy host
        # accepts late, and a peer that the first attempt does not reach is considered lost.
        ("grpc.min_reconnect_backoff_ms", _silent_ms(timeout_s)),
        ("grpc.max_reconnect_backoff_ms", 500),
        ("grpc.enable_retries", 0),
        ("grpc.client_idle_timeout_ms", _CLIENT_IDLE_MS),
        ("grpc.enable_http_proxy", 0),  # a proxy meant for the internet must not see the ring
    ]


def server_options(timeout_s: float, size: int) -> Options:
    """Return the gRPC options of a rank's server in a world of `size` ranks."""
    return [
        *_common_channel_options(timeout_s),
        ("grpc.max_receive_message_length", MOST_CONTROL_BYTES),
        ("grpc.max_allowed_incoming_connections", _MOST_CONNECTIONS + 2 * size),
        ("grpc.server_handshake_timeout_ms", _HANDSHAKE_MS),
        ("grpc.max_connection_idle_ms", _IDLE_MS),
        ("grpc.so_reuseport", 0),  # otherwise a second task with the same address would share it silently
        ("grpc.http2.min_ping_interval_without_data_ms", 1),
        ("grpc.http2.max_ping_strikes", 0),
    ]


def _common_channel_options(timeout_s: float) -> Options:
    return [
        ("grpc.max_send_message_length", _UNLIMITED),
        # A stopped process or a cut network is noticed after at most half of the timeout. Pings are answered by
        # gRPC's own threads, so that a rank that computes without releasing the GIL is not considered lost.
        ("grpc.keepalive_time_ms", max(1, int(timeout_s * 1000 / 6))),
        ("grpc.keepalive_timeout_ms", _silent_ms(timeout_s)),
        # The actual timer of a keepalive ping in current gRPC; default 60 s.
        ("grpc.http2.ping_timeout_ms", _silent_ms(timeout_s)),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.max_pings_without_data", 0),
    ]


def _silent_ms(timeout_s: float) -> int:
    """Return after how many milliseconds of silence a gRPC connection to a peer counts as broken."""
    return max(50, int(timeout_s * 1000 / 3))
