"""Places that run jobs: `ClusterBackend` uses a cluster, `LocalBackend` this machine; both implement `Backend`."""

from __future__ import annotations

import copy
import os
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Protocol

from ringtrain_operator.cluster.api.client import ApiClient
from ringtrain_operator.cluster.api.connection import ApiConnection
from ringtrain_operator.cluster.api.errors import AlreadyExists, ApiError, Forbidden, NotFound, Unprocessable
from ringtrain_operator.cluster.api.resources import CONFIG_MAPS, JOBS
from ringtrain_operator.cluster.templates import merge_job_template
from ringtrain_operator.errors import Invalid, OperatorError, Problem
from ringtrain_operator.spec.parse import parse_job
from ringtrain_operator.spec.pod_schema import PodSchema, packaged_pod_spec_schema

from .causes import read_causes
from .cluster_logs import read_attempts
from .following import changes_of
from .launcher_output import WantedLauncherOutput
from .launcher_report import read_launcher_report
from .manifest import with_volume
from .script import Script
from .session import ClusterAccess, Json

if TYPE_CHECKING:
    from collections.abc import Callable

    from ringtrain_operator.observe.model import LauncherReport

SCRIPT_DIR = "/etc/ringtrain/script"
SCRIPT_VOLUME = "script"


class Backend(Protocol):
    """Interface of a backend, which is a place that runs jobs.

    Methods raise OperatorErrors, among them NotFound, AlreadyExists, Forbidden and Invalid.
    """

    async def place_of(self) -> str:
        """Return the namespace of the jobs."""

    def inside(self, namespace: str) -> Backend:
        """Return a backend for the jobs of `namespace`. The new backend shares the connections of this one, and closes
        with it."""

    def command_of(self, script: Script) -> list[str]:
        """Return the command that starts `script` in a rank's container."""

    async def check(self, job: Json) -> None:
        """Raise Invalid with every problem of the job's manifest."""

    async def create(self, job: Json, script: Script | None = None) -> Json:
        """Create a job and return it as stored. Its ranks find `script` at the path in `command_of(script)`."""

    async def get(self, name: str) -> Json:
        """Return the current job."""

    async def select(self, *, everywhere: bool = False) -> list[Json]:
        """Return the jobs of this backend's namespace, or of all namespaces if `everywhere`."""

    async def patch(self, name: str, spec: Mapping[str, Any]) -> Json:
        """Apply `spec` as a merge patch to the spec of the job `name`; return the changed job."""

    async def delete(self, name: str) -> None:
        """Delete the job and its pods."""

    def changes(self, name: str) -> AsyncGenerator[Json, None]:
        """Yield the job now, and the changed job after each change. End when the job is deleted."""

    def logs(self, wanted: WantedLauncherOutput) -> AsyncGenerator[bytes, None]:
        """Yield the requested log in chunks."""

    async def causes(self, name: str) -> list[str]:
        """Return the causes of the job's state, one per line, from the job's own conditions down to the root cause."""

    async def launcher_report(self, name: str) -> LauncherReport | None:
        """Return the current report of the job's launcher, with each rank's state; None if it is not available."""

    async def close(self) -> None:
        """Close connections and release all resources."""


