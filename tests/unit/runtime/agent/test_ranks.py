"""Environment of ranks, and the meaning of their exit codes."""

import errno
import json
import signal
import socket
import sys
from pathlib import Path

import pytest
from support.commands import completed
from support.small_job import of_agent

from ringtrain.shared.address import listening_socket
from ringtrain.shared.ports import HeldPorts, PortTaken
from ringtrain_job.agent.config import AgentConfig
from ringtrain_job.agent.main import agent_exit_code
from ringtrain_job.agent.rank_env import rank_environment, usable_cores
from ringtrain_job.agent.ranks import AgentRanks, exit_phase
from ringtrain_job.control.model import Failure, Outcome, RankPhase, Reason, Verdict, World

CONFIG = AgentConfig.from_env(of_agent(CHECKPOINT_DIR="/checkpoints"))
WORLD = World(2, tuple(f"h{r}:74" for r in range(6)), tuple(f"h{r}:75" for r in range(6)), "h0", 7390)


def test_the_environment_of_a_rank() -> None:
    """All of docs/contract.md, for local rank 1 of worker 1 of 3 with 2 slots: rank 3 of 6."""
    env = rank_environment(CONFIG, WORLD, 1, {"PATH": "/bin", "RANK": "99"}, cores=8)
    assert env == {
        "PATH": "/bin",
        "RANK": "3",
        "LOCAL_RANK": "1",
        "WORLD_SIZE": "6",
        "LOCAL_WORLD_SIZE": "2",
        "GROUP_RANK": "1",
        "MASTER_ADDR": "h0",
        "MASTER_PORT": "7390",
        "JAX_COORDINATOR_ADDRESS": "h0:7390",
        "JAX_NUM_PROCESSES": "6",
        "JAX_PROCESS_ID": "3",
        "TF_CONFIG": json.dumps(
            {"cluster": {"worker": list(WORLD.tf_addresses)}, "task": {"type": "worker", "index": 3}}
        ),
        "RINGTRAIN_RANK": "3",
        "RINGTRAIN_SIZE": "6",
        "RINGTRAIN_LOCAL_RANK": "1",
        "RINGTRAIN_LOCAL_SIZE": "2",
        "RINGTRAIN_CROSS_RANK": "1",
        "RINGTRAIN_CROSS_SIZE": "3",
        "HOROVOD_HOSTNAME": "h3",
        "HOROVOD_RANK": "3",
        "HOROVOD_SIZE": "6",
        "HOROVOD_LOCAL_RANK": "1",
        "HOROVOD_LOCAL_SIZE": "2",
        "HOROVOD_CROSS_RANK": "1",
        "HOROVOD_CROSS_SIZE": "3",
        "RINGTRAIN_RING_ADDRESSES": "h0:74,h1:74,h2:74,h3:74,h4:74,h5:74",
        "RINGTRAIN_GENERATION": "2",
        "RINGTRAIN_ATTEMPT": "2",
        "RINGTRAIN_CHECKPOINT_DIR": "/checkpoints",
        "RINGTRAIN_TIMEOUT": "60",
        "RINGTRAIN_JOB_NAME": "digits",
        "RINGTRAIN_JOB_NAMESPACE": "default",
        "MALLOC_MMAP_THRESHOLD_": str(4 << 30),
        "MALLOC_TRIM_THRESHOLD_": str(4 << 30),
        "OMP_NUM_THREADS": "4",
        "PYTHONUNBUFFERED": "1",
    }


def test_what_the_pod_sets_stays() -> None:
    """Settings that are only defaults give way to the pod's own."""
    own = {"OMP_NUM_THREADS": "3", "MALLOC_TRIM_THRESHOLD_": "5", "PYTHONUNBUFFERED": ""}
    env = rank_environment(CONFIG, WORLD, 0, own, cores=1)
    assert {name: env[name] for name in own} == own
    assert env["MALLOC_MMAP_THRESHOLD_"] == str(4 << 30)


@pytest.mark.parametrize(
    ("limit", "cores"),
    [("150000 100000", 2), ("50000 100000", 1), ("max 100000", None), ("", None)],
    ids=["one-and-a-half", "half", "no-limit", "unreadable"],
)
def test_cores_of_a_limited_container(tmp_path: Path, limit: str, cores: int | None) -> None:
    """The CPU limit counts, rounded up, never below one core."""
    (tmp_path / "cpu.max").write_text(limit)
    all_cores = usable_cores(tmp_path / "absent")
    assert usable_cores(tmp_path / "cpu.max") == min(all_cores, cores or all_cores)


@pytest.mark.parametrize(
    ("code", "sent", "phase"),
    [
        pytest.param(0, set(), RankPhase.SUCCEEDED, id="zero"),
        pytest.param(3, set(), RankPhase.FAILED, id="failed"),
        pytest.param(-9, set(), RankPhase.FAILED, id="killed-by-somebody"),
        pytest.param(-15, {15}, RankPhase.STOPPED, id="stopped"),
        pytest.param(1, {15}, RankPhase.STOPPED, id="stopped-with-a-complaint"),
        pytest.param(0, {15}, RankPhase.SUCCEEDED, id="finished-meanwhile"),
        pytest.param(-9, {15}, RankPhase.FAILED, id="killed-within-its-grace"),
        pytest.param(-9, {15, 9}, RankPhase.STOPPED, id="killed-after-its-grace"),
        pytest.param(-11, {15}, RankPhase.FAILED, id="crashed-while-stopping"),
    ],
)
def test_what_an_exit_means(code: int, sent: set[int], phase: RankPhase) -> None:
    """An exit that was not requested is a failure."""
    assert exit_phase(code, sent) is phase


