"""`ringtrain.init()` finds its world from torchrun's variables: under torchrun, and where they are set by hand."""

import json
import logging
import os
import re
import socket
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from support.deadlines import patient
from support.needs import need
from support.ports import free_ports

from ringtrain._core.process_groups.rank_context import warn_without_token
from ringtrain._core.world.config import WorkerConfig
from ringtrain._core.world.gathering import RendezvousPoint, gather_addresses
from ringtrain._core.world.ring_config import RingConfig
from ringtrain.errors import ConfigurationError

DEADLINE_S = patient(120.0)
SUM = """
import os
import numpy as np
import ringtrain as rt
for _ in range(2):
    rt.init()
    total = rt.allreduce(np.full(1000, rt.rank() + 1.0), rt.Sum).max()
    place = [rt.rank(), rt.size(), rt.local_rank(), rt.local_size(), rt.cross_rank(), rt.cross_size()]
    os.write(1, f"{place} sum {total}\\n".encode())  # in one piece: all ranks share a pipe
    rt.shutdown()
"""


def _start(words: list[str], **variables: str) -> "subprocess.Popen[str]":
    clean = {name: value for name, value in os.environ.items() if not name.startswith("RINGTRAIN_")}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen(words, env={**clean, **variables}, **pipes)  # type: ignore[call-overload, no-any-return]


def _ended(started: list["subprocess.Popen[str]"]) -> list[str]:
    """The lines that all of them print; they must end well."""
    with ThreadPoolExecutor(len(started)) as pool:
        ends = list(pool.map(lambda process: process.communicate(timeout=DEADLINE_S), started))
    for process, (out, err) in zip(started, ends, strict=True):
        assert process.returncode == 0, out + err
    return sorted("".join(out for out, _ in ends).splitlines())


@pytest.mark.parametrize("more", [[], ["--standalone"]], ids=["static", "standalone"])
def test_ranks_of_one_torchrun_meet(more: list[str], tmp_path: Path) -> None:
    """`torchrun --nproc-per-node 2 script.py`, and the script may leave its world and enter the next one."""
    need("torch")
    (tmp_path / "script.py").write_text(SUM)
    rendezvous = more or ["--master-port", str(free_ports(1)[0])]
    words = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", *rendezvous]
    lines = _ended([_start([*words, str(tmp_path / "script.py")], OMP_NUM_THREADS="1")])
    assert lines == 2 * ["[0, 2, 0, 2, 0, 1] sum 3.0"] + 2 * ["[1, 2, 1, 2, 0, 1] sum 3.0"]


def test_ranks_of_torchrun_on_two_hosts_meet(tmp_path: Path) -> None:
    """One torchrun a host, found through `--master-addr`; places on hosts are those that torchrun says."""
    need("torch")
    (tmp_path / "script.py").write_text(SUM)
    port = str(free_ports(1)[0])
    (tmp_path / "token").write_text("a secret")

    def started(node: int) -> "subprocess.Popen[str]":
        words = [sys.executable, "-m", "torch.distributed.run", "--nnodes", "2", "--node-rank", str(node)]
        words += ["--nproc-per-node", "1", "--master-addr", "127.0.0.1", "--master-port", port]
        token = str(tmp_path / "token")
        return _start([*words, str(tmp_path / "script.py")], OMP_NUM_THREADS="1", RINGTRAIN_TOKEN_FILE=token)

    lines = _ended([started(0), started(1)])
    assert lines == 2 * ["[0, 2, 0, 1, 0, 2] sum 3.0"] + 2 * ["[1, 2, 0, 1, 1, 2] sum 3.0"]


def test_ranks_with_variables_set_by_hand_meet() -> None:
    """As scripts for clusters set them: two hosts, nobody listens on MASTER_PORT, and a token in a variable."""
    port = str(free_ports(1)[0])

    def started(rank: int) -> "subprocess.Popen[str]":
        place = {"RANK": str(rank), "WORLD_SIZE": "2", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"}
        where = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "RINGTRAIN_TOKEN": "a secret"}
        return _start([sys.executable, "-c", SUM], **place, **where)

    lines = _ended([started(0), started(1)])
    assert lines == 2 * ["[0, 2, 0, 1, 0, 2] sum 3.0"] + 2 * ["[1, 2, 0, 1, 1, 2] sum 3.0"]


