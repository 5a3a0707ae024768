"""Dashboards, rules and the PodMonitor: what the chart renders when it is asked to, and that it can be read."""

import json
import re
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
import yaml
from support.commands import completed, module_at
from support.jobs import job
from support.prometheus import NEEDS_PROMETHEUS, RULES
from support.rendering import CHART, HelmFailed, render

from ringtrain_operator.build.names import pod_labels
from ringtrain_operator.build.pods import build_launcher_pod
from ringtrain_operator.contract import ROLE_LAUNCHER
from ringtrain_operator.spec.parse import parse_job

ROOT = CHART.parents[1]
FILES = {path.stem: path for path in (CHART / "files").glob("dashboard-*.json")}
KINDS = {"ConfigMap", "PrometheusRule", "PodMonitor"}
ALERTS = [rule for group in yaml.safe_load(RULES.read_text())["groups"] for rule in group["rules"]]
Json = dict[str, Any]


def known_metrics() -> set[str]:
    """Every metric of the reference, as its series are called, and those of the operator's process."""
    text = (ROOT / "docs" / "reference" / "metrics.md").read_text()
    rows = re.findall(r"^\| `(\w+)` \| (\w+) \|", text, re.MULTILINE)
    buckets = {f"{name}_bucket" for name, kind in rows if kind == "histogram"}
    of_process = {"process_resident_memory_bytes", "process_cpu_seconds_total", "process_open_fds"}
    return {name for name, kind in rows if kind != "histogram"} | buckets | of_process


def metrics_of(expression: str) -> set[str]:
    """The metrics that an expression names."""
    return set(re.findall(r"\b(?:ringtrain|process)_\w+", expression))


def test_nothing_is_rendered_unless_asked() -> None:
    """Their kinds may not be known to the cluster."""
    assert not [o for o in render() if o["kind"] in KINDS]


def test_the_dashboards_are_found_by_grafanas_sidecar() -> None:
    """One ConfigMap each, with the label and annotations of the values."""
    folder = "metrics.dashboards.annotations.grafana_folder=Training"
    objects = [o for o in render("metrics.dashboards.enabled=true", folder) if o["kind"] == "ConfigMap"]
    assert len(objects) == len(FILES) == 3
    for found in objects:
        assert found["metadata"]["labels"]["grafana_dashboard"] == "1"
        assert found["metadata"]["annotations"] == {"grafana_folder": "Training"}
        ((name, text),) = found["data"].items()
        assert json.loads(text) == json.loads(FILES[name.replace("ringtrain-", "dashboard-")[:-5]].read_text())


def test_a_dashboards_label_can_be_another() -> None:
    """A sidecar that looks for a label of its own: null takes the default's away."""
    asked = ("metrics.dashboards.enabled=true", "metrics.dashboards.labels.grafana_dashboard=null")
    for other in ((), ("metrics.dashboards.labels.board=yes",)):
        labels = [o["metadata"]["labels"] for o in render(*asked, *other) if o["kind"] == "ConfigMap"]
        assert len(labels) == 3
        assert all("grafana_dashboard" not in one and (one.get("board") == "yes") is bool(other) for one in labels)


def test_the_rules_are_rendered_as_they_are() -> None:
    """Templates of alerts are Prometheus' own, and pass Helm unread."""
    (found,) = [o for o in render("metrics.rules.enabled=true") if o["kind"] == "PrometheusRule"]
    assert found["spec"] == yaml.safe_load(RULES.read_text())
    (found,) = [o for o in render("metrics.rules.enabled=true", "metrics.rules.labels.release=p") if o["kind"] in KINDS]
    assert found["metadata"]["labels"]["release"] == "p"


@pytest.mark.parametrize("end", ["", "/"])
def test_alerts_link_to_docs_where_the_values_say_they_are(end: str) -> None:
    """Every alert has its section below that; nothing else of the rules changes."""
    where = "https://git.example.com/ml/ringtrain/blob/v1/docs"
    (found,) = [
        o for o in render("metrics.rules.enabled=true", f"metrics.rules.runbooks={where}{end}") if o["kind"] in KINDS
    ]
    plain = RULES.read_text().replace("runbook: docs/", f"runbook_url: {where}/")
    assert found["spec"] == yaml.safe_load(plain)
    rules = [rule for group in found["spec"]["groups"] for rule in group["rules"]]
    assert [rule["annotations"]["runbook_url"] for rule in rules] == [
        f"{where}/observability.md#{rule['alert'].lower()}" for rule in rules
    ]


