"""The object store has the same bytes as the log store, also after the store was unavailable."""

import json
import logging
from collections.abc import Mapping
from pathlib import Path

import pytest
from click.testing import CliRunner
from support.gang import until
from support.objectstore import BUCKET, Proxy, Server

from ringtrain.shared.storage import ObjectStore
from ringtrain_job.cli.main import main
from ringtrain_job.logs import shipping
from ringtrain_job.logs.journal import LogStream
from ringtrain_job.logs.layout import AttemptFiles
from ringtrain_job.logs.shipping import LogShipping, read_shipped, shipped_attempts
from ringtrain_job.logs.store import LogChunk, LogStore

pytestmark = pytest.mark.slow


def _store(root: Path, attempt: int = 1) -> LogStore:
    return LogStore(AttemptFiles.of(root, "ns", "digits", attempt), "uid", attempt)


def _write(store: LogStore, rank: int, first: int, lines: list[str]) -> None:
    data = "".join(f"{line}\n" for line in lines).encode()
    store.append(LogChunk(LogStream.LOG, rank, first, len(lines), data))


def _ship(uri: str, store: LogStore) -> LogShipping:
    return LogShipping(uri, store.files, 1, store.sizes)


def _in_a_pod_without_files(monkeypatch: pytest.MonkeyPatch, uri: str, folder: Path) -> None:
    """Set the variables of a pod of a job with three ranks, whose log directory does not exist."""
    variables = {"JOB_NAME": "digits", "JOB_NAMESPACE": "ns", "ATTEMPT": "1", "NUM_WORKERS": "3", "LOG_URI": uri}
    for name, value in {**variables, "LOG_DIR": str(folder / "none")}.items():
        monkeypatch.setenv(f"RINGTRAIN_{name}", value)


def _read(uri: str, name: str, tail: int | None = None) -> bytes:
    return b"".join(read_shipped(ObjectStore(uri), 1, name, tail))


def test_all_is_in_the_store_at_the_end(
    tmp_path: Path, s3_proxy: Proxy, monkeypatch: pytest.MonkeyPatch, capsysbinary: pytest.CaptureFixture[bytes]
) -> None:
    """Several segments of each file make it again; `ringtrain logs` prints it where no volume has it."""
    monkeypatch.setattr(shipping, "SEGMENT_BYTES", 1000)
    uri = f"s3://{BUCKET}/logs/whole"
    store = _store(tmp_path)
    _write(store, 0, 1, [f"line {n}" for n in range(300)])
    _write(store, 1, 1, ["other"])
    store.files.outcome.write_text("{}")
    assert _ship(uri, store).finish(60) is None
    store.close()
    for path in (store.files.job_log, store.files.rank_log(0), store.files.rank_log(1)):
        assert _read(uri, path.name) == path.read_bytes()
    assert _read(uri, "rank-0000.log", tail=2) == b"line 298\nline 299\n"
    assert _read(uri, "rank-0000.log", tail=0) == b""
    assert shipped_attempts(ObjectStore(uri)) == [1]
    _in_a_pod_without_files(monkeypatch, uri, tmp_path)
    found = CliRunner().invoke(main, ["logs", "--rank", "1"])
    assert (found.exit_code, found.stdout_bytes) == (0, b"other\n")
    missing = CliRunner().invoke(main, ["logs", "--rank", "1", "--attempt", "7"])
    assert missing.exit_code == 1
    assert "it has logs of attempts 1" in missing.output


def test_logs_wait_for_credentials(
    tmp_path: Path, s3: Server, s3_proxy: Proxy, caplog: pytest.LogCaptureFixture
) -> None:
    """The log contains the reason why they are not uploaded; nothing is lost, and all files are uploaded later."""
    uri = f"s3://{BUCKET}/logs/denied"
    store = _store(tmp_path)
    _write(store, 0, 1, ["first"])
    s3.check_credentials(True)
    try:
        with caplog.at_level(logging.INFO, logger="ringtrain_job.logs.shipping"):
            running = _ship(uri, store)
            until("the problem", lambda: running.problem)
            assert "does not accept these credentials" in caplog.text
            assert running.pending_bytes == sum(store.sizes().values()) > 0
            assert running.finish(0.2)
            assert f"{running.pending_bytes} bytes of logs were not uploaded to {uri}" in caplog.text
            s3.check_credentials(False)
            assert running.finish(60) is None
    finally:
        s3.check_credentials(False)
    assert "uploading logs to" in caplog.text
    assert _read(uri, "rank-0000.log") == b"first\n"
    store.close()


def test_a_connection_that_is_cut_loses_nothing(tmp_path: Path, s3_proxy: Proxy) -> None:
    """An upload that was interrupted is repeated."""
    uri = f"s3://{BUCKET}/logs/cut"
    store = _store(tmp_path)
    _write(store, 0, 1, ["x" * 99] * 2000)
    s3_proxy.cut_after, s3_proxy.cuts = 50_000, 2
    assert _ship(uri, store).finish(60) is None
    assert s3_proxy.cuts == 0
    assert _read(uri, "rank-0000.log") == store.files.rank_log(0).read_bytes()
    store.close()


