"""docs/reference/metrics.md and the code name the same metrics, types and labels."""

import re
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import Metric

from ringtrain_job.control.model import RankPhase
from ringtrain_job.launcher.metrics import PHASES, StatusCollector
from ringtrain_operator.cluster.metrics import OperatorMetrics
from ringtrain_operator.cluster.queue import JobKey

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "metrics.md"
JOB = frozenset({"job_namespace", "job_name"})
Found = dict[str, tuple[str, frozenset[str]]]
# A job that has everything that one can have.
STATUS: dict[str, Any] = {
    "namespace": "team",
    "job": "digits",
    "phase": "Running",
    "worldSize": 1,
    "attempt": 1,
    "workers": [{"registered": True}],
    "ranks": [{"rank": 0, "state": "Running", "step": 1, "lag": 0.0, "inputWait": 0.0, "stepTime": {"compute": 0.1}}],
    "stepTime": {"compute": 0.1},
    "longestWork": {"rank": 0, "seconds": 0.0, "part": 0.0},
    "progress": {"metrics": {"accuracy": 0.5}},
    "machines": [
        {
            "memory": 1.0,
            "limit": 2.0,
            "received": 1.0,
            "sent": 1.0,
            "disk_wait": 0.0,
            "ranks": {0: {"cpu": 1.0, "rss": 1.0}},
            "gpus": [{"busy": 0.5, "memory": 1.0, "limit": 2.0}],
        }
    ],
    "lastProgressTime": None,
    "logs": {"lines": 0, "dropped": 0, "shipping": {"pendingBytes": 0, "problem": None}},
    "data": {"registered": 1, "waitFraction": 0.0},
    "elastic": {"formation": 1, "recoveries": 0, "lostSteps": 0, "lastRecoverySeconds": None, "degraded": False},
}


def on_page(heading: str) -> Found:
    """Return the metrics in the table below a heading."""
    (section,) = re.findall(rf"^## {heading}.*?\n(.*?)(?=^## |\Z)", PAGE.read_text(), re.DOTALL | re.MULTILINE)
    rows = re.findall(r"^\| `(\w+)` \| (\w+) \|[^|]*\|([^|]*)\|", section, re.MULTILINE)
    return {name: (kind, frozenset(re.findall(r"`(\w+)`", labels))) for name, kind, labels in rows}


def in_code(families: list[Metric], everywhere: frozenset[str] = frozenset()) -> Found:
    """The same of what is exposed, without the labels that are `everywhere`."""
    found = {}
    for family in families:
        labels = {label for sample in family.samples for label in sample.labels} - {"le"}
        assert everywhere <= labels, family.name
        name = f"{family.name}_total" if family.type == "counter" else family.name
        found[name] = (family.type, frozenset(labels) - everywhere)
    return found


def operators() -> list[Metric]:
    """Everything that an operator can expose of its own."""
    metrics = OperatorMetrics()
    running = {"state": "Running", "attempt": 1, "dataWorkers": {"waitFraction": 0.5}}
    metrics.record_status(JobKey("team", "digits"), running)
    metrics.status_changed({}, {**running, "failure": {"reason": "RankFailed"}})
    return [family for family in metrics.registry.collect() if family.name.startswith("ringtrain_")]


def test_the_launchers_metrics() -> None:
    """Of a job with ranks, data workers and an elastic world."""
    assert on_page("The launcher") == in_code(list(StatusCollector(lambda: STATUS).collect()), JOB)


def test_as_many_series_as_the_page_says() -> None:
    """Of a job, of one that has everything, and more for each rank and for each value that it reports."""
    parts = {"input": 0.1, "compute": 0.1, "reduction": 0.1, "update": 0.1}
    everything = {**STATUS, "stepTime": parts, "ranks": [], "progress": {}}
    machine = {**STATUS["machines"][0], "ranks": {}}
    everything["machines"] = [machine]
    plain = {key: value for key, value in everything.items() if key not in ("data", "elastic")}
    plain |= {"logs": {"lines": 0, "dropped": 0}, "machines": [{**machine, "gpus": []}]}
    one = [{**machine, "gpus": [], "ranks": {0: {"cpu": 1.0, "rss": 1.0}}}]
    ranks = {**plain, "machines": one, "ranks": [{**STATUS["ranks"][0], "stepTime": parts}]}
    reporting = {**plain, "progress": {"metrics": {"accuracy": 0.5}}}
    least, most, of_rank, of_value = (series(status) for status in (plain, everything, ranks, reporting))
    text = " ".join(PAGE.parents[1].joinpath("observability.md").read_text().split())
    assert f"A job has {least} series, or {most} if it has data workers" in text
    assert (of_rank - least, of_value - least) == (9, 1)
    assert "has nine more series for each rank. Each name that the training code reports has one series" in text


def series(status: dict[str, Any]) -> int:
    """Return the number of a launcher's series for this status."""
    return sum(len(family.samples) for family in StatusCollector(lambda: status).collect())


def test_the_operators_metrics() -> None:
    """With a job that waits for input and one that has failed."""
    assert on_page("The operator") == in_code(operators())


@pytest.mark.parametrize("family", [*StatusCollector(lambda: STATUS).collect(), *operators()], ids=lambda f: f.name)
def test_names_follow_prometheus(family: Metric) -> None:
    """One prefix, base units, and a help text."""
    assert re.fullmatch(r"ringtrain_[a-z0-9_]+", family.name)
    assert not re.search(r"_(ms|milliseconds|minutes|kb|mb|percent|fraction)$", family.name)
    assert family.documentation


def test_label_values_are_on_the_page() -> None:
    """States and phases are few, and named."""
    text = PAGE.read_text()
    assert [value for value in (*PHASES, *RankPhase) if f"`{value}`" not in text] == []
