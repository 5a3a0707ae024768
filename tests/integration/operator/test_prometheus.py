"""A real Prometheus scrapes a real job and a real operator: every expression of dashboards and rules has data."""

import asyncio
import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from support.cluster import fake_cluster
from support.gang import GangProcesses
from support.prometheus import NEEDS_PROMETHEUS, RULES, Prometheus, prometheus
from support.rendering import CHART
from support.scenario import Scenario, open_scenario

WITHIN_S = 90.0
FOR_GRAFANA = {
    "$__rate_interval": "10s",
    "$__range": "1m",
    '=~"$namespace"': '=~".*"',
    "$namespace": "default",
    "$job": "job",
}
# Two ranks that train until they are told to stop. The first process of slot 1 leaves its world badly once it has
# reported: the elastic job makes another world. Rank 1 reports late, and both measure where their time goes.
RANK = """
import os, time
from pathlib import Path
import ringtrain
from ringtrain.step_time import INPUT, REDUCTION
here, slot = Path(os.environ["DIRECTORY"]), os.environ["RINGTRAIN_SLOT"]
step = 0
while not (here / "stop").exists():
    step += 1
    print("step", step, flush=True)
    with INPUT:
        time.sleep(0.02)
    if slot == "1":
        time.sleep(0.01)
    with REDUCTION:
        pass
    ringtrain.report(step, total_steps=100_000, samples=8, loss=1 / step, metrics={"accuracy": 0.5})
    if slot == "1" and step == 5 and not (here / "failed").exists():
        (here / "failed").touch()
        raise SystemExit(3)
    time.sleep(0.05)
"""


@pytest.fixture
def job(tmp_path: Path) -> Iterator[GangProcesses]:
    """An elastic job with a data worker whose ranks run."""
    settings = {
        "RINGTRAIN_ELASTIC": "Restart",
        "RINGTRAIN_ELASTIC_MIN_RANKS": "1",
        "RINGTRAIN_ELASTIC_JOIN_DELAY": "0.2",
        "RINGTRAIN_TIMEOUT": "12",
        "RINGTRAIN_DATA_WORKERS": "1",
        "RINGTRAIN_DATA_PORT": "0",
        "RINGTRAIN_LOG_URI": f"file://{tmp_path}/shipped",
        "DIRECTORY": str(tmp_path),
    }
    made = GangProcesses(tmp_path, 2, 1, **settings)
    made.launcher()
    made.data_worker(0)
    made.agents(sys.executable, "-c", RANK)
    yield made
    (tmp_path / "stop").touch()
    made.close()


def expressions() -> Iterator[tuple[str, str]]:
    """Every expression of every panel, with what says where it is, as Grafana would send it."""
    for path in sorted((CHART / "files").glob("dashboard-*.json")):
        for panel in json.loads(path.read_text())["panels"]:
            for target in panel["targets"]:
                expression = target["expr"]
                for name, value in FOR_GRAFANA.items():
                    expression = expression.replace(name, value)
                yield f"{path.stem}: {panel['title']} {target['refId']}", expression


def selectors() -> Iterator[tuple[str, str]]:
    """Every series that an alert asks for, as it asks: alerts themselves are empty while nothing is wrong."""
    for group in yaml.safe_load(RULES.read_text())["groups"]:
        for rule in group["rules"]:
            for selector in re.findall(r"ringtrain_\w+(?:\{[^}]*\})?", rule["expr"]):
                yield f"rule {rule['alert']}", selector


async def until_data(found: Prometheus) -> dict[str, Any]:
    """Ask until every expression has data; those that have none at the deadline are the failure."""
    wanted = dict([*expressions(), *selectors()])
    assert len(wanted) > 60
    try:
        async with asyncio.timeout(WITHIN_S):
            while wanted:
                for where, expression in list(wanted.items()):
                    series = await asyncio.to_thread(found.query, expression)
                    if any(one["value"][1] != "NaN" for one in series):
                        del wanted[where]
                await asyncio.sleep(0.2)
    except TimeoutError:
        pass
    return wanted


async def until_scraped(found: Prometheus) -> None:
    """Return when launcher and operator have been."""
    while len(await asyncio.to_thread(found.query, "up == 1")) < 2:
        await asyncio.sleep(0.1)


async def play(scenario: Scenario) -> None:
    """A job that runs, fails, and runs again: what there is for an operator to count."""
    await scenario.submit(dataWorkers={"replicas": 1})
    await scenario.until_running()
    async with scenario.launcher_says(data={"wanted": 1, "registered": 1, "workers": [], "waitFraction": 0.2}):
        await scenario.until_state("Running")
    scenario.fail(code=3)
    await scenario.until(lambda j: j["status"]["restarts"] == 1)
    await scenario.pass_by(30)
    await scenario.until_running(attempt=2)


@NEEDS_PROMETHEUS
async def test_every_expression_has_data(tmp_path: Path, job: GangProcesses) -> None:
    """A number for each panel of each dashboard and for what alerts compare; and Prometheus took the rules."""
    async with open_scenario(fake_cluster, tmp_path) as scenario:
        targets = {"launchers": [job.status_port], "operator": [scenario.operator.port]}
        (directory := tmp_path / "prometheus").mkdir()
        with prometheus(directory, targets) as found:
            await until_scraped(found)  # what is counted from now on is seen to grow
            left, _ = await asyncio.gather(until_data(found), play(scenario))
            assert left == {}
            rules = [rule for group in found.ask("rules")["groups"] for rule in group["rules"]]
            assert [rule["lastError"] for rule in rules if rule.get("lastError")] == []
            (elastic,) = found.query("ringtrain_recoveries_total")
            assert elastic["metric"] | {"job_namespace": "default", "job_name": "job"} == elastic["metric"]
