"""`make bench-queues`: jobs that wait in the real Kueue, on a real API server on this machine; writes JSON.

Requests that 1,000 queued jobs cost while nothing changes, and the time from an admission to the last pod: of jobs
that are admitted one after the other, of several at once, and of jobs that come at a rate.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import aclosing
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import psutil
import yaml

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT / "tests"), str(Path(__file__).parent)]

from latency import summary  # noqa: E402
from plane import Spending, cpu_s, operator_process, requests_so_far, rss_mib  # noqa: E402
from setting import fresh_namespace  # noqa: E402
from support.apiserver import ControlPlane, why_unavailable  # noqa: E402
from support.installation import install_rights  # noqa: E402
from support.jobs import job, state  # noqa: E402
from support.kueue import (  # noqa: E402
    CLUSTER_QUEUES,
    FLAVORS,
    LOCAL_QUEUES,
    WORKLOADS,
    Kueue,
    kueue_crds,
    why_no_kueue,
)
from support.rendering import render  # noqa: E402

from ringtrain_operator.cluster.api.client import ApiClient  # noqa: E402
from ringtrain_operator.cluster.api.resources import EVENTS, JOBS, PODS, ApiResource  # noqa: E402
from ringtrain_operator.cluster.api.transport import ApiLimits  # noqa: E402

Json = dict[str, Any]
NAMESPACE, GPU = "queued", "example.com/gpu"
RESULTS = Path(__file__).parent / "queues.json"
IDLE_S = 30.0


def main() -> None:
    """Measure, and write what was found."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=1000)
    parser.add_argument("--alone", type=int, default=30, help="jobs that get quota one after the other")
    parser.add_argument("--at-once", type=int, nargs="*", default=[5, 20, 100], help="jobs that get it together")
    parser.add_argument("--rates", type=float, nargs="*", default=[0.5, 1, 2, 4], help="jobs that get it each second")
    parser.add_argument("--rate-jobs", type=int, default=40, help="jobs at each rate")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--output", type=Path, default=RESULTS)
    options = parser.parse_args()
    if reason := why_unavailable() or why_no_kueue():
        sys.exit(reason)
    load = round(os.getloadavg()[0], 2)
    with tempfile.TemporaryDirectory(prefix="bench-queues-") as folder:
        found = _measure(Path(folder), options)
    found |= {"load_average": [load, round(os.getloadavg()[0], 2)], "cores": os.cpu_count()}
    found["time"] = datetime.now(UTC).isoformat(timespec="seconds")
    print(json.dumps(found))
    options.output.write_text(json.dumps(found, indent=2) + "\n")


def _measure(folder: Path, options: argparse.Namespace) -> Json:
    kueue = Kueue.prepare(folder / "kueue")
    ours = tuple(yaml.safe_load_all((ROOT / "manifests" / "crd.yaml").read_text()))
    plane = ControlPlane.start(folder, (*ours, *kueue_crds(kueue.address, kueue.authority)))
    try:
        asyncio.run(_prepare(plane, kueue))
        with operator_process(plane, folder, "--kueue") as process:
            plane._processes["kueue"] = kueue.process  # what it uses is told beside the others'
            try:
                return asyncio.run(_queue_and_admit(plane, process, options))
            finally:
                del plane._processes["kueue"]
    finally:
        kueue.stop()
        plane.stop()


async def _prepare(plane: ControlPlane, kueue: Kueue) -> None:
    async with ApiClient(plane.connection()) as api:
        plane.operator_token = await install_rights(api, render("kueue.enabled=true"))
    await kueue.start(plane)


async def _queue_and_admit(plane: ControlPlane, process: psutil.Process, options: argparse.Namespace) -> Json:
    async with ApiClient(plane.connection(), limits=ApiLimits(connections=16, timeout_s=120)) as api:
        await fresh_namespace(api, NAMESPACE)
        await _open_queue(api)
        began = time.perf_counter()
        await asyncio.gather(*(api.create(JOBS, NAMESPACE, _job(n, options.workers)) for n in range(options.jobs)))
        await _until_queued(api, options.jobs)
        queued_s = round(time.perf_counter() - began, 1)
        before = requests_so_far(plane)
        while (now := requests_so_far(plane)) != before:
            before = now
            await asyncio.sleep(5)
        used = cpu_s(process)
        await asyncio.sleep(IDLE_S)
        idle = {
            "seconds": IDLE_S,
            "requests": dict(requests_so_far(plane) - before),
            "cpu_percent": round(100 * (cpu_s(process) - used) / IDLE_S, 2),
            "rss_mib": rss_mib(process),
        }
        gate = Gate(api, options.workers)
        alone = [wait for _ in range(options.alone) for wait in await gate.admit(1)]
        at_once = [await _spending(plane, process, gate, count) for count in options.at_once]
        at_rates = {
            f"{rate:g}": await _spending(plane, process, gate, options.rate_jobs, every_s=1 / rate)
            for rate in options.rates
        }
    return {
        "jobs": options.jobs,
        "workers": options.workers,
        "seconds_until_all_are_queued": queued_s,
        "idle": idle,
        "admission_to_last_pod": {"one after the other": summary(alone), "at once": at_once},
        "admission_to_last_pod_at_jobs_a_second": at_rates,
    }


