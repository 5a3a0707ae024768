"""An API server, nodes that run containers by script, and an operator: where a scenario is played."""

import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from aiohttp import web

from ringtrain_operator import contract
from ringtrain_operator.cluster.api.errors import ApiError
from ringtrain_operator.cluster.api.resources import EVENTS, JOBS, PODS
from ringtrain_operator.cluster.operator import Operator
from ringtrain_operator.cluster.queue import JobKey
from ringtrain_operator.observe.pods import status_token
from support.cluster import Cluster, Json, OpenCluster, namespace_of
from support.jobs import condition, job, state, termination_message
from support.kubelet import Kubelet, ScriptedRuntime
from support.kubelet.runtimes import Runtime
from support.operating import running_operator


@dataclass
class Clock:
    """The operator's time of day, which a test may move ahead."""

    ahead: timedelta = timedelta()

    def __call__(self) -> datetime:
        return datetime.now(UTC) + self.ahead


@dataclass
class Scenario:
    """Cluster and operator of a scenario. `name`: the job under test; `operator`: None if the test starts its own."""

    cluster: Cluster
    namespace: str
    runtime: ScriptedRuntime
    kubelet: Kubelet
    operator: Operator | None
    clock: Clock
    name: str = "digits"
    attempts: dict[int, set[str]] = field(default_factory=dict)

    async def submit(self, *, workers: int = 2, **spec: Any) -> Json:
        """Create the job."""
        return await self.cluster.api.create(JOBS, self.namespace, job(self.name, workers=workers, **spec))

    async def change(self, patch: Json) -> None:
        """Merge `patch` into the job's spec."""
        await self.cluster.api.patch(JOBS, self.namespace, self.name, {"spec": patch})

    async def suspend(self) -> None:
        """Suspend the job, and wait for its status to say so."""
        await self.change({"runPolicy": {"suspend": True}})
        await self.until_state("Suspended")

    async def job(self) -> Json:
        """The job as it is."""
        return await self.cluster.api.get(JOBS, self.namespace, self.name)

    async def until(self, holds: Callable[[Json], Any]) -> Json:
        """The job once `holds` for it."""
        async with self._telling():
            return await self.cluster.until(JOBS, self.namespace, self.name, lambda j: j is not None and holds(j))

    @asynccontextmanager
    async def _telling(self) -> AsyncIterator[None]:
        """Add to a timeout how the job and its pods are by then."""
        try:
            yield
        except TimeoutError as late:
            with suppress(ApiError):
                late.add_note(_brief(await self.job(), await self.pods()))
            raise

    async def until_state(self, *states: str) -> Json:
        """The job once its state is one of `states`."""
        return await self.until(lambda j: state(j) in states)

    async def until_condition(self, kind: str, status: str, says: str = "") -> Json:
        """The condition once it has `status` and its reason or message holds `says`."""

        def holds(j: Json) -> bool:
            found = condition(j, kind)
            told = f"{found.get('reason')} {found.get('message')}"
            return found.get("status") == status and says.lower() in told.lower()

        return condition(await self.until(holds), kind)

    def pod_names(self, workers: int) -> list[str]:
        """Names of an attempt's pods."""
        return [f"{self.name}-launcher", *(f"{self.name}-worker-{i}" for i in range(workers))]

    async def until_running(self, attempt: int = 1, workers: int = 2, after_s: float = 0) -> None:
        """Return when all pods of the attempt run; the operator's time is moved ahead before, by `after_s`."""
        if after_s:
            self.skip(after_s)
        async with self._telling():
            for name in self.pod_names(workers):
                await self.cluster.until(PODS, self.namespace, name, lambda p: _runs(p, attempt))

    async def until_pods(self, count: int) -> list[Json]:
        """The job's pods once there are `count`."""
        found: list[Json] = []

        def enough(_job: Json | None) -> bool:
            return len(found) == count

        async def look() -> None:
            found[:] = await self.pods()

        await look()
        while not enough(None):
            await self.cluster.pause()
            await look()
        return found

    async def uids(self) -> dict[str, str]:
        """The job's pods by name."""
        return {pod["metadata"]["name"]: pod["metadata"]["uid"] for pod in await self.pods()}

    async def reasons(self) -> set[str]:
        """Reasons of the events on the job."""
        return {event["reason"] for event in await self.cluster.api.select(EVENTS, self.namespace)}

    async def pods(self) -> list[Json]:
        """The job's pods."""
        selector = f"{contract.LABEL_JOB}={self.name}"
        return await self.cluster.api.select(PODS, self.namespace, labels=selector)

    @asynccontextmanager
    async def launcher_says(self, **fields: Any) -> AsyncIterator[Json]:
        """Have the job's launcher answer /status; what is yielded may be changed meanwhile."""
        pod = await self.cluster.api.get(PODS, self.namespace, f"{self.name}-launcher")
        answer = report(**fields)
        async with answering(pod["status"]["podIP"], answer, status_token(pod)):
            yield answer

    def succeed(self, workers: int = 2, attempt: int = 1) -> None:
        """All containers of the attempt end well."""
        for name in self.pod_names(workers)[1:]:
            self.runtime.finish(name)
        self.runtime.finish(f"{self.name}-launcher", message=termination_message(attempt=attempt, world=workers))

    async def end_well(self, workers: int = 2, attempt: int = 1) -> Json:
        """The job once it has succeeded, as all containers of the attempt have."""
        self.succeed(workers, attempt)
        return await self.until_state("Succeeded")

    def fail(self, code: int = 1, attempt: int = 1, workers: int = 2, **failure: Any) -> None:
        """The first rank fails, and the gang with it."""
        fields = {
            "rank": 1,
            "pod": f"{self.name}-worker-1",
            "node": "node-b",
            "exitCode": code,
            "reason": "RankFailed",
            "message": f"rank 1 exited with {code}",
            "logTail": ["the last line"],
            **failure,
        }
        message = termination_message("Failed", attempt, workers, **fields)
        self.runtime.finish(f"{self.name}-worker-1", code, message)
        for name in self.pod_names(workers):
            if not name.endswith("worker-1"):
                launcher = name.endswith("launcher")
                self.runtime.finish(name, code if launcher else 75, message if launcher else "")

    def skip(self, seconds: float) -> None:
        """Move the operator's time ahead, and have it look."""
        self.clock.ahead += timedelta(seconds=seconds)
        self.operator.queue.add(JobKey(self.namespace, self.name))

    async def pass_by(self, seconds: float) -> None:
        """Move the time ahead for whichever operator runs, and have it look by a change of the job's labels."""
        self.clock.ahead += timedelta(seconds=seconds)
        labels = {"metadata": {"labels": {"ahead": str(int(self.clock.ahead.total_seconds()))}}}
        await self.cluster.api.patch(JOBS, self.namespace, self.name, labels)


