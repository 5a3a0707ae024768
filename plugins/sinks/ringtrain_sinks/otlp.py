"""Spans and log records sent by OpenTelemetry's SDK over OTLP/gRPC. Imported only if enabled, as it needs an extra."""

import logging
import os
import time
from collections.abc import Mapping
from typing import Any

from opentelemetry import trace
from opentelemetry._logs import LogRecord, SeverityNumber
from opentelemetry.exporter.otlp.proto.grpc._log_exporter import OTLPLogExporter
from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk._logs import LoggerProvider
from opentelemetry.sdk._logs.export import BatchLogRecordProcessor
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor

# The SDK logs a line for each record that its full queue drops. We count them and log the number once.
logging.getLogger("opentelemetry.sdk").setLevel(logging.CRITICAL)


def otlp_resource(attributes: Mapping[str, Any]) -> Any:
    """Return the OpenTelemetry resource of this process, with `attributes`. Its `service.name` is ringtrain unless
    OTEL_SERVICE_NAME or OTEL_RESOURCE_ATTRIBUTES set another."""
    others = os.environ.get("OTEL_RESOURCE_ATTRIBUTES", "")
    named = os.environ.get("OTEL_SERVICE_NAME") or "service.name=" in others
    return Resource.create({**({} if named else {"service.name": "ringtrain"}), **attributes})


class _OtlpSent:
    """Counters of the records passed to the SDK, and of those that the receiver has accepted."""

    def __init__(self) -> None:
        self.given = 0
        self._accepted = 0

    @property
    def lost(self) -> int:
        """Number of records that the receiver has not accepted."""
        return self.given - self._accepted

    def counting(self, exporter: Any) -> Any:
        """Make `exporter` count the records that the receiver accepts; return `exporter`."""
        export = exporter.export

        def counted(batch: Any) -> Any:
            result = export(batch)
            if result.name == "SUCCESS":
                self._accepted += len(batch)
            return result

        exporter.export = counted
        return exporter


class OtlpSpans(_OtlpSent):
    """Factory of spans that are exported over OTLP. `about`: OpenTelemetry resource, which describes this process."""

    def __init__(self, about: Any) -> None:
        super().__init__()
        self._provider = TracerProvider(resource=about, shutdown_on_exit=False)
        self._provider.add_span_processor(BatchSpanProcessor(self.counting(OTLPSpanExporter())))
        self._tracer = self._provider.get_tracer("ringtrain")

    def start(self, name: str, parent: Any, attributes: dict[str, Any], began: float | None = None) -> Any:
        """Return a new span; the caller must end it. `began`: seconds since the epoch; default: now."""
        context = None if parent is None else trace.set_span_in_context(parent)
        start = None if began is None else int(began * 1e9)
        span = self._tracer.start_span(name, context, attributes=attributes, start_time=start)
        self.given += span.is_recording()  # not the spans that OTEL_TRACES_SAMPLER omits
        return span

    def fail(self, span: Any, message: str) -> None:
        """Mark `span` as failed."""
        span.set_status(trace.Status(trace.StatusCode.ERROR, message))

    def close(self) -> None:
        """Send the remaining spans. Blocks as long as the SDK waits for the receiver."""
        self._provider.shutdown()


class OtlpLogLines(_OtlpSent):
    """Factory of log records that are exported over OTLP."""

    def __init__(self, about: Any) -> None:
        super().__init__()
        self._provider = LoggerProvider(resource=about, shutdown_on_exit=False)
        self._provider.add_log_record_processor(BatchLogRecordProcessor(self.counting(OTLPLogExporter())))
        self._logger = self._provider.get_logger("ringtrain")

    def emit(self, text: str, attributes: dict[str, Any], span: Any) -> None:
        """Send one log line as a record, in the trace of `span` if that is not None."""
        self.given += 1
        now = time.time_ns()
        record = LogRecord(
            timestamp=now,
            observed_timestamp=now,
            context=None if span is None else trace.set_span_in_context(span),
            severity_number=SeverityNumber.INFO,
            body=text,
            attributes=attributes,
        )
        self._logger.emit(record)

    def close(self) -> None:
        """Send the remaining log records. Blocks as long as the SDK waits for the receiver."""
        self._provider.shutdown()