async def _spending(plane: ControlPlane, process: psutil.Process, gate: Gate, count: int, every_s: float = 0.0) -> Json:
    """Admit `count` jobs, at once or one every `every_s` seconds. Return waits, requests, and CPU s by process."""
    spent, began, before = Spending(plane, process), time.perf_counter(), requests_so_far(plane)
    waits = await gate.admit(count, every_s)
    seconds = round(time.perf_counter() - began, 1)
    requests = sum((requests_so_far(plane) - before).values())
    return {
        **summary(waits),
        "seconds": seconds,
        "requests_a_job": round(requests / count, 1),
        "cpu_seconds": spent.so_far(),
    }


@dataclass
class Gate:
    """The quota of the queue. `admitted`: jobs that have got theirs."""

    api: ApiClient
    workers: int
    admitted: set[str] = field(default_factory=set)

    async def admit(self, count: int, every_s: float = 0.0) -> list[float]:
        """Quota for so many more jobs, at once or for one every so often: seconds from each job's admission to its
        last pod.
        """
        waits = await _admit(self.api, count, self.workers, self.admitted, every_s)
        self.admitted |= set(waits)
        before = -1
        while (now := len(await self.api.select(EVENTS, NAMESPACE))) != before:  # until nobody is busy with these
            before = now
            await asyncio.sleep(0.5)
        return list(waits.values())


async def _admit(api: ApiClient, count: int, workers: int, before: set[str], every_s: float = 0.0) -> dict[str, float]:
    """Quota for so many jobs besides those `before`: by job, seconds from its admission to its last pod."""
    admitted: dict[str, float] = {}
    pods: dict[str, dict[str, float]] = {}

    def note_workload(workload: Json) -> bool:
        said = (workload.get("status") or {}).get("conditions") or ()
        name = workload["metadata"].get("labels", {}).get("ringtrain.dev/job-name")
        if name not in before and any(c["type"] == "Admitted" and c["status"] == "True" for c in said):
            admitted.setdefault(name, time.perf_counter())
        return len(admitted) == count

    def note_pod(pod: Json) -> bool:
        name = pod["metadata"].get("labels", {}).get("ringtrain.dev/job-name")
        if name and name not in before:
            pods.setdefault(name, {}).setdefault(pod["metadata"]["name"], time.perf_counter())
        return sum(len(times) == workers + 1 for times in pods.values()) == count

    try:
        async with asyncio.timeout(120 + count * every_s), asyncio.TaskGroup() as watching:
            watching.create_task(_follow(api, WORKLOADS, note_workload))
            watching.create_task(_follow(api, PODS, note_pod))
            await _grant(api, len(before), count, workers, every_s)
    except TimeoutError:
        raise TimeoutError(f"of {count} jobs {len(admitted)} were admitted; pods: {pods}") from None
    return {name: max(0.0, max(times.values()) - admitted[name]) for name, times in pods.items()}


async def _grant(api: ApiClient, before: int, count: int, workers: int, every_s: float) -> None:
    """Quota for so many jobs more: for all of them, or for one every so often."""
    began = time.perf_counter()
    for more in range(1, count + 1) if every_s else (count,):
        await api.patch(CLUSTER_QUEUES, None, "all", {"spec": _quota((before + more) * workers)})
        await asyncio.sleep(max(0.0, began + more * every_s - time.perf_counter()) if every_s else 0)


async def _follow(api: ApiClient, resource: ApiResource, enough: Callable[[Json], bool]) -> None:
    """Show `enough` every object and every change of one, until it says so. The API server may end a watch."""
    while True:
        listed = await api.listing(resource, NAMESPACE)
        if any(enough(obj) for obj in listed.items):
            return
        async with aclosing(api.watch(resource, NAMESPACE, since=listed.version)) as events:
            async for event in events:
                if event["type"] in ("ADDED", "MODIFIED") and enough(event["object"]):
                    return


async def _open_queue(api: ApiClient) -> None:
    objects: tuple[tuple[Any, str, Json], ...] = (
        (FLAVORS, "default", {}),
        (CLUSTER_QUEUES, "all", {"namespaceSelector": {}, **_quota(0)}),
        (LOCAL_QUEUES, "research", {"clusterQueue": "all"}),
    )
    for resource, name, spec in objects:
        made = {
            "apiVersion": resource.api_version,
            "kind": resource.kind,
            "metadata": {"name": name},
            "spec": spec,
        }
        await api.create(resource, NAMESPACE if resource.namespaced else None, made)


def _quota(gpus: int) -> Json:
    amounts = {"cpu": "10000", "memory": "10000Gi", GPU: str(gpus)}
    resources = [{"name": name, "nominalQuota": amount} for name, amount in amounts.items()]
    flavors = [{"name": "default", "resources": resources}]
    return {"resourceGroups": [{"coveredResources": list(amounts), "flavors": flavors}]}


def _job(number: int, workers: int) -> Json:
    described = job(f"job-{number}", workers=workers, scheduling={"queue": "research"})
    described["spec"]["worker"]["devices"] = {GPU: 1}
    return described


async def _until_queued(api: ApiClient, count: int) -> None:
    while True:
        if sum(state(one) == "Queued" for one in await api.select(JOBS, NAMESPACE)) == count:
            return
        await asyncio.sleep(1)


if __name__ == "__main__":
    main()
