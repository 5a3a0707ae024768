"""The operator process: creation, supervision and shutdown of its parts."""

import asyncio
import gc
import logging
import signal
import time
from collections.abc import Coroutine
from contextlib import AsyncExitStack, suppress
from dataclasses import replace
from typing import Any

from ..build.names import ObjectRef
from .api.client import ApiClient
from .api.connection import ApiConnection
from .api.errors import ApiError, Conflict, Forbidden, NotFound, NotLeader
from .api.resources import JOBS, ApiResource
from .api.transport import ApiLimits
from .config import OperatorConfig
from .gangs import ClusterGangs
from .health import ApiServerReach, ReachTimes, health_server
from .kueue import workloads
from .lease import LeaderLease, LeaseTimes
from .metrics import OperatorMetrics
from .pods import PodChange
from .poll import LauncherPoller, PollTimes
from .provisioning import ClusterAutoscaler
from .queue import JobKey, ReconcileQueue
from .reconcile import Clock, Reconciler, utc_now
from .versions import ResourceVersions
from .watch import WatchScope, resync, wait_until_served, watch_cluster

log = logging.getLogger(__name__)


# Delay after which an installed Kueue or gang scheduler is discovered.
DISCOVERY_INTERVAL_S = 60.0
# Interval at the start while the API server does not answer the discovery.
DISCOVERY_RETRY_S = 2.0


class LeaseLost(Exception):
    """Another replica leads now; this process must end."""


