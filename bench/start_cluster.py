"""Moments of jobs on a cluster: what its API server tells of a job and its pods, and its log.

    KUBECONFIG=... python -m bench.start_cluster

Prints the times that a user waits for, and the bound of each, on an idle machine: from a job's creation until it runs,
until digits is trained, and from a killed rank until the next step. `python -m bench.start --cluster` has the parts.
"""

from __future__ import annotations

import argparse
import os
import re
import signal
import statistics
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil
import yaml
from kubernetes import client, config, watch
from urllib3.exceptions import ProtocolError

Json = dict[str, Any]
DEADLINE_S = 120.0
_JOBS = ("ringtrain.dev", "v1alpha1")
_PLURAL = "distributedtrainingjobs"
DIGITS = Path(__file__).parents[1] / "manifests" / "samples" / "digits-ring.yaml"
# Steps of 20 ms; the first one of each world is in the log with its time.
_STEPS = """
import itertools
import time
import numpy as np
import ringtrain as rt
from ringtrain import elastic

@elastic.run
def train(state):
    for step in itertools.count():
        rt.allreduce(np.ones(1, np.float32))
        if rt.rank() == step == 0:
            print(f"trains at {time.time()}", flush=True)
        state.steps += 1
        state.commit()
        time.sleep(0.02)

rt.init()
train(elastic.State(steps=0))
"""


