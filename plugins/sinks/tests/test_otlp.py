"""OpenTelemetry: what a real OTLP receiver (the gRPC services of opentelemetry-proto) is sent by a launcher."""

import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import pytest
from support.gang import GangProcesses, until
from support.ports import free_ports

pytest.importorskip("opentelemetry.exporter.otlp.proto.grpc")
from opentelemetry.proto.collector.logs.v1 import logs_service_pb2, logs_service_pb2_grpc
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2, trace_service_pb2_grpc

pytestmark = pytest.mark.slow
MakeGang = Callable[..., GangProcesses]
# Three steps. Rank FAILS fails at its end.
RANK = """
import os, time, ringtrain
for step in (1, 2, 3):
    print("step", step, flush=True)
    ringtrain.report(step, loss=step / 2)
    time.sleep(0.02)
raise SystemExit(3 if os.environ["RANK"] == os.environ.get("FAILS") else 0)
"""


class Receiver(trace_service_pb2_grpc.TraceServiceServicer, logs_service_pb2_grpc.LogsServiceServicer):
    """Keeps what it is sent. Requests of both services have the same name."""

    def __init__(self) -> None:
        self.spans: list[Any] = []
        self.records: list[Any] = []
        self.resources: list[dict[str, Any]] = []

    def Export(self, request: Any, context: Any) -> Any:
        if isinstance(request, trace_service_pb2.ExportTraceServiceRequest):
            for part in request.resource_spans:
                self.resources.append(attributes(part.resource))
                self.spans += [span for scope in part.scope_spans for span in scope.spans]
            return trace_service_pb2.ExportTraceServiceResponse()
        for part in request.resource_logs:
            self.resources.append(attributes(part.resource))
            self.records += [record for scope in part.scope_logs for record in scope.log_records]
        return logs_service_pb2.ExportLogsServiceResponse()


def attributes(of: Any) -> dict[str, Any]:
    """Attributes as values of Python."""
    return {one.key: getattr(one.value, one.value.WhichOneof("value")) for one in of.attributes}


