"""Authentication of a job's peers by token, certificates, role and uid; all others are refused with an error."""

import logging
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import grpc
import pytest
from support.certificates import JobAuthority
from support.gang import DEADLINE_S, GangProcesses

from ringtrain.shared.address import own_address
from ringtrain.shared.data_members import DATA_SERVICE
from ringtrain.shared.environment import EnvironmentVariables
from ringtrain.shared.gen import coordinator_pb2 as pb
from ringtrain.shared.rpc import ControlServer, RpcPeer, add_service, dial, serve, stub_of
from ringtrain.shared.secrets import Secrets, load_secrets
from ringtrain_job.control.async_server import AsyncServer
from ringtrain_job.control.wire import COORDINATOR

UID = "uid-1"
WORKERS, LAUNCHER = RpcPeer("worker", UID), RpcPeer("launcher", UID)


class Answer:
    """A coordinator that only says yes."""

    def Register(self, request: Any, context: Any) -> Any:
        return pb.RegisterReply(accepted=True)

    def Sync(self, request: Any, context: Any) -> Any:
        return pb.SyncReply(known=True)

    def Append(self, request: Any, context: Any) -> Any:
        return pb.AppendReply()

    def Orders(self, request: Any, context: Any) -> Any:
        return iter(())


class LaterAnswer:
    """The same in coroutines."""

    def __getattr__(self, name: str) -> Any:
        async def answer(request: Any, context: Any) -> Any:
            return None if name == "Orders" else getattr(Answer(), name)(request, context)

        return answer


@dataclass(frozen=True)
class Job:
    authority: JobAuthority
    directory: Path
    launcher: Secrets
    worker: Secrets


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> Job:
    """A job's secrets."""
    directory = tmp_path_factory.mktemp("secrets")
    authority = JobAuthority(UID)
    launcher, worker = (_load(authority.secret_dir(directory / role, role)) for role in ("launcher", "worker"))
    return Job(authority, directory, launcher, worker)


@pytest.fixture(scope="module", params=["threads", "coroutines"])
def kind(request: pytest.FixtureRequest) -> str:
    """Return the kind of server: threads or coroutines."""
    return str(request.param)


@pytest.fixture(scope="module")
def port(job: Job, kind: str) -> Iterator[int]:
    """A coordinator with the job's certificates and token."""
    server = _serve(job.launcher, kind)
    yield server.port
    server.close(0)


def test_the_jobs_own_worker_is_heard(job: Job, port: int) -> None:
    """The right certificate and token are let in, on unary calls and streams."""
    with dial(f"127.0.0.1:{port}", job.worker, LAUNCHER) as channel:
        stub = stub_of(channel, COORDINATOR)
        assert stub.Register(pb.RegisterRequest(), timeout=DEADLINE_S, wait_for_ready=True).accepted
        assert list(stub.Orders(pb.OrdersRequest(), timeout=DEADLINE_S)) == []


