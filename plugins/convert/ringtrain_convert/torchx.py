"""Scheduler for TorchX: `torchx run -s ringtrain dist.ddp -j 2x4 --script train.py`.

An app of one role is one job; its replicas are workers. The agent starts every rank, with torchrun's variables: if a
role's command is torchrun, the program behind it is run instead. TorchX finds the scheduler by an entry point.

Maturity: Beta.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from contextlib import suppress
from datetime import datetime
from typing import Any

from torchx.schedulers.api import DescribeAppResponse, ListAppResponse, Scheduler, Stream
from torchx.specs.api import AppDef, AppDryRunInfo, AppState, Role, VolumeMount, macros, runopts

from ringtrain_client.jobs.backends import ClusterBackend
from ringtrain_client.jobs.blocking import Client
from ringtrain_client.jobs.local_backend import LocalBackend
from ringtrain_client.jobs.manifest import Training, manifest_of, unique_job_name
from ringtrain_convert.kubeflow import lines_of_worker
from ringtrain_convert.torchrun import read_torchrun
from ringtrain_operator.cluster.api.errors import NotFound
from ringtrain_operator.errors import Invalid, Problem

Json = dict[str, Any]
__all__ = ["RingtrainScheduler", "create_scheduler"]

# Replaces the namespace in the ids of apps on this machine.
LOCAL = "local"
_STATES = {
    "Pending": AppState.PENDING,
    "Queued": AppState.PENDING,
    "Suspended": AppState.PENDING,
    "Restarting": AppState.PENDING,
    "Running": AppState.RUNNING,
    "Succeeded": AppState.SUCCEEDED,
    "Failed": AppState.FAILED,
    "Rejected": AppState.FAILED,
}


def create_scheduler(session_name: str, **_: object) -> RingtrainScheduler:
    """Return a new scheduler. TorchX calls this function, which an entry point names."""
    return RingtrainScheduler(session_name)


class RingtrainScheduler(Scheduler):
    """TorchX scheduler that runs each app as a job. An app's id is NAMESPACE:NAME, or local:NAME."""

    def __init__(self, session_name: str) -> None:
        super().__init__("ringtrain", session_name)
        self._clients: dict[str, Client] = {}

    def close(self) -> None:
        """Close the connections. Apps on this machine end."""
        for client in self._clients.values():
            client.close()
        self._clients.clear()

    def _run_opts(self) -> runopts:
        options = runopts()
        options.add(
            "namespace", type_=str, default="", help="namespace of the job; default: the namespace in the kubeconfig"
        )
        options.add(
            "local", type_=bool, default=False, help="run on this machine; apps stop when torchx exits: use --wait"
        )
        return options

    def _submit_dryrun(self, app: AppDef, cfg: Any) -> AppDryRunInfo:
        place = LOCAL if cfg.get("local") else str(cfg.get("namespace") or "")
        return AppDryRunInfo((place, job_of(app)), lambda request: json.dumps(request[1], indent=2))

    def schedule(self, dryrun_info: AppDryRunInfo) -> str:
        """Create the job of a TorchX app and return the app's id."""
        place, job = dryrun_info.request
        run = self._client(place).submit(job)
        return f"{LOCAL if place == LOCAL else run.namespace}:{run.name}"

    def describe(self, app_id: str) -> DescribeAppResponse | None:
        """Return an app's state, restarts, and the reason for its state; None if its job does not exist."""
        run = self._run(app_id)
        try:
            snapshot = run.snapshot()
            why = "" if snapshot.state == "Succeeded" else str(run.why())
        except NotFound:
            return None
        state = _STATES.get(snapshot.state, AppState.UNKNOWN)
        return DescribeAppResponse(app_id=app_id, state=state, num_restarts=snapshot.status.restarts, msg=why)

    def list(self) -> list[ListAppResponse]:
        """Return the apps of all jobs in the kubeconfig's namespace."""
        found = []
        for run in self._client("").list():
            with suppress(NotFound):  # deleted meanwhile
                state = _STATES.get(run.snapshot().state, AppState.UNKNOWN)
                found.append(ListAppResponse(f"{run.namespace}:{run.name}", state))
        return found

    def _cancel_existing(self, app_id: str) -> None:
        self._run(app_id).delete()

    def log_iter(
        self,
        app_id: str,
        role_name: str,
        k: int = 0,
        regex: str | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
        should_tail: bool = False,
        streams: Stream | None = None,
    ) -> Iterable[str]:
        """Return the log lines of the ranks of worker `k`. Raises ValueError for a filter by time or stream."""
        if since is not None or until is not None or streams not in (None, Stream.COMBINED):
            raise ValueError(
                "ringtrain's logs mix stdout and stderr and have no timestamps; remove the time range and the stream"
            )
        lines = lines_of_worker(self._run(app_id), k, follow=should_tail)
        return (f"{line}\n" for line in lines if regex is None or re.search(regex, line))

    def _run(self, app_id: str) -> Any:
        place, _, name = app_id.rpartition(":")
        return self._client(place).of(name)

    def _client(self, place: str) -> Client:
        if place not in self._clients:
            backend = LocalBackend() if place == LOCAL else ClusterBackend(place, user_agent="ringtrain-torchx")
            self._clients[place] = Client(backend)
        return self._clients[place]


