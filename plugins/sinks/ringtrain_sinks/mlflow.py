"""MLflow sink: each attempt becomes a run. MLFLOW_* variables configure the server and the user."""

import logging
import os
from collections.abc import Mapping
from typing import Any, Final

from mlflow.entities import Metric, Param, RunTag
from mlflow.tracking import MlflowClient

from ringtrain_sinks.base import SinkAttempt
from ringtrain_sinks.means import MeansSink, plain_sink_metric_name

# Limits of MLflow's REST API on values, parameters and tags per request, and a limit on queued steps.
_MOST_METRICS: Final = 1000
_MOST_OTHERS: Final = 100
_MOST_HELD: Final = 20_000
_LONGEST: Final = 5000
# Its retries delay only this process, whose final step has a limit of ten seconds.
_DEFAULTS: Final = {
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "5",
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1",
    "MLFLOW_DISABLE_TELEMETRY": "true",
}
_KEY: Final = "ringtrain.run"
_STATES: Final = {"Succeeded": "FINISHED", "Failed": "FAILED"}


def open_sink(attempt: SinkAttempt) -> "MlflowSink":
    """Return an MLflow sink for `attempt`. The experiment is MLFLOW_EXPERIMENT_NAME, by default "ringtrain"."""
    for name, value in _DEFAULTS.items():
        os.environ.setdefault(name, value)
    for library in ("urllib3", "mlflow", "alembic"):  # the feed logs failures once
        logging.getLogger(library).setLevel(logging.ERROR)
    return MlflowSink(attempt)


class MlflowSink(MeansSink):
    """Sink that sends means over ranks as metrics, values of `rt.report_config` as parameters, and the outcome as
    status."""

    def __init__(self, attempt: SinkAttempt) -> None:
        super().__init__(attempt, _MOST_HELD)
        self._sent: dict[str, str] = {}
        self._run = ""

    def flush(self, about: Mapping[str, Any]) -> None:
        """Send completed steps, and new settings in `about`, to MLflow in batches."""
        client, run = MlflowClient(), self._run_id()
        self._send_description(client, run, about)
        while self._points:
            metrics, steps = list[Metric](), 0
            for point in self._points:
                if steps and len(metrics) + len(point.values) > _MOST_METRICS:
                    break
                at = int(point.time * 1000)
                metrics += [Metric(name, value, at, point.step) for name, value in point.values.items()]
                steps += 1
            client.log_batch(run, metrics=metrics[:_MOST_METRICS])
            for _ in range(steps):
                self._points.popleft()

    def _send_description(self, client: MlflowClient, run: str, about: Mapping[str, Any]) -> None:
        """Send those parameters and tags in `about` that are new. MLflow never changes a parameter once it is set."""
        config = about.get("config") or {}
        params = {plain_sink_metric_name(name): str(value)[:_LONGEST] for name, value in config.items()}
        new = {name: value for name, value in params.items() if f"param {name}" not in self._sent}
        tags = {f"ringtrain.{name}": str(about[name]) for name in ("image", "imageID", "commit") if name in about}
        if "command" in about:
            tags["ringtrain.command"] = " ".join(about["command"])
        others = {name: text[:_LONGEST] for name, text in tags.items() if self._sent.get(name) != text}
        items = list(new.items())
        for begin in range(0, len(items), _MOST_OTHERS):
            client.log_batch(run, params=[Param(*pair) for pair in items[begin : begin + _MOST_OTHERS]])
        if others:
            client.log_batch(run, tags=[RunTag(*pair) for pair in others.items()])
        self._sent |= {f"param {name}": value for name, value in new.items()} | tags

    def _run_id(self) -> str:
        """Return the ID of the attempt's MLflow run. If an earlier launcher has not created one, create it."""
        if self._run:
            return self._run
        client, attempt = MlflowClient(), self._attempt
        name = os.environ.get("MLFLOW_EXPERIMENT_NAME") or "ringtrain"
        experiment = client.get_experiment_by_name(name)
        where = experiment.experiment_id if experiment is not None else client.create_experiment(name)
        found = client.search_runs([where], f"tags.`{_KEY}` = '{attempt.key}'", max_results=1)
        if not found:
            tags = {_KEY: attempt.key, "ringtrain.job": f"{attempt.namespace}/{attempt.job}"}
            tags |= {"ringtrain.attempt": str(attempt.number)}
            began = int(attempt.began * 1000) or None
            title = f"{attempt.job} {attempt.number}"
            found = [client.create_run(where, start_time=began, tags=tags, run_name=title)]
        self._run = str(found[0].info.run_id)
        return self._run

    def end(self, outcome: str, failure: str) -> None:
        """Send the remaining steps and the run's final status. With an unknown outcome, the run stays RUNNING."""
        self._points.extend(self._means.rest())
        self.flush({})
        client, run = MlflowClient(), self._run_id()
        if failure:
            client.set_tag(run, "ringtrain.failure", failure[:_LONGEST])
        if outcome != "Unknown":
            client.set_terminated(run, _STATES.get(outcome, "KILLED"))
