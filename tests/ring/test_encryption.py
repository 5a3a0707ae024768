"""RINGTRAIN_ENCRYPT=tensors: what goes between ranks is unreadable, and nobody but ranks of the job takes part."""

import contextlib
import os
import select
import socket
import ssl
import struct
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
from support.certificates import JobAuthority
from support.deadlines import patient
from support.ports import free_addresses
from support.world_config import changed_config, world_config

import ringtrain as rt
from ring.leftovers import leftovers
from ringtrain._core.process_groups.rank_context import ProcessGroupContext
from ringtrain._core.transport.channel import SocketChannel
from ringtrain._core.world.config import WorkerConfig
from ringtrain.errors import ConfigurationError, RingtrainError
from ringtrain.shared.address import split_address
from ringtrain.shared.connection_errors import ConnectionLost
from ringtrain.shared.tls import TlsIdentity

UID = "uid-1"
DEADLINE_S = patient(60.0)


@pytest.fixture(autouse=True)
def nothing_is_left() -> Iterator[None]:
    yield
    assert not leftovers()


@dataclass(frozen=True)
class Directories:
    """Secrets of ranks of one job, of its launcher, and of ranks of another job of the same authority's making."""

    rank: Path
    launcher: Path
    other_job: Path
    other_authority: Path


@pytest.fixture(scope="module")
def secrets(tmp_path_factory: pytest.TempPathFactory) -> Directories:
    root = tmp_path_factory.mktemp("secrets")
    authority = JobAuthority(UID)
    return Directories(
        authority.secret_dir(root / "rank", "worker"),
        authority.secret_dir(root / "launcher", "launcher"),
        authority.secret_dir(root / "other", "worker", uid="uid-2"),
        JobAuthority(UID).secret_dir(root / "forged", "worker"),
    )


def configs(secrets: Directories, size: int = 2, **more: Any) -> list[WorkerConfig]:
    addresses = tuple(free_addresses(size))
    common = world_config(
        size=size, addresses=addresses, transport="grpc", encrypt="tensors", secret_dir=secrets.rank, job_uid=UID,
        token_file=secrets.rank / "token",
    )  # fmt: skip
    return [changed_config(common, rank=rank, **more) for rank in range(size)]


def outcomes(worlds: list[WorkerConfig], length: int = 1) -> list[object]:
    """Return each rank's result of an allreduce of `length` ones, or the error of its world."""

    def run(config: WorkerConfig) -> object:
        try:
            context = ProcessGroupContext(config, None)
        except RingtrainError as error:
            return error
        with context.entered():
            summed = rt.allreduce(np.ones(length, np.float32), rt.Sum)
            all_done.wait(DEADLINE_S)
        context.close()
        return float(summed.min()) if summed.min() == summed.max() else summed

    all_done = threading.Barrier(len(worlds))
    with ThreadPoolExecutor(len(worlds)) as pool:
        return list(pool.map(run, worlds))


@pytest.mark.parametrize("data_path", ["auto", "grpcio"])
@pytest.mark.parametrize("length", [1, 3_000_000], ids=["short", "long"])
def test_ranks_with_the_jobs_certificates_reduce(secrets: Directories, data_path: str, length: int) -> None:
    """Through ports of their own, and through gRPC's library."""
    assert outcomes(configs(secrets, 3, data_path=data_path), length) == [3.0] * 3


@pytest.mark.parametrize("who", ["launcher", "other_job", "other_authority"])
def test_certificates_of_others_are_refused(secrets: Directories, who: str) -> None:
    """Another role, another job, another authority: a rank with these, and the right token, does not get in."""
    first, second = configs(secrets, timeout_s=3.0)
    stranger = changed_config(second, secret_dir=getattr(secrets, who))
    for error in outcomes([first, stranger]):
        assert isinstance(error, RingtrainError)


@contextlib.contextmanager
def overheard() -> Iterator[list[bytes]]:
    """Capture the packets on loopback until the context ends."""
    packets: list[bytes] = []
    stopped = threading.Event()

    def listen() -> None:
        while not stopped.is_set():
            with contextlib.suppress(TimeoutError):
                packets.append(sock.recv(1 << 17))

    with socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3)) as sock:
        sock.setsockopt(socket.SOL_SOCKET, 33, 64 << 20)  # SO_RCVBUFFORCE: nothing is dropped
        sock.bind(("lo", 0))
        sock.settimeout(0.2)
        thread = threading.Thread(target=listen)
        thread.start()
        try:
            yield packets
        finally:
            stopped.set()
            thread.join()


