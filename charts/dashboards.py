"""The dashboards of the chart, as JSON that Grafana reads. `charts/generate.py` writes them."""

import json
import string
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

Json = dict[str, Any]
SOURCE = {"type": "prometheus", "uid": "${datasource}"}
COLUMNS = 24
HEIGHTS = {"stat": 4, "timeseries": 8}
WIDTHS = {"stat": 4, "timeseries": 8}
RATE = "[$__rate_interval]"
BY_JOB = "by (job_namespace, job_name)"
JOBS = 'job_namespace=~"$namespace"'
JOB = 'job_namespace="$namespace",job_name="$job"'
OWN_WORK = f'{JOB},part!="reduction"'
NAME = "{{job_namespace}}/{{job_name}}"
# Of an operator's own process; the same names are those of every program that Prometheus scrapes.
OURS = "and on (instance, job) ringtrain_operator_build_info"


@dataclass(frozen=True)
class Panel:
    """One panel: its queries, each with the legend of its series. `text`: what a reader has to know of it."""

    title: str
    queries: Sequence[tuple[str, str]]
    unit: str = "short"
    kind: str = "timeseries"
    text: str = ""


@dataclass(frozen=True)
class Dashboard:
    """A page of panels. `variables`: label by the name of the variable that chooses it, and whether all may be."""

    uid: str
    title: str
    panels: Sequence[Panel]
    variables: Sequence[tuple[str, str, bool]] = ()


def stat(title: str, expression: str, unit: str = "short", legend: str = "", text: str = "") -> Panel:
    """A panel with one large number."""
    return Panel(title, [(expression, legend)], unit, "stat", text)


def quantiles(bucket: str, window: str) -> list[tuple[str, str]]:
    """The median and the 99th percentile of a histogram."""
    of = f"sum by (le) (rate({bucket}{window}))"
    return [(f"histogram_quantile({part}, {of})", name) for part, name in (("0.5", "median"), ("0.99", "p99"))]


OPERATOR = Dashboard(
    "ringtrain-operator",
    "Ringtrain / Operator",
    [
        stat("Operators", "count(ringtrain_operator_build_info)"),
        stat("Leaders", "sum(ringtrain_leader)", text="0 where leader election is off."),
        stat("Jobs that run", 'sum(ringtrain_jobs{state="Running"})'),
        stat("Jobs that wait to be reconciled", "sum(ringtrain_queue_depth)"),
        stat("Failed attempts", "sum(increase(ringtrain_job_failures_total[$__range]))"),
        stat("Version", "ringtrain_operator_build_info", legend="{{version}}, Python {{python}}"),
        Panel("Jobs by state", [("sum by (state) (ringtrain_jobs)", "{{state}}")]),
        Panel("Reconciles", [(f"sum by (result) (rate(ringtrain_reconciles_total{RATE}))", "{{result}}")], "ops"),
        Panel("Duration of a reconcile", quantiles("ringtrain_reconcile_duration_seconds_bucket", RATE), "s"),
        Panel("Queue", [("sum by (instance) (ringtrain_queue_depth)", "{{instance}}")]),
        Panel(
            "From creation to running",
            quantiles("ringtrain_job_time_to_running_seconds_bucket", "[$__range]"),
            "s",
            text="Of the jobs that began to run in the whole time that is shown.",
        ),
        Panel(
            "Restarts",
            [(f"sum by (counted) (increase(ringtrain_job_restarts_total{RATE}))", "counted: {{counted}}")],
            text="`counted`: against backoffLimit; others were made good for disruptions.",
        ),
        Panel(
            "Failed attempts by reason",
            [(f"sum by (reason) (increase(ringtrain_job_failures_total{RATE}))", "{{reason}}")],
        ),
        Panel(
            "Elastic jobs",
            [
                (f"sum(increase(ringtrain_job_{name}_total{RATE}))", name.replace("_", " "))
                for name in ("workers_lost", "recoveries", "steps_lost", "formations")
            ],
        ),
        Panel(
            "Data workers and evaluators",
            [
                (f"sum(increase(ringtrain_job_{name}_total{RATE}))", name.replace("_", " "))
                for name in ("data_workers_lost", "input_stalls", "evaluator_failures")
            ],
        ),
        Panel("Memory", [(f"process_resident_memory_bytes {OURS}", "{{instance}}")], "bytes"),
        Panel("CPU", [(f"rate(process_cpu_seconds_total{RATE}) {OURS}", "{{instance}}")]),
        Panel("Open files", [(f"process_open_fds {OURS}", "{{instance}}")]),
    ],
)