@pytest.mark.parametrize(
    ("change", "code", "words"),
    [
        pytest.param(lambda job: replace(job.worker, token=""), "PERMISSION_DENIED", "token", id="no-token"),
        pytest.param(lambda job: replace(job.worker, token="x"), "PERMISSION_DENIED", "token", id="wrong-token"),
        pytest.param(
            lambda job: _load(job.authority.secret_dir(_fresh(job), "worker", uid="uid-2")),
            "PERMISSION_DENIED", "worker.uid-2.ringtrain, expected worker.uid-1.ringtrain", id="other-job",
        ),
        pytest.param(
            lambda job: job.launcher,
            "PERMISSION_DENIED", "launcher.uid-1.ringtrain, expected worker.uid-1.ringtrain", id="other-role",
        ),
        pytest.param(
            lambda job: _load(JobAuthority(UID).secret_dir(_fresh(job), "worker")),
            "UNAVAILABLE", "", id="other-authority",
        ),
        pytest.param(lambda job: Secrets(None, "token-1"), "UNAVAILABLE", "", id="no-certificate"),
    ],
)  # fmt: skip
def test_strangers_are_refused_and_logged(
    job: Job, port: int, change: Callable[[Job], Secrets], code: str, words: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Each with its own reason."""
    with (
        caplog.at_level(logging.WARNING),
        dial(f"127.0.0.1:{port}", change(job), LAUNCHER) as channel,
        pytest.raises(grpc.RpcError) as refused,
    ):
        stub_of(channel, COORDINATOR).Register(pb.RegisterRequest(), timeout=DEADLINE_S)
    assert refused.value.code().name == code
    assert words in refused.value.details()
    if code == "PERMISSION_DENIED":
        assert words in caplog.text


def test_a_data_worker_is_heard_as_one_alone(job: Job) -> None:
    """Its certificate calls the service of data workers and no other; a worker's does not call that one."""
    data = _load(job.authority.secret_dir(job.directory / "data", "data"))

    class Announced:
        async def Announce(self, request: Any, context: Any) -> Any:
            return pb.AnnounceReply(accepted=True)

    services = [(COORDINATOR, LaterAnswer()), (DATA_SERVICE, Announced())]
    others = {DATA_SERVICE.full_name: RpcPeer("data", UID)}
    server = AsyncServer.start(0, job.launcher, WORKERS, clients=4, services=services, others=others)
    refused = []
    with dial(f"127.0.0.1:{server.port}", data, LAUNCHER) as channel:
        stub = stub_of(channel, DATA_SERVICE)
        assert stub.Announce(pb.DataWorker(), timeout=DEADLINE_S, wait_for_ready=True).accepted
        with pytest.raises(grpc.RpcError) as error:
            stub_of(channel, COORDINATOR).Register(pb.RegisterRequest(), timeout=DEADLINE_S)
        refused.append(error.value.details())
    with dial(f"127.0.0.1:{server.port}", job.worker, LAUNCHER) as channel:
        with pytest.raises(grpc.RpcError) as error:
            stub_of(channel, DATA_SERVICE).Announce(pb.DataWorker(), timeout=DEADLINE_S)
        refused.append(error.value.details())
    server.close(0)
    assert "data.uid-1.ringtrain, expected worker.uid-1.ringtrain" in refused[0]
    assert "worker.uid-1.ringtrain, expected data.uid-1.ringtrain" in refused[1]


@pytest.mark.parametrize(
    "peer", [RpcPeer("launcher", "uid-2"), RpcPeer("worker", UID)], ids=["other-job", "other-role"]
)
def test_a_false_launcher_is_not_spoken_to(job: Job, port: int, peer: RpcPeer) -> None:
    """An agent that expects another role or job than the server's certificate says ends the handshake."""
    with dial(f"127.0.0.1:{port}", job.worker, peer) as channel, pytest.raises(grpc.RpcError) as refused:
        stub_of(channel, COORDINATOR).Register(pb.RegisterRequest(), timeout=DEADLINE_S)
    assert refused.value.code() is grpc.StatusCode.UNAVAILABLE


def test_without_certificates_only_loopback(job: Job, kind: str) -> None:
    """A server without certificates is not there on any other address of this host."""
    address = own_address("192.0.2.1:9")
    if address.startswith("127."):
        pytest.skip("this host has no address but loopback")
    server = _serve(Secrets(), kind)
    with dial(f"{address}:{server.port}", Secrets(), LAUNCHER) as channel, pytest.raises(grpc.RpcError) as refused:
        stub_of(channel, COORDINATOR).Register(pb.RegisterRequest(), timeout=DEADLINE_S)
    assert refused.value.code() is grpc.StatusCode.UNAVAILABLE
    server.close(0)


def test_servers_and_channels_leave_no_thread(kind: str) -> None:
    """Closed means closed."""
    before = set(threading.enumerate())
    server = _serve(Secrets(), kind)
    with dial(f"127.0.0.1:{server.port}", Secrets(), LAUNCHER) as channel:
        stub_of(channel, COORDINATOR).Sync(pb.SyncRequest(), timeout=DEADLINE_S)
    server.close(0)
    for thread in set(threading.enumerate()) - before:
        thread.join(DEADLINE_S)
        assert not thread.is_alive()


def test_a_gang_with_certificates(gang: Callable[..., GangProcesses], job: Job) -> None:
    """A whole attempt over mTLS; an agent with another token ends with 64; ranks get the token's file."""
    wrong = job.authority.secret_dir(job.directory / "wrong-token", "worker", token="guess")
    processes = gang(1, 1)
    launcher = processes.launcher(RINGTRAIN_SECRET_DIR=str(job.directory / "launcher"))
    stranger = processes.agent(0, "true", name="stranger", RINGTRAIN_SECRET_DIR=str(wrong))
    assert stranger.wait() == 64
    assert "the job's token is missing or wrong" in stranger.message()["failure"]["message"]
    secret_dir = str(job.directory / "worker")
    agent = processes.agent(0, "sh", "-c", "echo $RINGTRAIN_TOKEN_FILE", RINGTRAIN_SECRET_DIR=secret_dir)
    assert [launcher.wait(), agent.wait()] == [0, 0]
    assert processes.rank_log(0).decode() == f"{secret_dir}/token\n"
    assert "refused a call" in launcher.err()


def _fresh(job: Job) -> Path:
    return job.directory / f"stranger-{len(list(job.directory.iterdir()))}"


def _load(directory: Path) -> Secrets:
    return load_secrets(EnvironmentVariables({"RINGTRAIN_SECRET_DIR": str(directory)}))


def _serve(secrets: Secrets, kind: str) -> ControlServer | AsyncServer:
    if kind == "threads":
        return serve(0, secrets, WORKERS, threads=4, register=lambda server: add_service(server, COORDINATOR, Answer()))
    return AsyncServer.start(0, secrets, WORKERS, clients=4, services=[(COORDINATOR, LaterAnswer())])
