"""Requests of `dtj local` to a launcher that may end at any moment."""

import socket
import threading
from types import SimpleNamespace

import pytest

from ringtrain_client.local.cluster import LocalCluster

HEAD = b"HTTP/1.1 200 OK\r\nContent-Length: 853\r\n\r\n"


@pytest.mark.parametrize("answer", [b"", HEAD, HEAD + b'{"state":'], ids=["nothing", "no-body", "half-a-body"])
def test_a_launcher_that_ends_in_the_middle_of_its_answer(answer):
    """There is no report, but a reason, and the job continues."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(60)

        def answer_and_end() -> None:
            connection, _ = server.accept()
            with connection:
                connection.recv(4096)
                connection.sendall(answer)

        thread = threading.Thread(target=answer_and_end)
        thread.start()
        url = f"http://127.0.0.1:{server.getsockname()[1]}/status"
        cluster = LocalCluster({"status": {}}, SimpleNamespace(status_url=url, pods=list))
        report, reason = cluster._read_launcher_report()
        thread.join(60)
    assert report is None
    assert url in reason
