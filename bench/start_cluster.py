"""The moments of a start on a cluster: what its API server tells of the job and its pods, and its log."""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml
from kubernetes import client, config, watch

Json = dict[str, Any]
DEADLINE_S = 120.0
_JOBS = ("ringtrain.dev", "v1alpha1")
_PLURAL = "distributedtrainingjobs"


def measure(job: Path, trains: str, kill: Callable[[], None]) -> dict[str, float]:
    """One run in a namespace of its own: seconds since the moment before, by what they ended with.

    `trains`: what the launcher's log holds once an attempt trains. `kill`: ends one rank.
    """
    body = yaml.safe_load(job.read_text())
    with _namespace() as namespace, _Seen(namespace) as seen:
        began = time.time()
        client.CustomObjectsApi().create_namespaced_custom_object(*_JOBS, namespace, _PLURAL, body)
        made = seen.until(lambda s: len(s.pods) == body["spec"]["worker"]["replicas"] + 1)
        run = seen.until(lambda s: all(pod["status"]["phase"] == "Running" for pod in s.pods.values()))
        running = seen.until(lambda s: s.runs(attempt=1))
        trained = _until_log(namespace, trains)
        kill()
        killed = time.time()
        told = seen.until(lambda s: not s.runs(attempt=1))
        again = seen.until(lambda s: s.runs(attempt=2))
        trained_again = _until_log(namespace, trains)
    return {
        "all pods are made": made - began,
        "their containers run": run - made,
        "the job is Running": running - run,
        "the first epoch is over": trained - running,
        "a rank is killed, and the job no longer Running": told - killed,
        "the job is Running again": again - told,
        "its first epoch is over": trained_again - again,
    }


class _Seen:
    """The job and its pods as the API server's watches tell them, and when each moment was."""

    def __init__(self, namespace: str) -> None:
        self.job: Json = {}
        self.pods: dict[str, Json] = {}
        self._news = threading.Condition()
        self._at = 0.0
        listings = (
            (client.CustomObjectsApi().list_namespaced_custom_object, (*_JOBS, namespace, _PLURAL)),
            (client.CoreV1Api().list_namespaced_pod, (namespace,)),
        )
        self._watches = [(watch.Watch(), *listing) for listing in listings]

    def __enter__(self) -> _Seen:
        for each in self._watches:
            threading.Thread(target=self._listen, args=each, daemon=True).start()
        return self

    def __exit__(self, *_exc: object) -> None:
        for each, *_ in self._watches:
            each.stop()

    def _listen(self, each: watch.Watch, listing: Any, arguments: tuple[str, ...]) -> None:
        for event in each.stream(listing, *arguments, timeout_seconds=3 * int(DEADLINE_S)):
            raw = event["raw_object"]
            with self._news:
                if raw["kind"] != "Pod":
                    self.job = raw
                elif event["type"] == "DELETED":
                    self.pods.pop(raw["metadata"]["name"], None)
                else:
                    self.pods[raw["metadata"]["name"]] = raw
                self._at = time.time()
                self._news.notify_all()

    def until(self, holds: Callable[[_Seen], bool]) -> float:
        """When it was told that this holds. Raises TimeoutError."""
        with self._news:
            if not self._news.wait_for(lambda: holds(self), DEADLINE_S):
                raise TimeoutError(f"not within {DEADLINE_S:g} s; the job: {self.job.get('status')}")
            return self._at

    def runs(self, attempt: int) -> bool:
        """Whether all ranks of this attempt are started."""
        status = self.job.get("status") or {}
        conditions = {one["type"]: one["status"] for one in status.get("conditions") or ()}
        return status.get("attempt") == attempt and conditions.get("Running") == "True"


def _until_log(namespace: str, says: str) -> float:
    """When the launcher, which runs, has printed `says`."""
    log = client.CoreV1Api().read_namespaced_pod_log(
        "digits-launcher", namespace, follow=True, _preload_content=False, _request_timeout=DEADLINE_S
    )
    for line in log:
        if says in line.decode(errors="replace"):
            return time.time()
    raise RuntimeError(f"the launcher has ended and not printed {says!r}")


@contextmanager
def _namespace() -> Iterator[str]:
    config.load_kube_config()
    name = f"bench-{uuid.uuid4().hex[:8]}"
    core = client.CoreV1Api()
    core.create_namespace({"metadata": {"name": name}})
    try:
        yield name
    finally:
        _delete_pods(core, name)
        core.delete_namespace(name)


def _delete_pods(core: client.CoreV1Api, namespace: str) -> None:
    """End the job, whose processes would slow down the next run."""
    jobs = client.CustomObjectsApi()
    jobs.delete_collection_namespaced_custom_object(*_JOBS, namespace, _PLURAL)
    deadline = time.monotonic() + DEADLINE_S
    while core.list_namespaced_pod(namespace).items:
        if time.monotonic() > deadline:
            raise TimeoutError(f"pods of namespace {namespace} are there after {DEADLINE_S:g} s")
        time.sleep(0.2)
