"""gRPC's channel and server options, all derived from the one timeout."""

from ringtrain._core.wire.messages import MOST_CONTROL_BYTES

_UNLIMITED = -1
# Connections at a time. A peer has one.
_MOST_CONNECTIONS = 256
_HANDSHAKE_MS = 10_000
# Who asks nothing for so long is no peer: one that watches this rank has a question open, and any other one closes
# its connection before, within twice its time, and opens it again for its next question. With one time for both
# that question could meet a server that is closing, and its rank be lost.
_IDLE_MS = 30_000
_CLIENT_IDLE_MS = 5_000

Options = list[tuple[str, int]]


def channel_options(timeout_s: float) -> Options:
    """Options of the channel to one peer."""
    return [
        *_common(timeout_s),
        ("grpc.max_receive_message_length", _UNLIMITED),
        ("grpc.use_local_subchannel_pool", 1),
        # Ranks of one job come up within seconds of each other: gRPC's own backoff would add a second or more.
        ("grpc.initial_reconnect_backoff_ms", 50),
        # How long an attempt may take (one that is refused ends at once): as long as a ping. A rank on a busy host
        # accepts late, and whom a question can't reach with its first attempt is taken for lost.
        ("grpc.min_reconnect_backoff_ms", _silent_ms(timeout_s)),
        ("grpc.max_reconnect_backoff_ms", 500),
        ("grpc.enable_retries", 0),
        ("grpc.client_idle_timeout_ms", _CLIENT_IDLE_MS),
        ("grpc.enable_http_proxy", 0),  # a proxy meant for the internet must not see the ring
    ]


def server_options(timeout_s: float, size: int) -> Options:
    """Options of the server of one rank of `size`."""
    return [
        *_common(timeout_s),
        ("grpc.max_receive_message_length", MOST_CONTROL_BYTES),
        ("grpc.max_allowed_incoming_connections", _MOST_CONNECTIONS + 2 * size),
        ("grpc.server_handshake_timeout_ms", _HANDSHAKE_MS),
        ("grpc.max_connection_idle_ms", _IDLE_MS),
        ("grpc.so_reuseport", 0),  # otherwise a second task with the same address would share it silently
        ("grpc.http2.min_ping_interval_without_data_ms", 1),
        ("grpc.http2.max_ping_strikes", 0),
    ]


def _common(timeout_s: float) -> Options:
    return [
        ("grpc.max_send_message_length", _UNLIMITED),
        # A stopped process or a cut network is noticed after at most half of the timeout: pings are answered by
        # gRPC's own threads, so that a rank that computes without releasing the interpreter is not taken for lost.
        ("grpc.keepalive_time_ms", max(1, int(timeout_s * 1000 / 6))),
        ("grpc.keepalive_timeout_ms", _silent_ms(timeout_s)),
        # What the timer of a keepalive ping really goes by in current gRPC; 60 s unless it is set.
        ("grpc.http2.ping_timeout_ms", _silent_ms(timeout_s)),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.max_pings_without_data", 0),
    ]


def _silent_ms(timeout_s: float) -> int:
    """How long a peer's gRPC may keep silent before the connection to it counts as broken."""
    return max(50, int(timeout_s * 1000 / 3))
