"""Only the job's own launcher can make an agent start a daemon, with a message for this one call."""

import logging
import queue
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import grpc
import pytest
from mpi_jobs import write_secrets
from support.deadlines import patient

from ringtrain.shared.authentication import MpiDaemonClaim, prove
from ringtrain.shared.environment import EnvironmentVariables
from ringtrain.shared.gen import daemons_pb2 as pb
from ringtrain.shared.rpc import RpcPeer, add_service, dial, serve, stub_of
from ringtrain.shared.secrets import Secrets, load_secrets
from ringtrain_job.control.model import JobIdentity
from ringtrain_mpi.agent.children import ChildStreams, MpiDaemonChild
from ringtrain_mpi.agent.daemons import DAEMONS, Deadlines, MpiDaemonContext, MpiDaemonService
from ringtrain_mpi.launcher.remote import DaemonNotStarted, MpirunDaemonOutput, MpirunRemoteDaemon

DEADLINE_S = patient(60.0)
JOB = JobIdentity("job", "default", "uid-1", attempt=3)
CLAIM = MpiDaemonClaim("uid-1", 3, "echo started; exit 7")


@dataclass
class Spawned:
    """Starts processes and remembers what it has started."""

    commands: list[str] = field(default_factory=list)

    def spawn(self, command: Sequence[str], environment: Mapping[str, str], streams: ChildStreams) -> MpiDaemonChild:
        self.commands.append(command[-1])
        files = {"stdin": streams.stdin, "stdout": streams.stdout, "stderr": streams.stderr}
        process = subprocess.Popen(command, env=dict(environment), start_new_session=True, **files)  # type: ignore[call-overload]
        exit: Future[int] = Future()
        exit.set_result(process.wait(DEADLINE_S))
        return MpiDaemonChild(process.pid, exit)


@dataclass(frozen=True)
class Agent:
    """The service of worker uid-1, with what it started."""

    port: int
    spawned: Spawned
    secrets: dict[str, Path]

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def launcher(self) -> Secrets:
        return load(self.secrets["launcher"])


def load(directory: Path) -> Secrets:
    return load_secrets(EnvironmentVariables({"RINGTRAIN_SECRET_DIR": str(directory)}))


@pytest.fixture
def agent(tmp_path: Path) -> Iterator[Agent]:
    places = write_secrets(tmp_path, "uid-1")
    secrets, spawned = load(places["worker"]), Spawned()
    context = MpiDaemonContext(spawned, lambda _: {"PATH": "/usr/bin:/bin"})
    service = MpiDaemonService(JOB, secrets.token, context, Deadlines(start_s=DEADLINE_S, grace_s=1.0))
    server = serve(
        0,
        secrets,
        RpcPeer("launcher", "uid-1"),
        threads=4,
        register=lambda server: add_service(server, DAEMONS, service),
    )
    yield Agent(server.port, spawned, places)
    server.close(0)


def ask(secrets: Secrets, agent: Agent, claim: MpiDaemonClaim = CLAIM) -> tuple[int, bytes]:
    """(exit code, stdout) of what an honest client with `secrets` gets. Raises DaemonNotStarted."""
    out: list[bytes] = []
    with dial(agent.address, secrets, RpcPeer("worker", "uid-1")) as channel:
        daemon = MpirunRemoteDaemon(channel, secrets.token, claim, DEADLINE_S)
        return daemon.run(MpirunDaemonOutput(out.append, out.append)), b"".join(out)


def converse(agent: Agent, answer: Callable[[bytes], Any]) -> list[Any]:
    """Replies to a client that has the launcher's certificate and answers the nonce with `answer(nonce)`."""
    secrets = agent.launcher()
    requests: queue.Queue[Any] = queue.Queue()
    with dial(agent.address, secrets, RpcPeer("worker", "uid-1")) as channel:
        metadata = (("ringtrain-token", secrets.token),)
        call = stub_of(channel, DAEMONS).Run(iter(requests.get, None), metadata=metadata, timeout=DEADLINE_S)
        replies = [next(call)]
        requests.put(answer(replies[0].nonce))
        try:
            replies.extend(call)
        finally:
            requests.put(None)
        return replies


def start(token: str, nonce: bytes, claim: MpiDaemonClaim = CLAIM) -> Any:
    proof = prove(token, nonce, claim)
    message = pb.Start(job_uid=claim.job_uid, attempt=claim.attempt, command=claim.command, proof=proof)
    return pb.RunRequest(start=message)


