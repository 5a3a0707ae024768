"""The launcher's HTTP port: its content, and its limits on slow clients."""

import contextlib
import json
import os
import re
import socket
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from http.client import HTTPConnection
from typing import Any

import pytest
from support.asking import ask
from support.deadlines import patient

from ringtrain.shared.ports import PortTaken
from ringtrain_job.launcher import http
from ringtrain_job.launcher.console import Console
from ringtrain_job.launcher.http import StatusServer
from ringtrain_job.launcher.sites import WorkerSites

STATUS: dict[str, Any] = {
    "namespace": "team",
    "job": "digits",
    "phase": "Running",
    "worldSize": 2,
    "attempt": 3,
    "workers": [{"registered": True}, {"registered": False}],
    "ranks": [
        {"rank": 0, "state": "Running", "step": 7, "lag": 0.5, "inputWait": 0.25, "stepTime": {"reduction": 0.5}},
        {"rank": 1, "state": "Waiting", "step": None, "lag": 0.0},
    ],
    "progress": {"step": 7, "samples": 70.0, "totalSteps": None, "samplesPerSecond": 12.5, "loss": float("nan")},
    "stepTime": {"input": 0.25, "compute": 0.5},
    "longestWork": {"rank": 1, "seconds": 0.5, "part": 0.125},
    "lastProgressTime": 5.0,
    "logs": {"lines": 10, "dropped": 2},
}
BRIEF: dict[str, Any] = {"worldSize": 2, "attempt": 4}


@pytest.fixture
def server() -> Iterator[tuple[StatusServer, list[bool]]]:
    """Return a status server, and the flag that makes it healthy."""
    health = [True]
    server = StatusServer(0, lambda: STATUS, lambda: BRIEF, lambda: health[0], everywhere=False)
    yield server, health
    server.close()


def _get(server: StatusServer, path: str, authorization: str = "") -> tuple[int, str]:
    headers = {"Authorization": authorization} if authorization else {}
    return ask(f"http://127.0.0.1:{server.port}{path}", **headers)


def test_status_is_strict_json(server: tuple[StatusServer, list[bool]]) -> None:
    """NaN, which JSON does not have, is null."""
    code, body = _get(server[0], "/status?pretty")
    assert code == 200
    assert json.loads(body)["progress"] == {**STATUS["progress"], "loss": None}
    assert "NaN" not in body


@pytest.mark.parametrize(
    ("query", "attempt"),
    [("", 3), ("?brief", 4), ("?pretty&brief", 4), ("?briefly", 3), ("?pretty", 3)],
    ids=["none", "brief", "second", "another-word", "other"],
)
def test_the_brief_answer_is_for_who_asks_for_it(
    server: tuple[StatusServer, list[bool]], query: str, attempt: int
) -> None:
    """Everyone else gets the whole one."""
    code, body = _get(server[0], f"/status{query}")
    assert (code, json.loads(body)["attempt"]) == (200, attempt)


def test_metrics(server: tuple[StatusServer, list[bool]]) -> None:
    """The same figures for Prometheus, each with the job's namespace and name."""
    body = _get(server[0], "/metrics")[1].splitlines()
    of_job = 'job_name="digits",job_namespace="team"'
    plain = {
        "world_size": 2.0, "attempt": 3.0, "workers_registered": 1.0, "log_lines_total": 10.0, "step": 7.0,
        "log_lines_dropped_total": 2.0, "samples_per_second": 12.5, "total_steps": "NaN", "samples_total": 70.0,
        "lag_seconds": 0.5, "straggler_ratio": 0.125,
    }  # fmt: skip
    labelled = [
        f'ringtrain_ranks{{{of_job},state="Running"}} 1.0', f'ringtrain_ranks{{{of_job},state="Failed"}} 0.0',
        f'ringtrain_phase{{{of_job},phase="Running"}} 1.0', f'ringtrain_phase{{{of_job},phase="Failed"}} 0.0',
        f'ringtrain_rank_step{{{of_job},rank="0"}} 7.0', f'ringtrain_rank_lag_seconds{{{of_job},rank="1"}} 0.0',
        f'ringtrain_rank_input_wait_ratio{{{of_job},rank="0"}} 0.25',
        f'ringtrain_step_time_seconds{{{of_job},part="compute"}} 0.5',
        f'ringtrain_rank_step_time_seconds{{{of_job},part="reduction",rank="0"}} 0.5',
    ]  # fmt: skip
    expected = [*(f"ringtrain_{name}{{{of_job}}} {value}" for name, value in plain.items()), *labelled]
    assert [line for line in expected if line not in body] == []


@contextlib.contextmanager
def serving(status: dict[str, Any] = STATUS, **options: Any) -> Iterator[StatusServer]:
    """A server on loopback that answers with this status."""
    with contextlib.closing(
        StatusServer(0, lambda: status, lambda: BRIEF, lambda: True, everywhere=False, **options)
    ) as server:
        yield server