def _runs(pod: Json | None, attempt: int) -> bool:
    if pod is None or "deletionTimestamp" in pod["metadata"]:
        return False
    of_attempt = pod["metadata"]["labels"].get(contract.LABEL_ATTEMPT) == str(attempt)
    return of_attempt and pod["status"].get("phase") == "Running"


def _brief(job: Json, pods: list[Json]) -> str:
    """The job and its pods, a line each."""
    attempt, why = (job.get("status") or {}).get("attempt"), condition(job, "Running")
    lines = [f"job: {state(job)}, attempt {attempt}; {why.get('reason')}: {why.get('message')}"]
    for pod in pods:
        meta = pod["metadata"]
        ending = ", is being deleted" if "deletionTimestamp" in meta else ""
        attempt = meta["labels"].get(contract.LABEL_ATTEMPT)
        made = meta["creationTimestamp"]
        lines.append(f"{meta['name']}: {pod['status'].get('phase')}, attempt {attempt}, made {made}{ending}")
    return "\n".join(lines)


@asynccontextmanager
async def open_scenario(
    open_cluster: OpenCluster, folder: Path, operator: Mapping[str, Any] | None = None, **options: Any
) -> AsyncIterator[Scenario]:
    """A scenario on a namespace of its own; `operator` are settings of it, `options` the kubelet's."""
    async with open_cluster() as cluster:
        namespace, runtime, clock = await cluster.new_namespace(), ScriptedRuntime(), Clock()
        async with (
            # One clock: an operator that is ahead takes what has just ended for something of long ago.
            Kubelet(cluster.api, runtime, folder, namespace=namespace, clock=clock, **options) as kubelet,
            running_operator(
                cluster.operator_connection, clock, **{"namespaces": (namespace,), **(operator or {})}
            ) as running,
        ):
            yield Scenario(cluster, namespace, runtime, kubelet, running, clock)


@asynccontextmanager
async def running_job(open_cluster: OpenCluster, folder: Path, **spec: Any) -> AsyncIterator[Scenario]:
    """A scenario whose job, with this `spec`, runs."""
    async with open_scenario(open_cluster, folder) as s:
        await s.submit(**spec)
        await s.until_running()
        yield s


@asynccontextmanager
async def operated(
    opened: AbstractAsyncContextManager[Cluster], runtime: Runtime, folder: Path, **options: Any
) -> AsyncIterator[tuple[Cluster, str]]:
    """A cluster that is opened, and a namespace with an operator and a kubelet, which has these `options`."""
    async with (
        namespace_of(opened) as (cluster, namespace),
        Kubelet(cluster.api, runtime, folder, namespace=namespace, **options),
        running_operator(cluster.operator_connection, namespaces=(namespace,)),
    ):
        yield cluster, namespace


def report(attempt: int = 1, phase: str = "Running", world: int = 2, **more: Any) -> Json:
    """A launcher's /status (docs/contract.md); `progress` is None unless given."""
    return {
        "version": 1,
        "attempt": attempt,
        "phase": phase,
        "worldSize": world,
        "workers": [{"index": i, "registered": phase != "Waiting"} for i in range(world)],
        "ranks": [],
        "progress": None,
        "lastProgressTime": None,
        "runningSince": None if phase == "Waiting" else time.time(),
        "slowest": None,
        **more,
    }


@asynccontextmanager
async def answering(address: str, document: Json, token: str) -> AsyncIterator[None]:
    """Answer /status at `address` with `document`, which may be changed meanwhile, to who shows `token`.

    An elastic launcher is told at /workers how many are wanted: `document["elastic"]["wanted"]` then.
    """
    app = web.Application()

    async def status(request: web.Request) -> web.Response:
        if "brief" not in request.query:  # whoever asks again and again asks for the answer that stays short
            return web.Response(status=400)
        shown = request.headers.get("Authorization")
        return web.json_response(document) if shown == f"Bearer {token}" else web.Response(status=401)

    async def workers(request: web.Request) -> web.Response:
        if request.headers.get("Authorization") != f"Bearer {token}":
            return web.Response(status=401)
        if "refusal" in document:
            if document["refusal"] is None and request.transport is not None:  # the connection fails
                request.transport.abort()
            code, text = document["refusal"] or (500, "")
            return web.Response(status=code, text=text)
        document["elastic"]["wanted"] = (await request.json())["workers"]
        return web.Response(status=204)

    app.router.add_get("/status", status)
    app.router.add_put("/workers", workers)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.5)
    await runner.setup()
    await web.TCPSite(runner, address, contract.PORT_STATUS).start()
    try:
        yield
    finally:
        await runner.cleanup()