def job_of(app: AppDef) -> Json:
    """Return the DistributedTrainingJob for a TorchX app. Raises Invalid for fields that jobs do not have."""
    if len(app.roles) != 1:
        raise Invalid([Problem("roles", f"has {len(app.roles)}, expected one: its replicas are the workers")])
    name = unique_job_name(app.name)
    values = macros.Values(img_root="", app_id=name, replica_id="$(RINGTRAIN_WORKER_INDEX)", rank0_env="MASTER_ADDR")
    role: Role = values.apply(app.roles[0])
    started = read_torchrun([role.entrypoint, *role.args])
    slots = int(started.per_node) if started is not None and started.per_node.isdecimal() else None
    spec: Json = {"runPolicy": {"backoffLimit": role.max_retries}}
    if role.min_replicas is not None and role.min_replicas != role.num_replicas:
        spec["elastic"] = {"minReplicas": role.min_replicas, "maxReplicas": role.num_replicas}
    training = Training(
        command=started.program if started is not None else (role.entrypoint, *role.args),
        image=role.image,
        workers=role.num_replicas,
        devices=_devices(role),
        slots=slots,
        env=role.env,
        resources=_resources(role),
        spec=spec,
    )
    return _with_volumes(manifest_of(training, name), role)


def _devices(role: Role) -> dict[str, int]:
    gpus = {"nvidia.com/gpu": role.resource.gpu} if role.resource.gpu > 0 else {}
    return {**gpus, **role.resource.devices}


def _resources(role: Role) -> Json:
    given = {"cpu": str(role.resource.cpu)} if role.resource.cpu > 0 else {}
    if role.resource.memMB > 0:
        given["memory"] = f"{role.resource.memMB}M"
    return {"requests": given, "limits": given} if given else {}


def _with_volumes(job: Json, role: Role) -> Json:
    pod = job["spec"]["worker"]["template"]["spec"]
    for index, mount in enumerate(role.mounts):
        if not isinstance(mount, VolumeMount):
            kind = type(mount).__name__
            raise Invalid([Problem(f"mounts[{index}]", f"is a {kind}, expected a volume: a claim's name")])
        name = f"volume-{index}"
        claim = {"claimName": mount.src, "readOnly": mount.read_only}
        pod.setdefault("volumes", []).append({"name": name, "persistentVolumeClaim": claim})
        at = {"name": name, "mountPath": mount.dst_path, "readOnly": mount.read_only}
        pod["containers"][0].setdefault("volumeMounts", []).append(at)
    return job