REFUSED = {
    "no-master": (
        {"RANK": "0", "WORLD_SIZE": "2"},
        "MASTER_PORT is not set, but RANK=0, WORLD_SIZE=2; torchrun sets",
    ),
    "no-size": (
        {"RANK": "0", "MASTER_ADDR": "a"},
        "WORLD_SIZE is not set, but RANK=0, MASTER_ADDR=a; torchrun sets",
    ),
    "rank": ({"RANK": "2", "WORLD_SIZE": "2"}, "RANK='2': expected an integer from 0 to 1"),
    "text": ({"RANK": "x", "WORLD_SIZE": "2"}, "RANK='x': expected an integer from 0 to 1"),
    "local": ({"RANK": "0", "WORLD_SIZE": "2", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "1"}, "LOCAL_RANK='1'"),
    "name": (
        {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "x..y", "MASTER_PORT": "1"},
        '"x..y:1" is not an address of the form host:port',
    ),
}


@pytest.mark.parametrize(("env", "expected"), REFUSED.values(), ids=REFUSED)
def test_a_wrong_environment_is_refused(env: dict[str, str], expected: str) -> None:
    """The message names the variable, what it is and what was expected."""
    with pytest.raises(ConfigurationError, match=re.escape(expected)):
        WorkerConfig.from_env(env)


@pytest.mark.parametrize(
    "env",
    [
        {"WORLD_SIZE": "4"},
        {"RANK": "1"},
        {"RANK": "0", "WORLD_SIZE": "1"},
        {"MASTER_ADDR": "a", "MASTER_PORT": "1"},
    ],
    ids=str,
)
def test_a_process_alone_stays_alone(env: dict[str, str]) -> None:
    """A world of one, and a name that other programs use, too."""
    assert WorkerConfig.from_env(env).place.size == 1


def test_the_agents_variables_come_first() -> None:
    """An agent sets torchrun's variables as well, for torch.distributed."""
    env = {"RANK": "1", "WORLD_SIZE": "8", "MASTER_ADDR": "nowhere", "MASTER_PORT": "1"}
    ours = {"RINGTRAIN_RANK": "0", "RINGTRAIN_SIZE": "2", "RINGTRAIN_RING_ADDRESSES": "a:1,b:1"}
    found = WorkerConfig.from_env(env | ours)
    assert (found.source, found.place.rank, found.place.size) == ("ringtrain", 0, 2)


def _gather(rank: int, port: int, token: bytes | None, timeout_s: float = DEADLINE_S) -> tuple[str, ...]:
    return gather_addresses(rank, 3, RendezvousPoint(("127.0.0.1", port)), f"host-{rank}:1", token, timeout_s)


@pytest.mark.parametrize("token", [b"a secret", None], ids=["token", "no-token"])
def test_strangers_do_not_keep_ranks_from_meeting(token: bytes | None) -> None:
    """Noise, lines without an end, half-open connections and foreign proofs change nothing."""
    (port,) = free_ports(1)
    with ThreadPoolExecutor(3) as pool:
        first = pool.submit(_gather, 0, port, token)
        strangers = [_connected(port) for _ in range(100)]
        try:
            for number, line in enumerate(_noise()):
                strangers[number].sendall(line)
            others = [pool.submit(_gather, rank, port, token) for rank in (1, 2)]
            for gathered in (first, *others):
                assert gathered.result(DEADLINE_S) == ("host-0:1", "host-1:1", "host-2:1")
        finally:
            for sock in strangers:
                sock.close()


def _noise() -> list[bytes]:
    hello = {"rank": 1, "size": 9, "address": "evil:1", "nonce": "", "proof": "no"}
    return [b"\xff\n", b"[]\n", b"{}\n", b"[" * 900 + b"\n", b"x" * 5000, json.dumps(hello).encode() + b"\n"]


def _connected(port: int) -> socket.socket:
    while True:
        try:
            return socket.create_connection(("127.0.0.1", port), DEADLINE_S)
        except ConnectionRefusedError:
            continue


def test_another_token_is_named() -> None:
    """The rank without the token of rank 0 says so; rank 0 waits on and names who is missing."""
    (port,) = free_ports(1)
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(_gather, 0, port, b"a secret", 2.0)
        with pytest.raises(ConfigurationError, match="rank 1 does not have the token of rank 0"):
            _gather(1, port, b"another")
        with pytest.raises(ConfigurationError, match=re.escape("rank(s) 1, 2 of 3 did not call ringtrain.init()")):
            first.result(DEADLINE_S)


@pytest.mark.parametrize(
    ("address", "token", "warned"),
    [("10.9.8.7:1", None, True), ("10.9.8.7:1", b"a secret", False), ("localhost:1", None, False)],
    ids=["no-token", "token", "loopback"],
)
def test_a_rank_without_a_token_warns(
    address: str, token: bytes | None, warned: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """A rank without a token warns if processes of other hosts can reach its address."""
    with caplog.at_level(logging.WARNING, "ringtrain"):
        warn_without_token(RingConfig(0, 2, (address, "b:1"), token=token))
    assert ("every process that reaches 10.9.8.7:1 can take part in this world" in caplog.text) is warned