@pytest.fixture
def receiver() -> Iterator[tuple[Receiver, int]]:
    """A receiver, and its port."""
    keeps, server = Receiver(), grpc.server(ThreadPoolExecutor(4))
    trace_service_pb2_grpc.add_TraceServiceServicer_to_server(keeps, server)
    logs_service_pb2_grpc.add_LogsServiceServicer_to_server(keeps, server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    yield keeps, port
    server.stop(None).wait()


def asked(port: int, signals: str = "traces,logs", **more: str) -> dict[str, str]:
    """The environment of a launcher that sends."""
    return {"RINGTRAIN_OTEL": signals, "OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{port}", **more}


def run(gang: MakeGang, **settings: str) -> tuple[GangProcesses, list[int]]:
    """A gang of two ranks, at its end, and the exit codes of launcher and agents."""
    job = gang(2, 1)
    pods = [job.launcher(**settings), *(job.agent(i, sys.executable, "-c", RANK, FAILS="1") for i in range(2))]
    return job, [pod.wait() for pod in pods]


def test_attempt_ranks_steps_and_lines_arrive(gang: MakeGang, receiver: tuple[Receiver, int]) -> None:
    """One trace: the attempt, below it each rank with its end, below that steps; and every line with its rank."""
    keeps, port = receiver
    job, codes = run(gang, **asked(port, OTEL_RESOURCE_ATTRIBUTES="team=vision"))
    assert codes[0] == 3, job.pods[0].err()
    spans = {span.name: span for span in keeps.spans}
    assert {"attempt 1", "rank 0", "rank 1"} <= set(spans)
    attempt = spans["attempt 1"]
    assert len({span.trace_id for span in keeps.spans}) == 1
    assert attempt.parent_span_id == b""
    assert attributes(attempt)["ringtrain.outcome"] == "Failed"
    assert attempt.status.message == "rank 1 exited with 3"
    for rank in (0, 1):
        assert spans[f"rank {rank}"].parent_span_id == attempt.span_id
        assert attributes(spans[f"rank {rank}"])["ringtrain.rank"] == rank
    assert attributes(spans["rank 1"])["ringtrain.exit_code"] == 3
    steps = [span for span in keeps.spans if span.name.startswith("step ")]
    assert {attributes(span)["ringtrain.rank"] for span in steps} == {0, 1}
    assert all(span.end_time_unix_nano > span.start_time_unix_nano for span in steps)
    lines = {(attributes(record)["ringtrain.rank"], record.body.string_value) for record in keeps.records}
    assert lines == {(rank, f"step {step}") for rank in (0, 1) for step in (1, 2, 3)}
    for resource in keeps.resources:
        assert resource["service.name"] == "ringtrain"
        assert (resource["ringtrain.job.name"], resource["ringtrain.attempt"]) == ("job", 1)
        assert resource["team"] == "vision"


@pytest.mark.parametrize(("signals", "records"), [("logs", 6), ("", 0)])
def test_what_is_not_asked_for_is_not_sent(
    gang: MakeGang, receiver: tuple[Receiver, int], signals: str, records: int
) -> None:
    """Only logs are sent; OTEL_* variables alone, which a whole cluster may set, enable nothing."""
    keeps, port = receiver
    run(gang, **asked(port, signals))
    assert (keeps.spans, len(keeps.records)) == ([], records)


def test_a_receiver_that_is_not_there_costs_nothing_but_its_data(gang: MakeGang) -> None:
    """The job ends normally with all its lines, and the launcher logs the number of lost records."""
    (nobody,) = free_ports(1)
    job, codes = run(gang, **asked(nobody))
    assert codes[0] == 3
    assert len(job.job_log()) == 6
    said = job.pods[0].err()
    assert "OpenTelemetry: 6 of 6 lines were not accepted by the receiver" in said
    assert "spans were not accepted by the receiver" in said


def test_a_receiver_that_does_not_answer_holds_nothing_up(gang: MakeGang, tmp_path: Path) -> None:
    """One that takes connections and answers nothing; the queue is full, and what it drops is counted."""
    silent, done = threading.Event(), threading.Event()

    class Silent(Receiver):
        def Export(self, request: Any, context: Any) -> Any:
            silent.set()
            done.wait(60)
            return logs_service_pb2.ExportLogsServiceResponse()

    server = grpc.server(ThreadPoolExecutor(4))
    logs_service_pb2_grpc.add_LogsServiceServicer_to_server(Silent(), server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    script = "import sys, time\nfor n in range(5000): print(n)\nsys.stdout.flush()\n"
    job = gang(1, 1)
    small = {"OTEL_BLRP_MAX_QUEUE_SIZE": "100", "OTEL_BLRP_MAX_EXPORT_BATCH_SIZE": "10"}
    launcher = job.launcher(**asked(port, "logs", **small))
    job.agent(0, sys.executable, "-c", script)
    try:
        assert launcher.wait() == 0
    finally:
        done.set()
        server.stop(None).wait()
    assert silent.is_set()
    assert len(job.job_log()) == 5000
    until("the loss is said", lambda: "of 5000 lines were not accepted by the receiver" in launcher.err())


NOT_SENT = {
    "signal": ({"RINGTRAIN_OTEL": "metrics"}, "RINGTRAIN_OTEL='metrics': expected traces, logs"),
    "protocol": ({"RINGTRAIN_OTEL": "logs", "OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf"}, "expected grpc, the only"),
    "not-installed": ({"RINGTRAIN_OTEL": "traces"}, "pip install 'ringtrain[otel]'"),
}


@pytest.mark.parametrize("case", NOT_SENT)
def test_what_cannot_be_sent_is_an_error(gang: MakeGang, tmp_path: Path, case: str) -> None:
    """The launcher ends with 64 before ranks start, and names the variable and the way out."""
    settings, message = NOT_SENT[case]
    if case == "not-installed":
        (tmp_path / "opentelemetry.py").write_text("raise ImportError('No module named opentelemetry')")
        settings = {**settings, "PYTHONPATH": str(tmp_path)}
    launcher = gang(1, 1).launcher(**settings)
    assert launcher.wait() == 64
    assert message in launcher.err()
