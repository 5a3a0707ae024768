"""A rank's output, whatever it is, stops no other line and changes no verdict: from the pipe to all views of the
job."""

import json
import os
import time
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families
from support.deadlines import patient
from support.lines import TEXTS, report_lines
from support.small_job import environment

from ringtrain.shared.gen import coordinator_pb2 as pb
from ringtrain.shared.messages import from_message, message_fields
from ringtrain_job.agent.spool import LogSpool
from ringtrain_job.control.model import Failure, Outcome, RankPhase, RankState, Reason, Verdict
from ringtrain_job.control.termination import termination_message
from ringtrain_job.launcher.config import LauncherConfig
from ringtrain_job.launcher.console import Console
from ringtrain_job.launcher.gang import Gang
from ringtrain_job.launcher.http import StatusServer
from ringtrain_job.launcher.observers import Observers
from ringtrain_job.launcher.progress import ConsoleObserver
from ringtrain_job.launcher.service import CoordinatorService
from ringtrain_job.launcher.status import LauncherReports, StatusSnapshot
from ringtrain_job.launcher.verdict import lost_peer
from ringtrain_job.logs.journal import LogStream, recover_journal
from ringtrain_job.logs.layout import AttemptFiles
from ringtrain_job.logs.records import LogRecordSplitter, count_records, last_record_lines
from ringtrain_job.logs.reports import BadReport, parse_report
from ringtrain_job.logs.store import LogStore

CONFIG = LauncherConfig.from_env(environment(2))
GOOD = b'{"step": 3, "time": 1730000000.0, "loss": 0.5}\n'
UNLIMITED = settings(max_examples=80)

HOSTILE = [
    b'{"step":2,"time":2,"loss":1' + b"0" * 400 + b"}",
    b'{"step":2,"time":2,"metrics":{"a":-1' + b"0" * 400 + b"}}",
    b'{"step":2,"time":1' + b"0" * 400 + b"}",
    b'{"step":2,"time":2,"loss":' + b"9" * 5000 + b"}",
    b'{"step":2,"time":2,"unit":"\\ud800"}',
    b'{"step":2,"time":2,"unit":"\\u0000\\n\\u001b[2J"}',
    b'{"step":2,"time":2,"metrics":{"\\ud800":1}}',
    b'{"step":2,"time":2,"loss":1.7e308,"samples":1.7e308}',
    b'{"step":2,"time":1e308,"samples":9e18}',
    b'{"step":2,"time":5e-324,"samples":9e18}',
    b'{"step":2,"step":[],"time":2}',
    b'{"step":2,"time":2,"more":' + b"[" * 900 + b"]" * 900 + b"}",
    b'{"step":' + b"[" * 20_000 + b"]" * 20_000 + b"}",
    b'{"step":2,"time":2,"rank":"x","attempt":[]}',
    b'{"step":2,"time":2,"metrics":{' + b",".join(b'"m%d":%d' % (n, n) for n in range(3000)) + b"}}",
    b'{"step":2,"time":2,"unit":"' + b"u" * (1 << 20) + b'"}',
    b"\xff\xfe{\x00",
    b"\x00" * 100,
]


@pytest.mark.parametrize("line", HOSTILE, ids=lambda line: repr(line[:60]))
def test_a_report_line(line: bytes) -> None:
    """Other ranks' logs and reports continue, and all views of the job contain the report."""
    _a_line_stops_nothing(line)


@pytest.mark.slow
@settings(UNLIMITED, max_examples=15)
@given(line=report_lines())
def test_any_report_line(line: bytes) -> None:
    """The same is true for arbitrary lines."""
    _a_line_stops_nothing(line)


@UNLIMITED
@given(line=st.one_of(report_lines(), st.binary(max_size=200)))
def test_a_report_or_none(line: bytes) -> None:
    """Reading a line ends in a report that is strict JSON in UTF-8, or in BadReport."""
    try:
        report = parse_report(line)
    except BadReport:
        return
    json.dumps(report, allow_nan=False, ensure_ascii=False).encode()
    assert parse_report(json.dumps(report).encode()) == report
    assert 0 <= report["step"] < 2**63


@UNLIMITED
@given(pieces=st.lists(st.binary(max_size=40) | st.sampled_from([b"\r", b"\n", b"\r\n", b"x" * 70_000]), max_size=20))
def test_the_bytes_of_a_log_are_kept(pieces: Sequence[bytes]) -> None:
    """For any split of a rank's output, the joined records in the spool are that output."""
    splitter, spool = LogRecordSplitter(), LogSpool()
    for piece in pieces:
        spool.put(LogStream.LOG, 0, splitter.feed(piece))
    spool.put(LogStream.LOG, 0, splitter.flush())
    chunks = spool.take(1 << 30, 0)
    assert b"".join(chunk.data for chunk in chunks) == b"".join(pieces)
    spool.close()