@pytest.mark.skipif(os.geteuid() != 0, reason="packets are read by root")
@pytest.mark.parametrize("data_path", ["auto", "grpcio"])
def test_tensors_are_encrypted_between_sites(secrets: Directories, data_path: str) -> None:
    """They travel in clear within one, unless gRPC's library carries them."""
    worlds = configs(secrets, 3, encrypt="sites", sites=("x", "x", "y"), data_path=data_path)
    numbers = threading.Barrier(3)

    def run(config: WorkerConfig) -> list[bool]:
        seen = []
        context = ProcessGroupContext(config, None)
        with context.entered():
            for word, ranks in ((b"NEAR", [0, 1]), (b"FARR", [1, 2])):
                both = rt.add_process_set(ranks)
                with overheard() if config.place.rank == 1 else contextlib.nullcontext([]) as packets:
                    numbers.wait(DEADLINE_S)
                    if config.place.rank in ranks:
                        given = np.frombuffer(word * 100_000, np.float32)
                        summed = rt.allreduce(given, rt.Sum, process_set=both)
                        assert (summed == 2 * given).all()
                    numbers.wait(DEADLINE_S)
                seen.append(any(4 * word in packet for packet in packets))
        context.close()
        return seen

    with ThreadPoolExecutor(3) as pool:
        assert list(pool.map(run, worlds))[1] == [data_path == "auto", False]


def test_ranks_without_encryption_do_not_meet_those_with_it(secrets: Directories) -> None:
    """Nothing falls back to plain text."""
    first, second = configs(secrets, timeout_s=3.0)
    for error in outcomes([first, changed_config(second, encrypt="none")]):
        assert isinstance(error, RingtrainError)


@pytest.mark.parametrize("port", ["ring", "data"])
def test_both_ports_ask_for_a_certificate(secrets: Directories, port: str) -> None:
    """Plain bytes, and TLS without a certificate, get no answer; TLS with the launcher's is refused by name."""
    first, second = configs(secrets)
    with ThreadPoolExecutor(2) as pool:
        contexts = list(pool.map(lambda config: ProcessGroupContext(config, None), (first, second)))
        try:
            host, number = split_address(first.addresses[0])
            if port == "data":
                number = contexts[0]._member.transport.data_port or 0
            _assert_closed_out(host, number)
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
            context.check_hostname = False
            context.load_verify_locations(secrets.rank / "ca.crt")
            with (
                contextlib.suppress(OSError),
                _open_channel(host, number) as sock,
                context.wrap_socket(sock) as wrapped,
            ):
                wrapped.sendall(b"PRI")
                assert wrapped.recv(4096) == b""  # the server finds out after our side of the handshake
            if port == "ring":
                _assert_launcher_is_refused(secrets, first.addresses[0])
        finally:
            list(pool.map(ProcessGroupContext.close, contexts))


def test_who_has_gone_before_the_handshake_is_a_lost_connection(secrets: Directories) -> None:
    """With bytes that nobody has read, and a reset: Python's own error ended the thread with a traceback."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        stranger = socket.create_connection(server.getsockname())
        accepted, _ = server.accept()
        stranger.sendall(b"PRI")
        stranger.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        stranger.close()
        with contextlib.closing(SocketChannel(accepted, DEADLINE_S)) as channel:
            poll = select.poll()
            poll.register(channel.fileno(), select.POLLERR | select.POLLHUP)
            assert poll.poll(DEADLINE_S * 1000)
            with pytest.raises(ConnectionLost):
                channel.secure(TlsIdentity.load(secrets.rank, "name"), False, time.monotonic() + DEADLINE_S)


def _assert_closed_out(host: str, port: int) -> None:
    with _open_channel(host, port) as sock:
        sock.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes(9))
        came = b""
        try:
            while more := sock.recv(4096):
                came += more
        except ConnectionError:
            pass
        assert b"ringtrain" not in came


def _open_channel(host: str, port: int) -> socket.socket:
    return socket.create_connection((host, port), DEADLINE_S)


def _assert_launcher_is_refused(secrets: Directories, address: str) -> None:
    ca, certificate, key = ((secrets.launcher / name).read_bytes() for name in ("ca.crt", "tls.crt", "tls.key"))
    credentials = grpc.ssl_channel_credentials(ca, key, certificate)
    options = [("grpc.ssl_target_name_override", f"worker.{UID}.ringtrain")]
    with grpc.secure_channel(address, credentials, options=options) as channel:
        with pytest.raises(grpc.RpcError) as refused:
            channel.unary_unary("/ringtrain.Ring/Hello")(b"{}", timeout=DEADLINE_S)
        assert "certificate is for launcher.uid-1.ringtrain, expected worker" in refused.value.details()  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"job_uid": ""}, "RINGTRAIN_JOB_UID is not set"),
        ({"secret_dir": Path("/nowhere")}, r"needs ca.crt, tls.crt, tls.key in RINGTRAIN_SECRET_DIR \(/nowhere\)"),
        ({"transport": "mpi"}, "RINGTRAIN_TRANSPORT is mpi, which ringtrain can't encrypt"),
    ],
    ids=["uid", "directory", "mpi"],
)
def test_what_is_missing_is_named(secrets: Directories, change: dict[str, object], expected: str) -> None:
    """Ranks that are to encrypt and can't do not start."""
    config = changed_config(configs(secrets)[0], **change)
    with pytest.raises(ConfigurationError, match=expected):
        ProcessGroupContext(config, None)
