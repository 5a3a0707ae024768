"""Time that a client waits for a server with many clients."""

import contextlib
import socket

import pytest
from support.deadlines import patient

from ringtrain.shared.rpc import RpcPeer, dial
from ringtrain.shared.secrets import Secrets

_DEADLINE_S = patient(30.0)


@pytest.mark.slow
def test_clients_of_a_large_job_do_not_dial_twice() -> None:
    """If thousands of clients wait, a client that gives up after a second would cost the server two handshakes."""
    with contextlib.ExitStack() as stack:
        small, large = (_silent_server(stack) for _ in range(2))
        for server, clients in ((small, 1), (large, 5000)):
            address = f"127.0.0.1:{server.getsockname()[1]}"
            channel = stack.enter_context(dial(address, Secrets(), RpcPeer("launcher", "uid-1"), clients))
            channel.unary_unary("/ringtrain.v1.Coordinator/Register").future(b"", wait_for_ready=True)
        stack.enter_context(large.accept()[0])
        for _ in range(3):
            stack.enter_context(small.accept()[0])
        large.settimeout(0.0)
        try:
            again, _ = large.accept()
        except BlockingIOError:
            return
        again.close()
        raise AssertionError("the client of many dialled again as soon as the client of one did")


def _silent_server(stack: contextlib.ExitStack) -> socket.socket:
    """Return a server that accepts connections and sends nothing."""
    server = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
    server.settimeout(_DEADLINE_S)
    return server