def test_metrics_of_many_ranks() -> None:
    """Beyond 64 ranks no series of a single rank, and 64 of what training code reports; the largest lag stays."""
    own = {"progress": {"metrics": {f"m{n}": n for n in range(100)}}}
    ranks = [
        {"rank": n, "state": "Running", "step": 1, "lag": n / 10, "inputWait": 0.1, "stepTime": {"compute": 1.0}}
        for n in range(65)
    ]
    with serving({**STATUS, **own, "ranks": ranks}) as server:
        body = _get(server, "/metrics")[1]
    assert "rank=" not in body
    assert re.search(r"^ringtrain_lag_seconds{.*} 6.4$", body, re.MULTILINE)
    assert re.search(r'^ringtrain_reported_value{.*metric="m63"} 63.0$', body, re.MULTILINE)
    assert "m64" not in body


def test_health(server: tuple[StatusServer, list[bool]]) -> None:
    """The status is 200 while the loops run, otherwise 503; other paths return a list of the existing ones."""
    assert _get(server[0], "/healthz") == (200, "ok\n")
    server[1][0] = False
    assert _get(server[0], "/healthz") == (503, "stalled\n")
    assert _get(server[0], "/")[0] == 404


@pytest.mark.parametrize(
    ("shown", "code"),
    [
        pytest.param("Bearer operators", 200, id="operators"),
        pytest.param("bearer jobs", 200, id="jobs"),
        pytest.param("", 401, id="none"),
        pytest.param("Bearer", 401, id="empty"),
        pytest.param("Bearer operator", 401, id="prefix"),
        pytest.param("Basic operators", 401, id="another-scheme"),
        pytest.param("Bearer \xe9", 401, id="not-ascii"),
    ],
)
def test_status_is_for_who_shows_a_token(shown: str, code: int) -> None:
    """The status contains lines of the log and requires a token; metrics and health do not."""
    with serving(tokens=("operators", "jobs")) as server:
        for path in ("/status", "/status?brief"):
            answer = _get(server, path, shown)
            assert (answer[0], "worldSize" in answer[1]) == (code, code == 200)
        assert _get(server, "/metrics", shown)[0] == 200
        assert _get(server, "/healthz", shown)[0] == 200


@pytest.mark.parametrize(
    ("host", "code"),
    [
        ("127.0.0.1", 200),
        ("localhost:7351", 200),
        ("LOCALHOST", 200),
        ("[::1]:7351", 200),
        ("evil.example", 421),
        ("evil.example:7351", 421),
        ("127.0.0.1.evil.example", 421),
    ],
)
@pytest.mark.parametrize("method", ["GET", "PUT"])
def test_a_page_of_another_name_gets_nothing(
    server: tuple[StatusServer, list[bool]], host: str, code: int, method: str
) -> None:
    """A browser that reached this address through another host's name sends that name."""
    connection = HTTPConnection("127.0.0.1", server[0].port, timeout=60)
    with contextlib.closing(connection):
        connection.request(method, "/status" if method == "GET" else "/workers", headers={"Host": host})
        got = connection.getresponse().status
    assert got == (code if method == "GET" or code == 421 else 409)


def test_what_ranks_wrote_is_for_who_shows_a_token() -> None:
    """On loopback without tokens, other users of the machine may read numbers but no lines."""
    said = {"worldSize": 2, "failure": {"logTail": ["password: 1234"], "message": "rank 1 exited with 1"}}
    for tokens in ((), ("jobs",)):
        with serving(said, tokens=tokens, change_tokens=("jobs",)) as server:
            body = _get(server, "/status", "Bearer jobs" if tokens else "")[1]
            put = urllib.request.Request(f"http://127.0.0.1:{server.port}/workers", b"{}", method="PUT")
            with pytest.raises(urllib.error.HTTPError, match="401"):
                urllib.request.urlopen(put, timeout=patient(60))
        assert ("1234" in body) == bool(tokens)
        assert "rank 1 exited with 1" in body


def test_a_port_that_is_taken(server: tuple[StatusServer, list[bool]]) -> None:
    """The error names it."""
    with pytest.raises(PortTaken, match=f"the status port {server[0].port} is not available"):
        StatusServer(server[0].port, lambda: STATUS, lambda: BRIEF, lambda: True, everywhere=False)


def test_a_reader_that_does_not_read() -> None:
    """Showing never blocks; what was left out is counted; everything shown is in order."""
    read, write = os.pipe()
    console = Console(write, bound=300_000)
    for number in range(100):
        console.show(b"%d %s\n" % (number, b"x" * 10_000))
    shown: list[bytes] = []

    def read_all() -> None:
        with os.fdopen(read, "rb") as lines:
            shown.extend(lines)

    reader = threading.Thread(target=read_all)
    reader.start()
    console.close(60)
    os.close(write)
    reader.join(60)
    notices = [line for line in shown if line.startswith(b"[ringtrain]")]
    numbers = [int(line.split()[0]) for line in shown if line not in notices]
    left_out = sum(int(notice.split()[1]) for notice in notices)
    assert left_out > 0
    assert numbers == sorted(numbers)
    assert len(numbers) + left_out == 100