@pytest.mark.parametrize("volume", ["kept", "lost"])
def test_another_launcher_goes_on(tmp_path: Path, volume: str) -> None:
    """With the files of the previous launcher it appends to that one's uploads; without them it uses another folder."""
    uri = f"file://{tmp_path}/store"
    first = _store(tmp_path / "logs")
    _write(first, 0, 1, ["one"])
    assert _ship(uri, first).finish(60) is None
    first.close()
    second = _store(tmp_path / ("logs" if volume == "kept" else "others"))
    _write(second, 0, 2, ["two"])
    assert _ship(uri, second).finish(60) is None
    shipped = _read(uri, "rank-0000.log")
    second.close()
    lost = b"" if volume == "kept" else b"[ringtrain] lines 1 to 1 of rank 0 are missing: "
    assert shipped.startswith(b"one\n" + lost)
    assert shipped.endswith(b"two\n")
    assert shipped.count(b"\n") == (2 if volume == "kept" else 3)


def test_two_launchers_that_know_nothing_of_each_other_share_no_folder(tmp_path: Path) -> None:
    """A launcher that was disconnected continues at the same time as its successor; neither overwrites the other's
    files."""
    uri = f"file://{tmp_path}/store"
    stores = [_store(tmp_path / name) for name in ("cut-off", "successor")]
    folders = []
    for number, store in enumerate(stores):
        _write(store, 0, 1, [f"of {number}"])
        running = _ship(uri, store)
        if number == 0:  # it has chosen its folder, and nothing is in the store yet
            until("a folder", store.files.shipping.exists)
        assert running.finish(60) is None
        folders.append(json.loads(store.files.shipping.read_text())["folder"])
        store.close()
    assert folders[0] != folders[1]
    assert sorted(_read(uri, "rank-0000.log").splitlines()) == [b"of 0", b"of 1"]


def test_what_a_disk_has_lost_is_not_shipped_as_something_else(tmp_path: Path) -> None:
    """The store has a line that the disk has not: it stays, and what comes now follows it, once."""
    uri = f"file://{tmp_path}/store"
    first = _store(tmp_path / "logs")
    _write(first, 0, 1, ["one"])
    journal = first.files.journal.read_bytes()
    _write(first, 0, 2, ["two"])
    assert _ship(uri, first).finish(60) is None
    first.close()
    first.files.journal.write_bytes(journal)
    second = _store(tmp_path / "logs")
    running = _ship(uri, second)
    _write(second, 0, 2, ["two, which its agent has kept", "three"])
    assert running.finish(60) is None
    second.close()
    assert _read(uri, "rank-0000.log") == b"one\ntwo\ntwo, which its agent has kept\nthree\n"


def test_bytes_that_the_store_has_lost_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A log with a hole does not read as a short one; overlapping segments are one text."""
    monkeypatch.setattr(shipping, "SEGMENT_BYTES", 10)
    uri = f"file://{tmp_path}/store"
    store = _store(tmp_path / "logs")
    _write(store, 0, 1, [f"line {n:04d}" for n in range(5)])
    assert _ship(uri, store).finish(60) is None
    store.close()
    (middle,) = (tmp_path / "store").glob("*/*/rank-0000.log/000000000020-000000000030")
    middle.with_name("000000000015-000000000025").write_bytes(b"0001\nline ")
    assert _read(uri, "rank-0000.log") == store.files.rank_log(0).read_bytes()
    middle.unlink()
    found = _read(uri, "rank-0000.log").decode()
    assert "[ringtrain] bytes 25 to 30 of rank-0000.log are missing in the object store\n" in found
    assert found.endswith("line 0003\nline 0004\n")


def test_a_problem_that_nobody_foresaw_does_not_look_like_the_end(tmp_path: Path) -> None:
    """The log contains the traceback, and the number of bytes that are left is known."""
    store = _store(tmp_path / "logs")
    _write(store, 0, 1, ["one"])
    answers = iter([None, RuntimeError("unforeseen")])

    def sizes() -> Mapping[Path, int]:
        if error := next(answers, None):
            raise error
        return store.sizes()

    running = LogShipping(f"file://{tmp_path}/store", store.files, 1, sizes)
    until("the problem", lambda: running.problem)
    assert running.problem == "unforeseen"
    assert running.finish(60) is None
    assert running.state().document() == {
        "uri": f"file://{tmp_path}/store", "pendingBytes": 0, "problem": None, "since": None
    }  # fmt: skip
    store.close()


def test_reports_and_ranks_that_wrote_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`--reports` prints reports, not lines; a rank without a line has an empty log; another has none."""
    uri = f"file://{tmp_path}/store"
    store = _store(tmp_path / "logs")
    _write(store, 0, 1, ["line"])
    store.append(LogChunk(LogStream.REPORT, 0, 1, 1, b'{"time": 1.0, "step": 4}\n'))
    assert _ship(uri, store).finish(60) is None
    store.close()
    _in_a_pod_without_files(monkeypatch, uri, tmp_path)
    assert json.loads(CliRunner().invoke(main, ["logs", "--reports"]).stdout)["step"] == 4
    followed = CliRunner().invoke(main, ["logs", "--follow"])
    assert (followed.exit_code, followed.stdout) == (0, "[0] line\n")
    assert "no launcher is running here" in followed.stderr
    assert CliRunner().invoke(main, ["logs", "--rank", "2"]).stdout == ""
    assert CliRunner().invoke(main, ["logs", "--rank", "3"]).exit_code == 1


def test_no_line_of_a_write_under_way_is_shipped(tmp_path: Path) -> None:
    """Sizes are those of whole writes."""
    store = _store(tmp_path)
    _write(store, 0, 1, ["one"])
    assert {path.name: size for path, size in store.sizes().items()} == {"job.log": 8, "rank-0000.log": 4}
    store.close()
