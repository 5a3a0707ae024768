"""What the log store has is in the object store, too: to the byte, also after the store was away."""

import logging
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner
from support.objectstore import BUCKET, Proxy, Server, environment, s3_server, wait_until

from ringtrain.cli.logs import logs
from ringtrain.logs import shipping
from ringtrain.logs.journal import Stream
from ringtrain.logs.layout import AttemptFiles
from ringtrain.logs.shipping import LogShipping, read_shipped, shipped_attempts
from ringtrain.logs.store import Chunk, LogStore
from ringtrain.storage import ObjectStore


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with s3_server() as server:
        yield server


@pytest.fixture
def proxy(server: Server, monkeypatch: pytest.MonkeyPatch) -> Iterator[Proxy]:
    with Proxy(server.address) as proxy:
        for name, value in environment(proxy.url).items():
            monkeypatch.setenv(name, value)
        yield proxy


def _store(root: Path, attempt: int = 1) -> LogStore:
    return LogStore(AttemptFiles.of(root, "ns", "digits", attempt), "uid", attempt)


def _write(store: LogStore, rank: int, first: int, lines: list[str]) -> None:
    data = "".join(f"{line}\n" for line in lines).encode()
    store.append(Chunk(Stream.LOG, rank, first, len(lines), data))


def _ship(uri: str, store: LogStore) -> LogShipping:
    return LogShipping(uri, store.files, 1, store.resumed, store.sizes)


def _read(uri: str, name: str, tail: int | None = None) -> bytes:
    return b"".join(read_shipped(ObjectStore(uri), 1, name, tail))


def test_all_is_in_the_store_at_the_end(
    tmp_path: Path, proxy: Proxy, monkeypatch: pytest.MonkeyPatch, capsysbinary: pytest.CaptureFixture[bytes]
) -> None:
    """Several segments of each file make it again; `ringtrain logs` prints it where no volume has it."""
    monkeypatch.setattr(shipping, "SEGMENT_BYTES", 1000)
    uri = f"s3://{BUCKET}/whole"
    store = _store(tmp_path)
    _write(store, 0, 1, [f"line {n}" for n in range(300)])
    _write(store, 1, 1, ["other"])
    store.files.outcome.write_text("{}")
    assert _ship(uri, store).finish(60)
    store.close()
    for path in (store.files.job_log, store.files.rank_log(0), store.files.rank_log(1)):
        assert _read(uri, path.name) == path.read_bytes()
    assert _read(uri, "rank-0000.log", tail=2) == b"line 298\nline 299\n"
    assert _read(uri, "rank-0000.log", tail=0) == b""
    assert shipped_attempts(ObjectStore(uri)) == [1]
    variables = {"JOB_NAME": "digits", "JOB_NAMESPACE": "ns", "ATTEMPT": "1", "NUM_WORKERS": "2", "LOG_URI": uri}
    for name, value in {**variables, "LOG_DIR": str(tmp_path / "none")}.items():
        monkeypatch.setenv(f"RINGTRAIN_{name}", value)
    found = CliRunner().invoke(logs, ["--rank", "1"])
    assert (found.exit_code, found.stdout_bytes) == (0, b"other\n")
    missing = CliRunner().invoke(logs, ["--rank", "1", "--attempt", "7"])
    assert missing.exit_code == 1
    assert "it has logs of attempts 1" in missing.output


def test_logs_wait_for_credentials(
    tmp_path: Path, server: Server, proxy: Proxy, caplog: pytest.LogCaptureFixture
) -> None:
    """The log says that they are not shipped and why; nothing is lost, and later all is there."""
    uri = f"s3://{BUCKET}/denied"
    store = _store(tmp_path)
    _write(store, 0, 1, ["first"])
    server.check_credentials(True)
    try:
        with caplog.at_level(logging.INFO, logger="ringtrain.logs.shipping"):
            running = _ship(uri, store)
            wait_until("the problem", lambda: running.problem)
            assert "does not take these credentials" in caplog.text
            assert running.pending_bytes == sum(store.sizes().values()) > 0
            assert not running.finish(0.2)
            assert f"{running.pending_bytes} bytes of logs are not in {uri}" in caplog.text
            server.check_credentials(False)
            assert running.finish(60)
    finally:
        server.check_credentials(False)
    assert "logs are shipped to" in caplog.text
    assert _read(uri, "rank-0000.log") == b"first\n"
    store.close()


def test_a_connection_that_is_cut_loses_nothing(tmp_path: Path, proxy: Proxy) -> None:
    """What was cut in the middle is sent again."""
    uri = f"s3://{BUCKET}/cut"
    store = _store(tmp_path)
    _write(store, 0, 1, ["x" * 99] * 2000)
    proxy.cut_after, proxy.cuts = 50_000, 2
    assert _ship(uri, store).finish(60)
    assert proxy.cuts == 0
    assert _read(uri, "rank-0000.log") == store.files.rank_log(0).read_bytes()
    store.close()


@pytest.mark.parametrize("volume", ["kept", "lost"])
def test_another_launcher_goes_on(tmp_path: Path, volume: str) -> None:
    """With the files of the one before it, behind what that has shipped; without them, beside it."""
    uri = f"file://{tmp_path}/store"
    first = _store(tmp_path / "logs")
    _write(first, 0, 1, ["one"])
    assert _ship(uri, first).finish(60)
    first.close()
    second = _store(tmp_path / ("logs" if volume == "kept" else "others"))
    _write(second, 0, 2, ["two"])
    assert _ship(uri, second).finish(60)
    shipped = _read(uri, "rank-0000.log")
    second.close()
    lost = b"" if volume == "kept" else b"[ringtrain] lines 1 to 1 of rank 0 are not here: "
    assert shipped.startswith(b"one\n" + lost)
    assert shipped.endswith(b"two\n")
    assert shipped.count(b"\n") == (2 if volume == "kept" else 3)


def test_no_line_of_a_write_under_way_is_shipped(tmp_path: Path) -> None:
    """Sizes are those of whole writes."""
    store = _store(tmp_path)
    _write(store, 0, 1, ["one"])
    assert {path.name: size for path, size in store.sizes().items()} == {"job.log": 8, "rank-0000.log": 4}
    store.close()