class Operator:
    """An operator that uses `connection`. `run()` returns after `stop()`, or raises the error that ended it."""

    def __init__(
        self,
        config: OperatorConfig,
        connection: ApiConnection,
        *,
        poll_times: PollTimes | None = None,
        lease_times: LeaseTimes | None = None,
        reach_times: ReachTimes | None = None,
        clock: Clock = utc_now,
    ) -> None:
        self.config = config
        self.metrics = OperatorMetrics()
        self.watching = asyncio.Event()
        self.port = 0
        self._connection = connection
        self._lease_times = lease_times
        self._stop = asyncio.Event()
        self.queue = ReconcileQueue()
        self.metrics.queue_depth.set_function(lambda: len(self.queue))
        self.api = ApiClient(connection, limits=ApiLimits(connections=config.connections))
        # A separate client: thousands of creations and long lists must not delay the lease.
        self._lease_api = ApiClient(connection, limits=ApiLimits(connections=1))
        self._reach = ApiServerReach(connection, reach_times)
        self._poller = LauncherPoller(self.queue.add, poll_times)
        self._versions = ResourceVersions(self.api)
        namespace = config.lease_namespace or connection.namespace
        settings = replace(config.objects, operator_namespace=namespace)
        gangs = ClusterGangs(self.api, config.gangs)
        self._reconciler = Reconciler(
            self._versions,
            self.queue,
            self._poller,
            self.metrics,
            clock,
            settings,
            gangs,
            ClusterAutoscaler(self.api, config.provisioning),
        )
        self._standby = False
        self._watch_turned_at: float | None = None

    def stop(self) -> None:
        """End `run()` gracefully: reconciles in progress are finished, and the lease is released."""
        self._stop.set()

    async def run(self) -> None:
        """Acquire the lease and reconcile jobs until `stop()`. Raises LeaseLost or any other error."""
        probes = self._liveness_problem, self._readiness_problem
        async with AsyncExitStack() as stack:
            stack.push_async_callback(self.api.close)
            stack.push_async_callback(self._lease_api.close)
            server = health_server(self.config.address(), *probes, self.metrics)
            self.port = await stack.enter_async_context(server)
            await _first_of(self._reach.check_forever(), self._lead_and_work())

    async def _lead_and_work(self) -> None:
        lease = await self._lead()
        if not self._stop.is_set():
            await self._work(lease)
        if lease is not None:
            await lease.release()

    async def _lead(self) -> LeaderLease | None:
        """Wait for the lease and return it; None without leader election.

        `stop()` ends the wait: then this replica does not hold the returned lease.
        """
        if not self.config.leader_election:
            return None
        namespace = self.config.lease_namespace or self._connection.namespace
        name, identity = self.config.lease_name, self.config.identity
        lease = LeaderLease(self._lease_api, namespace, name, identity, self._lease_times)
        self._standby = True
        await _first_of(lease.acquire(), self._stop.wait())
        self._standby = False
        if lease.is_held():
            for api in (self.api, self._lease_api):
                api.fence(lease.is_held)
            self.metrics.leader.set(1)
        return lease

    async def _work(self, lease: LeaderLease | None) -> None:
        scope, enqueue = self.config.namespaces, self.queue.add
        await _first_of(wait_until_served(self.api, scope), self._stop.wait())
        await _first_of(self._reconciler.pod_schema.refresh(), self._stop.wait())
        await _first_of(self._find_waiting_jobs(), self._stop.wait())
        await _first_of(self._wait_for_apis(), self._stop.wait())
        parts = [
            self._watch(),
            resync(self.api, scope, enqueue, self.config.resync_s),
            self._keep_pod_schema(),
            self._stop.wait(),
        ]
        if lease is not None:
            parts.append(_raise_when_lost(lease))
        workers = [asyncio.create_task(self._reconcile_forever()) for _ in range(self.config.workers)]
        try:
            await _first_of(*parts)
        finally:
            await self._finish(workers)

    async def _find_waiting_jobs(self) -> None:
        """Read all jobs to build the queue of waiting jobs, before any job gets resources."""
        try:
            for namespace in self.config.namespaces or (None,):
                async for page in self.api.pages(JOBS, namespace):
                    for job in page:
                        meta = job["metadata"]
                        self._reconciler.waiting_jobs.update(JobKey(meta["namespace"], meta["name"]), job)
        except ApiError as exc:  # the order becomes known when each job has been reconciled
            log.warning("waiting jobs could not be listed: %s", exc)

    async def _watch(self) -> None:
        """Watch the cluster. Restart the watches when Kueue or a gang scheduler is installed, removed or upgraded."""
        while True:
            await _first_of(watch_cluster(self._scope()), self._wait_for_other_extras(self._extras()))

    async def _wait_for_other_extras(self, extras: tuple[ApiResource, ...]) -> None:
        while self._extras() == extras:
            await asyncio.sleep(min(self.config.resync_s, DISCOVERY_INTERVAL_S))
            await self._find_apis()

    async def _wait_for_apis(self) -> None:
        """Wait until Kueue and gang schedulers are discovered, because a job that starts earlier bypasses them."""
        while not await self._find_apis():
            await asyncio.sleep(DISCOVERY_RETRY_S)

    async def _find_apis(self) -> bool:
        """Discover Kueue, gang schedulers and autoscalers. Returns false if this failed and must be repeated."""
        try:
            if self.config.kueue:
                await self._reconciler.kueue.find()
            await self._reconciler.gangs.find()
            await self._reconciler.provisioning.find()
        except ApiError as exc:
            log.warning("Kueue and gang schedulers could not be discovered: %s", exc)
            return isinstance(exc, Forbidden)
        return True

    def _extras(self) -> tuple[ApiResource, ...]:
        """Return the resources of Kueue, gang schedulers and autoscalers to watch, as far as they are served."""
        version = self._reconciler.kueue.version
        others = (*self._reconciler.gangs.watched(), *self._reconciler.provisioning.watched())
        return (*((workloads(version),) if version else ()), *others)

    async def _keep_pod_schema(self) -> None:
        """Read the pod schema periodically, because an upgraded API server has new fields."""
        while True:
            await asyncio.sleep(self.config.resync_s)
            await self._reconciler.pod_schema.refresh()

    def _scope(self) -> WatchScope:
        return WatchScope(
            self._connection,
            self.config.namespaces,
            self._job_changed,
            self._pod_changed,
            self._object_deleted,
            self._extra_changed,
            self._extras(),
            self.watching,
            beat=self._watch_turned,
            beat_every_s=self.config.stuck_after_s / 20,
        )

    async def _finish(self, workers: list[asyncio.Task[None]]) -> None:
        """Wait for reconciles in progress to end, at most for the grace period; then cancel the workers."""
        self.queue.close()
        with suppress(TimeoutError):
            async with asyncio.timeout(self.config.grace_s):
                await self.queue.idle()
        for worker in workers:
            worker.cancel()
        await asyncio.gather(*workers, return_exceptions=True)
        await self._poller.close()

    async def _reconcile_forever(self) -> None:
        while True:
            key = await self.queue.take()
            try:
                await self._reconcile(key)
            finally:
                self.queue.done(key)
                if self._versions.needs_reconcile_after(key):
                    self.queue.add(key)

    async def _reconcile(self, key: JobKey) -> None:
        """Reconcile one job; schedule a retry after any failure."""
        began, result = time.perf_counter(), "ok"
        try:
            await self._reconciler.reconcile(key)
        except NotLeader as fenced:
            result = "fenced"
            log.info("%s", fenced, extra={"job": str(key)})
        except (Conflict, NotFound):
            result = "conflict"
            self.queue.retry(key)  # it changed or was deleted since it was read
        except ApiError as failed:
            result = "error"
            wait_s = self.queue.retry(key)
            log.warning("the job was not reconciled (%s); retry in %.1f s", failed, wait_s, extra={"job": str(key)})
        except Exception:
            result = "defect"
            wait_s = self.queue.retry(key)
            log.exception(
                "the job was not reconciled because of a defect in the operator; retry in %.1f s",
                wait_s,
                extra={"job": str(key)},
            )
        self.metrics.reconciles.labels(result).inc()
        self.metrics.reconcile_seconds.observe(time.perf_counter() - began)

    def _job_changed(self, key: JobKey, version: str) -> None:
        if self._versions.is_news(key, version, during_reconcile=self.queue.is_busy(key)):
            self.queue.add(key)

    def _pod_changed(self, key: JobKey, change: PodChange) -> None:
        """Enqueue the job of a changed pod. Ended pods are urgent; new pods are not."""
        self._versions.record_pod_version(change.version)
        self._versions.known_pods.record(key, change)
        self.queue.add(key, urgent=change.event not in (None, "ADDED"))

    def _object_deleted(self, key: JobKey, ref: ObjectRef) -> None:
        self._reconciler.object_deleted(key, ref)
        self.queue.add(key)

    def _extra_changed(self, key: JobKey, kind: str) -> None:
        self._reconciler.extra_changed(key, kind)
        self.queue.add(key)

    def _liveness_problem(self) -> str:
        limit_s, busy_s = self.config.stuck_after_s, self.queue.longest_busy_s()
        if busy_s > limit_s:
            return f"a reconcile has been running for {busy_s:.0f} s, expected at most {limit_s:.0f} s"
        still_s = 0.0 if self._watch_turned_at is None else time.monotonic() - self._watch_turned_at
        return f"the watch loop has been blocked for {still_s:.0f} s" if still_s > limit_s else ""

    def _watch_turned(self) -> None:
        self._watch_turned_at = time.monotonic()

    def _readiness_problem(self) -> str:
        silent = self._reach.problem()
        if self._standby or self.watching.is_set():
            return silent
        return f"not watching yet; {silent}" if self._reach.failed and silent else "not watching yet"


async def _raise_when_lost(lease: LeaderLease) -> None:
    await lease.renew_until_lost()
    raise LeaseLost(f"this replica, {lease.identity}, no longer holds the lease")


async def _first_of(*coroutines: Coroutine[Any, Any, object]) -> None:
    """Run all coroutines until one of them ends, cancel the others, and raise its error if it failed."""
    tasks = [asyncio.ensure_future(c) for c in coroutines]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    for task in done:
        task.result()


def run_operator_until_signalled(config: OperatorConfig, connection: ApiConnection) -> Exception | None:
    """Run an operator until SIGTERM or SIGINT. Returns the error if a lost lease or the API server ended it."""
    gc.freeze()  # imported objects stay forever: the garbage collector need not scan them
    try:
        asyncio.run(_run_operator(config, connection))
    except (LeaseLost, ApiError) as exc:
        return exc
    return None


async def _run_operator(config: OperatorConfig, connection: ApiConnection) -> None:
    operator = Operator(config, connection)
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        with suppress(NotImplementedError):
            loop.add_signal_handler(number, operator.stop)
    scope = ", ".join(config.namespaces) or "the whole cluster"
    log.info("serving %s on %s as %s", scope, connection.server, config.identity)
    await operator.run()
    log.info("stopped")