ALL_JOBS = Dashboard(
    "ringtrain-jobs",
    "Ringtrain / All jobs",
    [
        stat("Jobs with a launcher", f"count(count {BY_JOB} (ringtrain_phase{{{JOBS}}}))"),
        stat("Gangs that run", f'sum(ringtrain_phase{{{JOBS},phase="Running"}})'),
        stat("Gangs that wait for agents", f'sum(ringtrain_phase{{{JOBS},phase="Waiting"}})'),
        stat("Ranks that run", f'sum(ringtrain_ranks{{{JOBS},state="Running"}})'),
        stat("Log lines dropped", f"sum(increase(ringtrain_log_lines_dropped_total{{{JOBS}}}[$__range]))"),
        stat("Attempts beyond the first", f"sum(ringtrain_job_attempt{{{JOBS}}} - 1)"),
        Panel(
            "Progress",
            [(f"max {BY_JOB} (ringtrain_step{{{JOBS}}} / ringtrain_total_steps{{{JOBS}}})", NAME)],
            "percentunit",
        ),
        Panel("Samples per second", [(f"sum {BY_JOB} (rate(ringtrain_samples_total{{{JOBS}}}{RATE}))", NAME)]),
        Panel("Loss", [(f"max {BY_JOB} (ringtrain_loss{{{JOBS}}})", NAME)]),
        Panel(
            "Since the last report",
            [(f"time() - max {BY_JOB} (ringtrain_last_progress_timestamp_seconds{{{JOBS}}})", NAME)],
            "s",
        ),
        Panel(
            "Slowest rank behind the fastest",
            [(f"max {BY_JOB} (ringtrain_lag_seconds{{{JOBS}}})", NAME)],
            "s",
            text="By the clocks of the ranks' hosts.",
        ),
        Panel(
            "Wait for input",
            [(f"max {BY_JOB} (ringtrain_input_wait_ratio{{{JOBS}}})", NAME)],
            "percentunit",
            text="Jobs with data workers.",
        ),
        Panel(
            "Straggler",
            [(f"max {BY_JOB} (ringtrain_straggler_ratio{{{JOBS}}})", NAME)],
            "percentunit",
            text="How much longer the rank that works longest does than the others, as a part of a step.",
        ),
        Panel("Attempt", [(f"max {BY_JOB} (ringtrain_job_attempt{{{JOBS}}})", NAME)]),
        Panel("Ranks by state", [(f"sum by (state) (ringtrain_ranks{{{JOBS}}})", "{{state}}")]),
        Panel("World size", [(f"max {BY_JOB} (ringtrain_world_size{{{JOBS}}})", NAME)]),
    ],
    [("namespace", "job_namespace", True)],
)

ONE_JOB = Dashboard(
    "ringtrain-job",
    "Ringtrain / Job",
    [
        stat("Phase", f"ringtrain_phase{{{JOB}}} == 1", legend="{{phase}}"),
        stat("Attempt", f"max(ringtrain_attempt{{{JOB}}})"),
        stat("Step", f"max(ringtrain_step{{{JOB}}})"),
        stat("Of steps", f"max(ringtrain_total_steps{{{JOB}}})"),
        stat(
            "Time left",
            f"(max(ringtrain_total_steps{{{JOB}}}) - max(ringtrain_step{{{JOB}}})) "
            f"/ max(deriv(ringtrain_step{{{JOB}}}{RATE}))",
            "s",
        ),
        stat("Running since", f"max(ringtrain_running_since_timestamp_seconds{{{JOB}}}) * 1000", "dateTimeFromNow"),
        Panel("Loss", [(f"max(ringtrain_loss{{{JOB}}})", "loss")]),
        Panel(
            "Samples per second",
            [
                (f"sum(rate(ringtrain_samples_total{{{JOB}}}{RATE}))", "now"),
                (f"max(ringtrain_samples_per_second{{{JOB}}})", "mean of the attempt"),
            ],
        ),
        Panel("What training code reports", [(f"max by (metric) (ringtrain_reported_value{{{JOB}}})", "{{metric}}")]),
        Panel("Steps per second", [(f"max(deriv(ringtrain_step{{{JOB}}}{RATE}))", "steps")]),
        Panel("Ranks by state", [(f"max by (state) (ringtrain_ranks{{{JOB}}})", "{{state}}")]),
        Panel(
            "Workers",
            [
                (f"max(ringtrain_workers{{{JOB}}})", "of the attempt"),
                (f"max(ringtrain_workers_registered{{{JOB}}})", "registered"),
                (f"max(ringtrain_data_workers_registered{{{JOB}}})", "data workers"),
            ],
        ),
        Panel(
            "Step of each rank",
            [(f"max by (rank) (ringtrain_rank_step{{{JOB}}})", "rank {{rank}}")],
            text="Jobs of up to 64 ranks.",
        ),
        Panel(
            "Behind the fastest rank",
            [
                (f"max by (rank) (ringtrain_rank_lag_seconds{{{JOB}}})", "rank {{rank}}"),
                (f"max(ringtrain_lag_seconds{{{JOB}}})", "slowest"),
            ],
            "s",
            text="How much later a rank reports a step, by the clocks of the ranks' hosts.",
        ),
        Panel(
            "Where a step's time goes",
            [(f"max by (part) (ringtrain_step_time_seconds{{{JOB}}})", "{{part}}")],
            "s",
            text="Mean of the ranks. Compute is what is neither of the others.",
        ),
        Panel(
            "Own work of each rank in a step",
            [
                (
                    f"sum by (rank) (max by (rank, part) (ringtrain_rank_step_time_seconds{{{OWN_WORK}}}))",
                    "rank {{rank}}",
                )
            ],
            "s",
            text="All but its wait for reductions: the others wait for the rank whose work takes longest.",
        ),
        Panel(
            "Wait for reductions",
            [
                (
                    f'max by (rank) (ringtrain_rank_step_time_seconds{{{JOB},part="reduction"}})',
                    "rank {{rank}}",
                ),
            ],
            "s",
            text="Of a step. The rank that the others wait for waits least.",
        ),
        Panel(
            "Wait for input",
            [
                (f"max by (rank) (ringtrain_rank_input_wait_ratio{{{JOB}}})", "rank {{rank}}"),
                (f"max(ringtrain_input_wait_ratio{{{JOB}}})", "all ranks"),
            ],
            "percentunit",
        ),
        Panel(
            "Log lines per second",
            [
                (f"sum(rate(ringtrain_log_lines_total{{{JOB}}}{RATE}))", "kept"),
                (f"sum(rate(ringtrain_log_lines_dropped_total{{{JOB}}}{RATE}))", "dropped"),
            ],
        ),
        Panel(
            "Log bytes not in the object store",
            [(f"max(ringtrain_log_unshipped_bytes{{{JOB}}})", "bytes")],
            "bytes",
        ),
        Panel(
            "Elastic: world",
            [
                (f"max(ringtrain_world_size{{{JOB}}})", "ranks"),
                (f"max(ringtrain_formation{{{JOB}}})", "formation"),
                (f"max(ringtrain_degraded{{{JOB}}})", "degraded"),
            ],
        ),
        Panel(
            "Elastic: losses",
            [
                (f"max(ringtrain_recoveries_total{{{JOB}}})", "recoveries"),
                (f"max(ringtrain_lost_steps_total{{{JOB}}})", "lost steps"),
                (f"max(ringtrain_last_recovery_seconds{{{JOB}}})", "seconds of the last recovery"),
            ],
        ),
    ],
    [("namespace", "job_namespace", False), ("job", "job_name", False)],
)