def test_the_jobs_own_launcher_is_served(agent: Agent) -> None:
    """The command runs, and its output and exit code are returned."""
    assert ask(agent.launcher(), agent) == (7, b"started\n")
    assert agent.spawned.commands == [CLAIM.command]


def test_a_client_without_certificate_starts_nothing(agent: Agent, capfd: pytest.CaptureFixture[str]) -> None:
    tls = agent.launcher().tls
    named = (("grpc.ssl_target_name_override", "worker.uid-1.ringtrain"),)
    with grpc.secure_channel(agent.address, grpc.ssl_channel_credentials(tls.ca), options=named) as channel:
        call = stub_of(channel, DAEMONS).Run(iter(()), timeout=DEADLINE_S)
        with pytest.raises(grpc.RpcError):
            next(call)
    assert agent.spawned.commands == []
    assert "PEER_DID_NOT_RETURN_A_CERTIFICATE" in capfd.readouterr().err


def test_another_jobs_certificate_starts_nothing(
    agent: Agent, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """It is refused even if its owner knows this job's CA and token, for example from stolen files of the worker."""
    theirs, ours = load(write_secrets(tmp_path, "uid-2")["launcher"]), agent.launcher()
    assert theirs.tls is not None
    mixed = replace(ours, tls=replace(theirs.tls, ca=ours.tls.ca))
    with dial(agent.address, mixed, RpcPeer("worker", "uid-1")) as channel:
        call = stub_of(channel, DAEMONS).Run(iter(()), timeout=DEADLINE_S)
        with pytest.raises(grpc.RpcError):
            next(call)
    assert agent.spawned.commands == []
    assert "CERTIFICATE_VERIFY_FAILED" in capfd.readouterr().err


def test_a_workers_certificate_starts_nothing(agent: Agent, caplog: pytest.LogCaptureFixture) -> None:
    """Workers of the job have its CA and its token, but are not its launcher."""
    with pytest.raises(DaemonNotStarted, match=r"worker\.uid-1\.ringtrain, expected launcher\.uid-1\.ringtrain"):
        ask(load(agent.secrets["worker"]), agent)
    assert agent.spawned.commands == []
    assert "refused a call" in caplog.text


def test_a_replayed_message_starts_nothing(agent: Agent, caplog: pytest.LogCaptureFixture) -> None:
    """The same bytes that started a daemon start none on another call, not even from the launcher itself."""
    recorded: list[Any] = []

    def record(nonce: bytes) -> Any:
        recorded.append(start(agent.launcher().token, nonce))
        return recorded[0]

    assert converse(agent, record)[-1].exit_code == 7
    with caplog.at_level(logging.WARNING), pytest.raises(grpc.RpcError) as refused:
        converse(agent, lambda _: recorded[0])
    assert refused.value.code() is grpc.StatusCode.PERMISSION_DENIED
    assert agent.spawned.commands == [CLAIM.command]
    assert "to start a daemon" in caplog.text
    assert "replays a message" in caplog.text


@pytest.mark.parametrize(
    ("request_for", "message"),
    [
        pytest.param(lambda nonce: start("another token", nonce), "lacks the job's token", id="other-token"),
        pytest.param(lambda nonce: pb.RunRequest(stdin=b"x"), "not a start request", id="no-start"),
    ],
)
def test_a_wrong_first_message_starts_nothing(
    agent: Agent, request_for: Callable[[bytes], Any], message: str, caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(grpc.RpcError):
        converse(agent, request_for)
    assert agent.spawned.commands == []
    assert message in caplog.text


@pytest.mark.parametrize(
    "claim", [MpiDaemonClaim("uid-2", 3, "true"), MpiDaemonClaim("uid-1", 2, "true")], ids=["job", "attempt"]
)
def test_a_request_for_something_else_starts_nothing(
    agent: Agent, claim: MpiDaemonClaim, caplog: pytest.LogCaptureFixture
) -> None:
    """The agent starts only what is for its own job and attempt."""
    with pytest.raises(DaemonNotStarted, match="this agent belongs to attempt 3 of job uid-1"):
        ask(agent.launcher(), agent, claim)
    assert agent.spawned.commands == []
    assert "to start a daemon" in caplog.text