@UNLIMITED
@given(lines=st.lists(TEXTS, max_size=5), end=st.binary(max_size=300))
def test_the_end_of_a_log_travels(lines: list[str], end: bytes) -> None:
    """A failed rank's last lines and its failure reach the launcher and return unchanged, whatever bytes they
    contain."""
    tail = (*last_record_lines(end), *lines)
    state = RankState(1, RankPhase.FAILED, 3, log_tail=tail, message="".join(lines))
    there = from_message(RankState, pb.RankState.FromString(pb.RankState(**message_fields(state)).SerializeToString()))
    assert (there.rank, there.exit_code, len(there.log_tail)) == (1, 3, len(tail))
    lost_peer(tail, 0)
    failure = Failure(Reason.RANK_FAILED, "".join(lines), 1, log_tail=tail)
    verdict = Verdict(Outcome.FAILED, 3, 0, failure)
    back = from_message(Verdict, pb.Verdict.FromString(pb.Verdict(**message_fields(verdict)).SerializeToString()))
    assert back.exit_code == 3
    message = termination_message(verdict, 1, 2)
    assert len(message) <= 4096
    assert json.loads(message)["failure"]["rank"] == 1


@UNLIMITED
@example(data=b"[" * 100_000 + b"\n")
@example(data=b'{"uid": ' + b"[" * 100_000 + b"\n")
@given(data=st.binary(max_size=300))
def test_any_journal(data: bytes) -> None:
    """A file that is not a journal causes no error."""
    recover_journal(data)
    recover_journal(b'{"version": 1, "uid": "u"}\n' + data)


def test_many_metrics_do_not_take_the_place_of_the_cause() -> None:
    """A message that is too long loses metrics before it loses the failed rank's last lines."""
    failure = Failure(Reason.RANK_FAILED, "rank 0 exited with 1", 0, log_tail=("ValueError: the cause",))
    progress = {"step": 1, "metrics": {f"metric-{n}": float(n) for n in range(400)}}
    message = json.loads(termination_message(Verdict(Outcome.FAILED, 1, 0, failure), 1, 1, progress))
    assert message["failure"]["logTail"] == ["ValueError: the cause"]
    assert message["progress"]["step"] == 1


def _a_line_stops_nothing(line: bytes) -> None:
    read, write = os.pipe()
    os.set_blocking(read, False)
    with TemporaryDirectory() as directory:
        snapshot, console = _launcher(Path(directory), write)
        service = CoordinatorService(snapshot.gang, snapshot.store, 1)
        service.close()
        sent = _send(service, 0, line + b"\n" + GOOD, b"before\n") + _send(service, 1, GOOD, b"after\n")
        assert sent == ["REPORT", "LOG"] * 2
        assert snapshot.store.files.job_log.read_bytes() == b"[0] before\n[1] after\n"
        rows = [json.loads(row, parse_constant=pytest.fail) for row in snapshot.store.files.metrics.open("rb")]
        assert [row["rank"] for row in rows if row["time"] == 1730000000.0 and row["step"] == 3] == [0, 1]
        _everything_is_shown(snapshot, console)
        snapshot.store.close()
        again = _launcher(Path(directory), write)[0]
        assert again.status()["ranks"] == snapshot.status()["ranks"]
        again.store.close()
    os.close(write)
    while os.read(read, 1 << 20):
        pass
    os.close(read)


def _launcher(directory: Path, console: int) -> tuple[StatusSnapshot, Console]:
    store = LogStore(AttemptFiles.of(directory, "default", "digits", 1), "uid-1", 1)
    snapshot = StatusSnapshot(CONFIG, Gang(CONFIG, time.monotonic), store, LauncherReports(2))
    shown = Console(console)
    snapshot.observers = Observers([ConsoleObserver(snapshot, shown)])
    snapshot.follow()
    return snapshot, shown


def _send(service: CoordinatorService, rank: int, reports: bytes, log: bytes) -> list[str]:
    """Send both through a spool as an agent does; returns the kinds that became durable whole."""
    spool = LogSpool()
    spool.put(LogStream.REPORT, rank, reports)
    spool.put(LogStream.LOG, rank, log)
    request = pb.AppendRequest(attempt=1, worker_index=rank)
    for chunk in spool.take(1 << 30, 0):
        request.chunks.add(kind=int(chunk.stream), rank=rank, first=1, lines=chunk.lines, data=chunk.data)
    reply = service.append(pb.AppendRequest.FromString(request.SerializeToString()))
    assert [durable.last for durable in reply.durable] == [count_records(reports), count_records(log)]
    return [pb.Chunk.Kind.Name(durable.kind) for durable in reply.durable]


def _everything_is_shown(snapshot: StatusSnapshot, console: Console) -> None:
    snapshot.observers.ended(Verdict(Outcome.SUCCEEDED, 0, 2))
    console.close(10.0)
    with closing(StatusServer(0, snapshot.status, snapshot.brief_status, lambda: True, everywhere=False)) as server:
        status = json.loads(_get(server.port, "/status"), parse_constant=pytest.fail)
        assert list(text_string_to_metric_families(_get(server.port, "/metrics")))
    assert status["progress"]["step"] >= 2
    json.dumps(status, ensure_ascii=False).encode()
    message = termination_message(Verdict(Outcome.SUCCEEDED, 0, 2), 1, 2, snapshot.progress())
    assert len(message) <= 4096
    told: dict[str, Any] = json.loads(message, parse_constant=pytest.fail)
    assert (told["outcome"], told["ranksSucceeded"]) == ("Succeeded", 2)


def _get(port: int, path: str) -> str:
    import urllib.request

    with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=patient(10)) as answer:
        return str(answer.read().decode())