DASHBOARDS = {"operator": OPERATOR, "jobs": ALL_JOBS, "job": ONE_JOB}


def as_json(dashboard: Dashboard) -> str:
    """The dashboard as Grafana imports it."""
    model = {
        "uid": dashboard.uid,
        "title": dashboard.title,
        "tags": ["ringtrain"],
        "schemaVersion": 39,
        "editable": True,
        "refresh": "30s",
        "time": {"from": "now-1h", "to": "now"},
        "timezone": "browser",
        "templating": {"list": [_source(), *_variables(dashboard)]},
        "panels": list(_placed(dashboard.panels)),
    }
    return json.dumps(model, indent=1) + "\n"


def _source() -> Json:
    return {"name": "datasource", "label": "Data source", "type": "datasource", "query": "prometheus"}


def _variables(dashboard: Dashboard) -> Iterator[Json]:
    chosen = ""
    for name, label, may_be_all in dashboard.variables:
        query = f"label_values(ringtrain_phase{chosen and '{' + chosen + '}'}, {label})"
        yield {
            "name": name,
            "type": "query",
            "datasource": SOURCE,
            "query": {"query": query, "refId": name},
            "refresh": 2,
            "sort": 1,
            "includeAll": may_be_all,
            "allValue": ".*" if may_be_all else None,
            "multi": may_be_all,
        }
        chosen = f'{label}="${name}"'


def _placed(panels: Sequence[Panel]) -> Iterator[Json]:
    """Panels from left to right, in rows of one kind each."""
    x = y = height = 0
    for number, panel in enumerate(panels, 1):
        width = WIDTHS[panel.kind]
        if x + width > COLUMNS or (height and height != HEIGHTS[panel.kind]):
            x, y = 0, y + height
        height = HEIGHTS[panel.kind]
        yield {
            "id": number,
            "type": panel.kind,
            "title": panel.title,
            "description": panel.text,
            "datasource": SOURCE,
            "gridPos": {"x": x, "y": y, "w": width, "h": height},
            "fieldConfig": {"defaults": {"unit": panel.unit}, "overrides": []},
            "options": _options(panel),
            "targets": [
                {"refId": letter, "datasource": SOURCE, "expr": expression, "legendFormat": legend}
                for letter, (expression, legend) in zip(string.ascii_uppercase, panel.queries, strict=False)
            ],
        }
        x += width


def _options(panel: Panel) -> Json:
    if panel.kind == "stat":
        named = bool(panel.queries[0][1])
        return {"reduceOptions": {"calcs": ["lastNotNull"]}, "textMode": "name" if named else "value"}
    return {"legend": {"displayMode": "list", "placement": "bottom"}, "tooltip": {"mode": "multi"}}