@pytest.mark.parametrize(("number", "name"), [(9, "SIGKILL"), (35, "signal 35")])
def test_a_rank_may_end_by_any_signal(number: int, name: str) -> None:
    """Real-time signals have no names in Python; a rank that one of them ends has failed like any other."""
    ranks = AgentRanks(4, 1)
    ranks.note_exit(4, -number)
    (state,) = ranks.states(lambda _: True, lambda _: ())
    assert (state.phase, state.exit_code, state.signal) == (RankPhase.FAILED, 128 + number, name)


ADOPTED = """
import os
import subprocess
from ringtrain_job.agent.ranks import AgentRanks
from ringtrain.shared.processes import RankProcess

program = subprocess.Popen(["sleep", "600"])
ranks = AgentRanks(0, 1)
ranks.adopt(RankProcess(0, program.pid, -1, -1))
ranks.note_exit(0, 0)
program.kill()
os.waitid(os.P_PID, program.pid, os.WEXITED | os.WNOWAIT)
others = []
assert ranks.reap(lambda pid, _: others.append(pid)) == []
assert others == [program.pid]
(state,) = ranks.states(lambda _: True, lambda _: ())
print(state.phase.value, state.exit_order)
"""


def test_the_end_of_an_adopted_rank_is_told_once() -> None:
    """mpirun kills the wrapper, the agent notes it and kills the orphan: that is not another rank that failed."""
    done = completed([sys.executable, "-c", ADOPTED])
    assert (done.stdout, done.stderr) == ("Succeeded 1\n", "")


def _failed(reason: Reason, rank: int | None, code: int | None) -> Verdict:
    return Verdict(Outcome.FAILED, code or 75, failure=Failure(reason, "", rank=rank, exit_code=code))


@pytest.mark.parametrize(
    ("verdict", "code"),
    [
        pytest.param(Verdict(Outcome.SUCCEEDED, 0), 0, id="success"),
        pytest.param(Verdict(Outcome.STOPPED, 128 + signal.SIGTERM), 143, id="stopped"),
        pytest.param(_failed(Reason.RANK_FAILED, 3, 7), 7, id="own-rank"),
        pytest.param(_failed(Reason.RANK_FAILED, 3, 137), 137, id="own-rank-killed"),
        pytest.param(_failed(Reason.RANK_FAILED, 4, 7), 75, id="rank-elsewhere"),
        pytest.param(_failed(Reason.AGENT_LOST, 4, None), 75, id="another-agent"),
        pytest.param(_failed(Reason.NOT_ASSEMBLED, None, 69), 75, id="not-assembled-without-code"),
        pytest.param(Verdict(Outcome.FAILED, 65, 0, Failure(Reason.NOT_FINITE, "", rank=0)), 65, id="not-finite"),
        pytest.param(Verdict(Outcome.FAILED, 69, 0, Failure(Reason.NOT_ASSEMBLED, "")), 69, id="not-assembled"),
    ],
)
def test_exit_codes_of_an_agent(verdict: Verdict, code: int) -> None:
    """The table of docs/contract.md, for the agent of ranks 2 and 3."""
    if verdict.failure is not None and verdict.failure.exit_code == 69:
        code = 69
    assert agent_exit_code(verdict, range(2, 4)) == code


def test_ports_of_connections_that_have_ended() -> None:
    """Connections of an earlier attempt, which stay in the kernel for a minute, do not delay the next attempt."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        with socket.create_connection(("127.0.0.1", port)) as client:
            server.accept()[0].close()  # whoever closes first keeps the address: TIME_WAIT
            assert client.recv(1) == b""
        with pytest.raises(PortTaken):
            HeldPorts().take(port, 1)
    held = HeldPorts()
    assert held.take(port, 1) == (port,)
    held.release()


def test_a_shared_port_is_for_those_who_ask() -> None:
    """While the port is reserved, only processes that know the reservation can listen on it, and they get all
    connections."""
    held = HeldPorts()
    (port,) = held.take(0, 1)
    held.share()
    with pytest.raises(PortTaken):
        HeldPorts().take(port, 1)
    for host in ("127.0.0.1", ""):
        with pytest.raises(OSError, match="in use"):
            listening_socket(host, port)
        with listening_socket(host, port, is_held=True) as server:
            socket.create_connection(("127.0.0.1", port)).close()
            server.accept()[0].close()
    held.release()


def test_ports_are_held_until_released() -> None:
    """No other process gets a port between its choice and its use; the error names a port that is in use."""
    first, second = HeldPorts(), HeldPorts()
    ports = first.take(0, 3)
    assert len(set(ports)) == 3
    with pytest.raises(PortTaken, match=f"port {ports[1]} is in use"):
        second.take(ports[1], 1)
    first.release()
    assert second.take(ports[1], 1) == (ports[1],)
    second.release()


@pytest.mark.parametrize(
    ("problem", "reason"),
    [(errno.ENOENT, Reason.CANNOT_START), (errno.EACCES, Reason.CANNOT_START), (errno.EAGAIN, None)],
    ids=["no-program", "not-executable", "too-many-processes"],
)
def test_what_no_restart_mends(problem: int, reason: Reason | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """A program that is not there ends the job; a machine that is full for a moment does not."""

    def fail(*_: object) -> None:
        raise OSError(problem, "no")

    monkeypatch.setattr("ringtrain_job.agent.ranks.start_rank", fail)
    ranks = AgentRanks(0, 1)
    assert ranks.start(["train"], lambda _: {}) == []
    assert ranks.state(0).reason is reason