def test_a_reader_that_is_gone() -> None:
    """A broken pipe ends nothing, and leaves nothing open."""
    before = len(os.listdir("/proc/self/fd"))
    read, write = os.pipe()
    os.close(read)
    console = Console(write)
    console.show(b"nobody hears\n")
    console.close(60)
    os.close(write)
    assert len(os.listdir("/proc/self/fd")) == before


def test_connections_that_say_nothing_do_not_pile_up(server: tuple[StatusServer, list[bool]]) -> None:
    """Each connection has a thread; one too many closes the oldest, and a new request is answered at once."""
    before = threading.active_count()
    silent = [socket.create_connection(("127.0.0.1", server[0].port), 60) for _ in range(200)]
    try:
        assert _get(server[0], "/healthz") == (200, "ok\n")
        assert silent[0].recv(1) == b""
        while threading.active_count() - before > 70:  # those that have just been ended
            assert _get(server[0], "/healthz") == (200, "ok\n")
    finally:
        for sock in silent:
            sock.close()


def test_an_endless_request_is_cut(server: tuple[StatusServer, list[bool]]) -> None:
    """More than a request can need is not read."""
    with socket.create_connection(("127.0.0.1", server[0].port), 60) as endless:
        endless.sendall(b"GET /healthz HTTP/1.0\r\n")
        with contextlib.suppress(ConnectionError):
            for number in range(1000):
                endless.sendall(b"x-%d: %s\r\n" % (number, b"y" * 1000))
        with contextlib.suppress(ConnectionError):
            while endless.recv(4096):
                pass
    assert _get(server[0], "/healthz") == (200, "ok\n")


@pytest.mark.slow
def test_a_client_that_takes_its_time_gets_all(monkeypatch: pytest.MonkeyPatch) -> None:
    """The time for an answer is that for each part of it which the client takes, however long the whole lasts."""
    silence_s = 2.0
    monkeypatch.setattr(http, "_SILENCE_S", silence_s)
    text = "x" * (32 << 20)
    with serving({"text": text}) as server, socket.socket() as slow:
        slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 64 << 10)
        slow.settimeout(60)
        slow.connect(("127.0.0.1", server.port))
        slow.sendall(b"GET /status HTTP/1.0\r\n\r\n")
        begun, taken = time.monotonic(), 0
        while part := slow.recv(64 << 10):
            taken += len(part)
            # As a line of so many bytes a second would have it: twice the time that a part may take.
            time.sleep(max(0.0, begun + 2 * silence_s * taken / len(text) - time.monotonic()))
        assert taken > len(text)


def _put(server: StatusServer, body: object, token: str = "t", path: str = "/pods") -> tuple[int, str]:
    url = f"http://127.0.0.1:{server.port}{path}"
    return ask(url, json.dumps(body).encode(), "PUT", Authorization=f"Bearer {token}")


def test_what_became_of_pods_is_put() -> None:
    """The request needs the token; it is refused as a whole if one entry is invalid, and texts are truncated."""
    heard: list[Any] = []
    event = {"time": 5.5, "kind": "Scheduled", "text": "all pods have a node"}
    with serving(tokens=("t",), on_pods=lambda events, about: heard.append((events, about))) as server:
        assert _put(server, {"events": [event]}, token="other")[0] == 401
        assert _put(server, {"events": [event], "imageID": "i@sha256:1", "more": 1}) == (204, "")
        assert heard == [([event], {"imageID": "i@sha256:1"})]
        wrong = [
            [],
            {"events": [{**event, "time": "now"}]},
            {"events": [{**event, "time": True}]},
            {"events": [{**event, "kind": ["list"]}]},
            {"events": [{"time": 1}]},
            {"events": [event], "image": 7},
        ]
        for body in wrong:
            code, text = _put(server, body)
            assert code == 422, body
            assert "expected" in text
        assert len(heard) == 1
        assert _put(server, {"events": [{**event, "text": "x" * 5000}]})[0] == 204
        assert len(heard[1][0][0]["text"]) == 1000


def test_sites_of_workers_are_put() -> None:
    """The request needs the token; it is refused as a whole if it names no workers."""
    heard = WorkerSites({}, awaits_nodes=True)
    with serving(tokens=("t",), on_sites=heard.hear) as server:
        sites = {"sites": {"zone-a": [0, 2], "": [1]}, "nodes": {"n-1": "zone-a", "n-2": ""}}
        assert _put(server, sites, token="other", path="/sites")[0] == 401
        nodes = [{**sites, "nodes": wrong} for wrong in (3, ["n"], {"n": 1})]
        for body in ([], {"sites": {}}, *({"sites": {"a": one}} for one in (1, ["b"], [[1]])), *nodes):
            code, text = _put(server, body, path="/sites")
            assert code == 422, body
            assert "expected" in text
        assert not heard.by_index
        assert _put(server, sites, path="/sites") == (204, "")
        assert heard.by_index == {0: "zone-a", 2: "zone-a", 1: ""}
        assert [heard.of(7, node) for node in ("n-1", "n-2", "n-3")] == ["zone-a", "", ""]