class ClusterBackend:
    """Backend that runs jobs on a cluster.

    The cluster is the kubeconfig's cluster, or the cluster in which this program runs as a pod. An empty argument
    selects the kubeconfig's value. Connections belong to the event loop that first uses them.
    """

    def __init__(
        self,
        namespace: str = "",
        *,
        context: str = "",
        kubeconfig: str = "",
        user_agent: str = "ringtrain-sdk",
        tell: Callable[[str], object] | None = None,
    ) -> None:
        self._namespace = namespace
        self._context = context
        self._kubeconfig = kubeconfig
        self._user_agent = user_agent
        self._tell = {"tell": tell} if tell is not None else {}
        self._session: ClusterAccess | None = None
        self._schema: PodSchema | None = None

    async def session(self) -> ClusterAccess:
        """Return the API server's client and the namespace. The first call connects."""
        if self._session is None:
            connection = ApiConnection.from_env(os.environ, self._kubeconfig, self._context)
            api = ApiClient(connection, user_agent=self._user_agent)
            self._session = ClusterAccess(api, self._namespace or connection.namespace, **self._tell)
        return self._session

    async def place_of(self) -> str:
        """Return the namespace of the jobs."""
        return (await self.session()).namespace

    def inside(self, namespace: str) -> ClusterBackend:
        """Return a backend for the jobs of `namespace` that uses the same connections."""
        made = copy.copy(self)
        made._namespace = namespace
        made._session = self._session and replace(self._session, namespace=namespace)
        return made

    def command_of(self, script: Script) -> list[str]:
        """Return the command that runs the script's file, which is mounted from a ConfigMap."""
        return ["python", f"{SCRIPT_DIR}/{script.name}"]

    async def schema(self) -> PodSchema:
        """Return the cluster's schema of pod templates, or the packaged one if the cluster offers none."""
        from ringtrain_operator.cluster.pod_schema import read_pod_schema

        if self._schema is None:
            try:
                self._schema = await read_pod_schema((await self.session()).api)
            except (Forbidden, NotFound):
                self._schema = packaged_pod_spec_schema()
        return self._schema

    async def check(self, job: Json) -> None:
        """Raise Invalid with every problem of the job's manifest, including those by the cluster's schema of pods."""
        session = await self.session()
        meta = {"namespace": session.namespace, **job["metadata"]}
        whole = await merge_job_template(session.api, {**job, "metadata": meta})
        if whole.problem is not None:
            raise whole.problem
        parse_job(whole.job, schema=await self.schema())

    async def create(self, job: Json, script: Script | None = None) -> Json:
        """Create a job. `script` is stored in a ConfigMap, which is deleted together with the job."""
        session = await self.session()
        name = job["metadata"].get("name") or ""
        if script is not None:
            volume = {"name": SCRIPT_VOLUME, "configMap": {"name": _script_map_name(name)}}
            job = with_volume(job, volume, SCRIPT_DIR)
        await self.check(job)
        namespace = job["metadata"].get("namespace") or session.namespace
        created = await _create_job(session.api, namespace, job)
        if script is not None:
            try:
                await session.api.create(CONFIG_MAPS, namespace, _config_map(created, script))
            except ApiError:
                await session.api.delete(JOBS, namespace, name, uid=created["metadata"]["uid"])
                raise
        return created

    async def get(self, name: str) -> Json:
        """Return the current job."""
        session = await self.session()
        return await session.api.get(JOBS, session.namespace, name)

    async def select(self, *, everywhere: bool = False) -> list[Json]:
        """Return the jobs of this backend's namespace, or of all namespaces if `everywhere`, ordered by name."""
        session = await self.session()
        return await session.api.select(JOBS, None if everywhere else session.namespace)

    async def patch(self, name: str, spec: Mapping[str, Any]) -> Json:
        """Apply `spec` as a merge patch to the spec of the job `name`; return the changed job."""
        session = await self.session()
        try:
            return await session.api.patch(JOBS, session.namespace, name, {"spec": dict(spec)})
        except Unprocessable as exc:
            raise _with_fields(exc) from exc

    async def delete(self, name: str) -> None:
        """Delete the job. Its pods and its script are deleted with the job."""
        session = await self.session()
        await session.api.delete(JOBS, session.namespace, name)

    async def changes(self, name: str) -> AsyncGenerator[Json, None]:
        """Yield the job now, and the changed job after each change. End when the job is deleted."""
        session = await self.session()
        async with aclosing(changes_of(session.api, session.namespace, name)) as jobs:
            async for job in jobs:
                yield job

    async def logs(self, wanted: WantedLauncherOutput) -> AsyncGenerator[bytes, None]:
        """Yield the requested log: from the launcher's output, or from the storage that spec.logs names."""
        async with aclosing(read_attempts(await self.session(), wanted)) as chunks:
            async for chunk in chunks:
                yield chunk

    async def causes(self, name: str) -> list[str]:
        """Return the causes of the job's state, found in the job, its pods and their events, one per line."""
        return await read_causes(await self.session(), name)

    async def launcher_report(self, name: str) -> LauncherReport | None:
        """Return the launcher's current report; None also if the user may not forward a port of its pod."""
        return await read_launcher_report(await self.session(), name)

    async def close(self) -> None:
        """Close the connections."""
        session, self._session = self._session, None
        if session is not None:
            await session.api.close()


async def _create_job(api: ApiClient, namespace: str, job: Json) -> Json:
    name = job["metadata"].get("name") or job["metadata"].get("generateName", "")
    try:
        return await api.create(JOBS, namespace, job)
    except AlreadyExists as exc:
        raise AlreadyExists(
            f"{namespace}/{name} exists already; delete that job (dtj delete {name}) or choose another name"
        ) from exc
    except NotFound as exc:
        raise NotFound(f"{exc}: is the operator installed, and does the namespace {namespace} exist?") from exc
    except Unprocessable as exc:
        raise _with_fields(exc) from exc


def _with_fields(exc: Unprocessable) -> OperatorError:
    """Convert an API server's rejection to Invalid with the fields that it names; return `exc` if it names none."""
    return Invalid([Problem(path, message) for path, message in exc.fields]) if exc.fields else exc


def _script_map_name(name: str) -> str:
    return f"{name}-script"


def _config_map(job: Json, script: Script) -> Json:
    """Return a ConfigMap with the script. It is owned by the job, so it is deleted together with the job."""
    meta = job["metadata"]
    owner = {"apiVersion": job["apiVersion"], "kind": job["kind"], "name": meta["name"], "uid": meta["uid"]}
    metadata = {"name": _script_map_name(meta["name"]), "ownerReferences": [{**owner, "controller": True}]}
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": metadata,
        "immutable": True,
        "data": {script.name: script.text},
    }