def main() -> None:
    """Measure, and print a table in Markdown."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--agent", help="only until the job runs, with this spec.agent; Inject: as for an own image")
    options = parser.parse_args()
    seconds_until_running()  # images and files are there from now on
    only_start: dict[str, tuple[float, Callable[[], float]]] = {
        f"created → Running, agent: {options.agent}": (5, lambda: seconds_until_running(agent=options.agent))
    }
    print("| | s, median | least to most | bound | load |\n| --- | --- | --- | --- | --- |", flush=True)
    for what, (bound, measured) in (only_start if options.agent else MEASURES).items():
        found = [measured() for _ in range(options.runs)]
        columns = (
            f"{statistics.median(found):.2f}",
            f"{min(found):.2f} to {max(found):.2f}",
            bound,
            f"{os.getloadavg()[0]:.1f}",
        )
        print("|", what, *(f"| {column}" for column in columns), "|", flush=True)


def seconds_until_running(**spec: Any) -> float:
    """From the creation of the sample, with these fields of its spec, until its condition Running."""
    body = yaml.safe_load(DIGITS.read_text())
    body["spec"] |= spec
    with _started(body) as (_, seen, began):
        return seen.until(lambda s: s.runs(attempt=1)) - began


def seconds_until_trained() -> float:
    """From the creation of the sample until its condition Succeeded."""
    with _started(yaml.safe_load(DIGITS.read_text())) as (_, seen, began):
        return seen.until(lambda s: s.has("Succeeded")) - began


def seconds_after_kill(spec: Json) -> float:
    """From the SIGKILL of a rank until the next step of the ranks, by their own clock."""
    body = yaml.safe_load(DIGITS.read_text())
    body["spec"] |= {**spec, "slotsPerWorker": 1}
    body["spec"]["worker"]["template"]["spec"]["containers"][0]["command"] = ["python", "-c", _STEPS]
    with _started(body) as (namespace, _, _):
        _trained_at(namespace, after=0)
        time.sleep(1)  # of steps, so that no part of the start is in what follows
        killed = time.time()
        kill_a_rank(namespace)
        return _trained_at(namespace, after=killed) - killed


# With the bound in seconds on two idle cores with containerd 2.1, the images on the node; 5 by an init container.
MEASURES: dict[str, tuple[float, Callable[[], float]]] = {
    "created → Running": (3, seconds_until_running),
    "digits is trained": (15, seconds_until_trained),
    "killed rank → next step, elastic": (1.5, lambda: seconds_after_kill({"elastic": {"maxReplicas": 2}})),
    "killed rank → next step, restart of the gang": (4, lambda: seconds_after_kill({})),
}


def kill_a_rank(namespace: str) -> None:
    """Kill the last rank of the jobs in a namespace whose nodes are this machine, or containers of it."""

    def rank(process: psutil.Process) -> int:
        try:
            variables = process.environ()
        except psutil.Error:
            return -1
        here = variables.get("RINGTRAIN_JOB_NAMESPACE") == namespace
        return int(variables.get("RINGTRAIN_RANK", variables.get("RINGTRAIN_SLOT", -1))) if here else -1

    ranks = {rank(process): process for process in psutil.process_iter()}
    os.kill(ranks[max(ranks)].pid, signal.SIGKILL)


def measure(job: Path, trains: str) -> dict[str, float]:
    """One run in a namespace of its own: seconds since the moment before, by what they ended with.

    `trains`: what the launcher's log holds once an attempt trains.
    """
    body = yaml.safe_load(job.read_text())
    with _started(body) as (namespace, seen, began):
        made = seen.until(lambda s: len(s.pods) == body["spec"]["worker"]["replicas"] + 1)
        run = seen.until(lambda s: all(pod["status"]["phase"] == "Running" for pod in s.pods.values()))
        running = seen.until(lambda s: s.runs(attempt=1))
        trained = _until_log(namespace, trains)
        kill_a_rank(namespace)
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


@contextmanager
def _started(body: Json) -> Iterator[tuple[str, _Seen, float]]:
    """A job created in a namespace of its own: that, what is seen of it, and when it was created."""
    with _namespace() as namespace, _Seen(namespace) as seen:
        began = time.time()
        client.CustomObjectsApi().create_namespaced_custom_object(*_JOBS, namespace, _PLURAL, body)
        yield namespace, seen, began


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
        with suppress(ProtocolError):  # the namespace is deleted, and the watch with it
            for event in each.stream(listing, *arguments, timeout_seconds=3 * int(DEADLINE_S)):
                if event["raw_object"] is not None:  # else the stream has ended with an empty answer
                    self._note(event["type"], event["raw_object"])

    def _note(self, kind: str, raw: Json) -> None:
        with self._news:
            if raw["kind"] != "Pod":
                self.job = raw
            elif kind == "DELETED":
                self.pods.pop(raw["metadata"]["name"], None)
            else:
                self.pods[raw["metadata"]["name"]] = raw
            self._at = time.time()
            self._news.notify_all()

    def until(self, holds: Callable[[_Seen], bool]) -> float:
        """Wait until `holds` is true; return the time of the last event received. Raises TimeoutError."""
        with self._news:
            if not self._news.wait_for(lambda: holds(self), DEADLINE_S):
                raise TimeoutError(f"not within {DEADLINE_S:g} s; the job: {self.job.get('status')}")
            return self._at

    def runs(self, attempt: int) -> bool:
        """Whether all ranks of this attempt are started."""
        status = self.job.get("status") or {}
        return status.get("attempt") == attempt and self.has("Running")

    def has(self, condition: str) -> bool:
        """Whether this condition of the job is true."""
        conditions = (self.job.get("status") or {}).get("conditions") or ()
        return any(one["type"] == condition and one["status"] == "True" for one in conditions)


def _until_log(namespace: str, says: str) -> float:
    """Return the time at which the running launcher printed `says`."""
    log = client.CoreV1Api().read_namespaced_pod_log(
        "digits-launcher", namespace, follow=True, _preload_content=False, _request_timeout=DEADLINE_S
    )
    for line in log:
        if says in line.decode(errors="replace"):
            return time.time()
    raise RuntimeError(f"the launcher has ended and not printed {says!r}")


def _trained_at(namespace: str, *, after: float) -> float:
    """Return the time of the first step of the first world after `after`. Retries while the launcher is replaced."""
    deadline = time.monotonic() + DEADLINE_S
    while time.monotonic() < deadline:
        try:
            log = client.CoreV1Api().read_namespaced_pod_log("digits-launcher", namespace) or ""
        except client.ApiException:
            log = ""
        times = [float(found) for found in re.findall(r"trains at ([0-9.]+)", log)]
        if times and times[-1] > after:
            return min(found for found in times if found > after)
        time.sleep(0.1)
    raise TimeoutError(f"no rank has trained within {DEADLINE_S:g} s")


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


if __name__ == "__main__":
    main()