@pytest.mark.parametrize(
    ("scope", "selected"),
    [
        pytest.param([], {"any": True}, id="cluster"),
        pytest.param(["namespaces={team-a}"], {"matchNames": ["team-a"]}, id="namespaces"),
    ],
)
def test_the_pod_monitor_selects_launchers(scope: list[str], selected: Json) -> None:
    """Its labels are those that the operator gives a launcher's pod, its port is one of that pod."""
    (monitor,) = [o for o in render("metrics.podMonitor.enabled=true", *scope) if o["kind"] == "PodMonitor"]
    assert monitor["spec"]["namespaceSelector"] == selected
    parsed = parse_job({**job(), "metadata": {**job()["metadata"], "uid": "u", "namespace": "team-a"}})
    labels = pod_labels(parsed, ROLE_LAUNCHER, 1)
    assert monitor["spec"]["selector"]["matchLabels"].items() <= labels.items()
    ports = build_launcher_pod(parsed, 1)["spec"]["containers"][0]["ports"]
    (endpoint,) = monitor["spec"]["podMetricsEndpoints"]
    assert endpoint["port"] in {port["name"] for port in ports}


@pytest.mark.parametrize(
    "value", ["metrics.podMonitor.interval=soon", "metrics.rule.enabled=true", "metrics.rules.runbooks=docs"]
)
def test_wrong_values_are_refused(value: str) -> None:
    """The schema names the value."""
    with pytest.raises(HelmFailed, match="metrics"):
        render(value)


@pytest.mark.parametrize("name", FILES)
def test_a_dashboard_is_whole(name: str) -> None:
    """A dashboard meets the rules of Grafana: unique IDs, a variable data source, separate panels, known metrics."""
    model = json.loads(FILES[name].read_text())
    assert FILES[name].read_text() == module_at(ROOT / "charts/dashboards.py").as_json(
        module_at(ROOT / "charts/dashboards.py").DASHBOARDS[name.removeprefix("dashboard-")]
    ), "make generate"
    panels, variables = model["panels"], {v["name"]: v for v in model["templating"]["list"]}
    assert model["uid"]
    assert len({panel["id"] for panel in panels}) == len({panel["title"] for panel in panels}) == len(panels)
    assert variables["datasource"]["type"] == "datasource"
    for panel in panels:
        targets = panel["targets"]
        assert {panel["datasource"]["uid"], *(t["datasource"]["uid"] for t in targets)} == {"${datasource}"}
        assert len({target["refId"] for target in targets}) == len(targets) > 0
        for target in targets:
            assert metrics_of(target["expr"]) <= known_metrics(), target
            used = set(re.findall(r"\$(\w+)", target["expr"])) - {"__rate_interval", "__range"}
            assert used <= set(variables)
    for a, b in combinations([panel["gridPos"] for panel in panels], 2):
        apart = a["x"] + a["w"] <= b["x"] or b["x"] + b["w"] <= a["x"]
        assert apart or a["y"] + a["h"] <= b["y"] or b["y"] + b["h"] <= a["y"], (a, b)
    assert all(panel["gridPos"]["x"] + panel["gridPos"]["w"] <= 24 for panel in panels)


@pytest.mark.parametrize("alert", ALERTS, ids=[alert["alert"] for alert in ALERTS])
def test_an_alert_says_what_to_do(alert: Json) -> None:
    """Severity, summary, description, and a section of a page that is there, under the alert's name."""
    assert alert["labels"]["severity"] in {"critical", "warning"}
    assert {"summary", "description", "runbook"} == set(alert["annotations"])
    page, _, anchor = alert["annotations"]["runbook"].partition("#")
    headings = re.findall(r"^#+ (.+)$", (ROOT / page).read_text(), re.MULTILINE)
    assert alert["alert"] in headings
    assert anchor == alert["alert"].lower()
    assert metrics_of(alert["expr"]) <= known_metrics()
    test_file = (Path(__file__).parent / "rules_test.yaml").read_text()
    assert alert["alert"] in test_file


@NEEDS_PROMETHEUS
@pytest.mark.parametrize(
    "words", [("check", "rules", RULES), ("test", "rules", Path(__file__).parent / "rules_test.yaml")], ids=str
)
def test_promtool_agrees(words: tuple[Any, ...]) -> None:
    """Rules are valid, and fire when they should and not otherwise (rules_test.yaml)."""
    done = completed(["promtool", *map(str, words)])
    assert done.returncode == 0, done.stdout + done.stderr
