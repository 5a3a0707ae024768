"""docs/security.md's table of ports has the limits that the code has."""

import re
from pathlib import Path

import pytest

from ringtrain._core.transport import data_server as data_port
from ringtrain._core.transport import data_serving
from ringtrain._core.transport import rpc_options as ring
from ringtrain._core.wire.messages import MOST_CONTROL_BYTES
from ringtrain._core.world import gathering
from ringtrain.data.service import server as data_worker
from ringtrain.shared import rpc, unauthenticated
from ringtrain_job.launcher import http
from ringtrain_page import server as page_server

PAGE = (Path(__file__).parents[2] / "docs/security.md").read_text()
CONTROL = dict(rpc.server_options(1, False))
DATA_WORKER = dict(rpc.server_options(vars(data_worker)["_MOST_RANKS"], False))
RING = dict(ring.server_options(60.0, 1))
PATIENCE = "grpc.server_handshake_timeout_ms"
CONNECTIONS = "grpc.max_allowed_incoming_connections"
KIB = 1 << 10


@pytest.mark.parametrize(
    ("sentence", "limits"),
    [
        pytest.param(
            r"7350 .* (\d+) s for the handshake, .*; (\d+) connections beyond the gang's",
            [CONTROL[PATIENCE] / 1000, CONTROL[CONNECTIONS] - 2],
            id="launcher",
        ),
        pytest.param(r"7370 .* ([\d,]+) connections\.", [DATA_WORKER[CONNECTIONS]], id="data-worker"),
        pytest.param(
            r"7351 .* (\d+) connections, each for (\d+) s and (\d+) KiB",
            [vars(http)[name] for name in ("_MOST_CONNECTIONS", "_CONNECTION_S")]
            + [vars(http)["_MOST_REQUEST_BYTES"] / KIB],
            id="status",
        ),
        pytest.param(r"at most (\d+) requests at once", [vars(page_server)["_MOST_AT_ONCE"]], id="page"),
        pytest.param(
            r"accepts (\d+) connections beyond two for each rank\. A handshake has (\d+) s, and an idle .* (\d+) s\.",
            [RING[CONNECTIONS] - 2, RING[PATIENCE] / 1000, RING["grpc.max_connection_idle_ms"] / 1000],
            id="ring-connections",
        ),
        pytest.param(
            r"serves (\d+) calls [^*,]*, (\d+) more [^*]*\. Each call has (\d+) s and a message of at most (\d+) KiB",
            [ring.MOST_CALLS, ring.MORE_CALLS, unauthenticated.UNAUTHENTICATED_S, MOST_CONTROL_BYTES / KIB],
            id="ring-calls",
        ),
        pytest.param(
            r"data port.* (\d+) connections, each for (\d+) s and with a request of (\d+) MiB",
            [
                unauthenticated.MOST_UNAUTHENTICATED,
                vars(data_port)["_UNAUTHENTICATED_S"],
                vars(data_serving)["_MOST_REQUEST_BYTES"] / KIB**2,
            ],
            id="data-port",
        ),
        pytest.param(
            r"at most (\d+) connections that have not shown a proof, each for (\d+) s and (\d+) KiB",
            [vars(gathering)[name] for name in ("_MOST_UNAUTHENTICATED", "_UNAUTHENTICATED_S")]
            + [vars(gathering)["_MOST_LINE_BYTES"] / KIB],
            id="master-port",
        ),
    ],
)
def test_the_page_has_the_limits_of_the_code(sentence: str, limits: list[float]) -> None:
    """Each number of a sentence is that of the server it is about."""
    found = re.search(sentence.replace(" ", r"\s"), PAGE)  # wherever its line is broken
    assert found is not None, sentence
    assert [float(number.replace(",", "")) for number in found.groups()] == limits
