"""Asynchronous client for jobs: `AsyncClient` starts and finds them, `AsyncRun` is one job."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import aclosing
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypedDict, Unpack

from ringtrain_operator.cluster.api.errors import NotFound
from ringtrain_operator.errors import Invalid, ManifestUnreadable, Problem, shown, spelling_hint
from ringtrain_operator.spec.parse import parse_job
from ringtrain_operator.spec.training_template import named_template
from ringtrain_operator.status.model import JobStatus, Progress, parse_status

from ..local.manifest import load_jobs
from .backends import Backend, ClusterBackend
from .errors import JobEnded, JobFailed, ScriptUnusable, Timeout
from .following import ENDED, state_of
from .launcher_output import WantedLauncherOutput
from .local_backend import LocalBackend
from .manifest import Training, escape_references, manifest_of, unique_job_name
from .script import Script, function_script, read_script
from .session import Json
from .views import Snapshot, Why, default_display, snapshot_of

Code = str | Path | Callable[..., object]
# Image of local jobs. It is not used.
NO_IMAGE = "local"


class Options(TypedDict, total=False):
    """Arguments of `AsyncClient.train` in addition to the training code.

    `image`: container image of the ranks, with Python and the imported packages. Required on a cluster unless the
    template sets the image; ignored on this machine.
    `template`: ClusterTrainingTemplate with defaults, by its name, or {"kind": "TrainingTemplate", "name": ...}.
    `workers`: number of pods.
    `devices`: devices of each worker, for example {"nvidia.com/gpu": 2}. Each device gets a rank unless `slots` is set.
    `slots`: number of ranks of a worker.
    `args`: strings for a script, or JSON values for a function.
    `kwargs`: JSON values for a function.
    `env`: variables of the ranks. `args` of a script and `env` are passed unchanged, also `$(NAME)`.
    `resources`: resources of a worker, in the format of Kubernetes.
    `name`: name of the job, by default the script's name and some random characters.
    `in_image`: the script is not on this machine; `code` is its path in the image.
    `spec`: other fields of the job's spec, merged over the rest: mappings are merged, other values are replaced.
    """

    name: str
    image: str
    template: str | Mapping[str, str]
    workers: int
    devices: Mapping[str, int]
    slots: int | None
    args: Sequence[Any]
    kwargs: Mapping[str, Any]
    env: Mapping[str, str]
    resources: Mapping[str, Any]
    in_image: bool
    spec: Mapping[str, Any]


class AsyncRun:
    """One job. Each method reads the current state from the cluster; nothing is cached.

    All methods raise NotFound if the job was deleted, and Forbidden if the user does not have the right.
    """

    def __init__(self, backend: Backend, name: str, namespace: str) -> None:
        self._backend = backend
        self.name = name
        self.namespace = namespace

    def __repr__(self) -> str:
        return f"<run {self.namespace}/{self.name}>"

    async def job(self) -> Json:
        """Return the whole DistributedTrainingJob."""
        return await self._backend.get(self.name)

    async def status(self) -> JobStatus:
        """Return the job's status, which the operator writes."""
        return parse_status((await self.job()).get("status"))

    async def snapshot(self) -> Snapshot:
        """Return a summary of the job; a notebook shows it as a table."""
        return snapshot_of(await self.job())

    async def metrics(self) -> Progress | None:
        """Return the last reported step, loss, speed and the job's own metrics; None before the first report."""
        return (await self.status()).progress

    async def why(self) -> Why:
        """Return the causes of the job's state, as `dtj why` prints them."""
        status = await self.status()
        return Why(tuple(await self._backend.causes(self.name)), status.failure)

    async def watch(self) -> AsyncGenerator[Snapshot, None]:
        """Yield a summary of the job now and after each change, until the job has ended.

        Raises NotFound if it is deleted.
        """
        async with aclosing(self._backend.changes(self.name)) as jobs:
            async for job in jobs:
                yield snapshot_of(job)
                if state_of(job) in ENDED:
                    return
        raise NotFound(f"{self.namespace}/{self.name} was deleted")

    async def wait(self, timeout: float | None = None, *, until: str = "", show: bool = False) -> JobStatus:
        """Wait until the job has succeeded, or has reached the state `until`. Return its status.

        `timeout`: seconds to wait, or None for no limit except the job's own deadlines. `show`: display the progress as
        a table that changes (in a notebook) or as lines on stderr. Raises JobFailed with the causes, also if the job is
        Rejected, which only a user can change. Raises Timeout after `timeout`, NotFound if the job is deleted, and
        JobEnded if the job ends before it reaches `until`.
        """
        display, last = default_display() if show else None, "Pending"
        try:
            async with asyncio.timeout(timeout), aclosing(self.watch()) as snapshots:
                async for snapshot in snapshots:
                    last = snapshot.state
                    if display is not None:
                        display.show(snapshot)
                    if last == until:
                        return snapshot.status
                    if last == "Rejected":
                        break
        except TimeoutError as exc:
            raise Timeout(await self._timeout_text(timeout, last, until)) from exc
        if last in ("Failed", "Rejected"):
            raise JobFailed(f"{self.namespace}/{self.name}", await self.status(), (await self.why()).lines)
        if until:
            raise JobEnded(f"{self.namespace}/{self.name} has ended ({last}) and was never observed in state {until}")
        return await self.status()

    async def _timeout_text(self, timeout: float | None, state: str, until: str) -> str:
        """Return the message of a Timeout, with the job's state and its causes."""
        wanted = until or "at its end"
        text = f"{self.namespace}/{self.name} is {state} and not {wanted} after {timeout:g} s"
        try:
            return f"{text}: {await self.why()}"
        except NotFound:
            return text

    async def scale(self, workers: int) -> None:
        """Change the number of workers. Raises Invalid for an invalid number, JobEnded if the job has ended."""
        await self._patch({"worker": {"replicas": workers}})

    async def suspend(self) -> None:
        """Delete the job's pods. `resume()` continues the job from its checkpoint. Raises JobEnded if the job has
        ended."""
        await self._patch({"runPolicy": {"suspend": True}})

    async def resume(self) -> None:
        """Let a suspended job run again. Raises JobEnded if the job has ended."""
        await self._patch({"runPolicy": {"suspend": False}})

    async def _patch(self, spec: Json) -> None:
        """Apply a merge patch to the job's spec. Raises JobEnded if the job has ended."""
        state = state_of(await self.job())
        if state in ENDED:
            raise JobEnded(f"{self.namespace}/{self.name} has ended ({state}); delete and submit it to run it again")
        await self._backend.patch(self.name, spec)

    async def delete(self) -> None:
        """Delete the job and its pods. Volumes stay."""
        await self._backend.delete(self.name)

    async def logs(
        self, rank: int | None = None, *, follow: bool = False, attempt: int | None = None, tail: int | None = None
    ) -> AsyncGenerator[str, None]:
        """Yield the lines of rank `rank`, or the merged lines of all ranks (None), without line ends.

        `follow`: continue with new lines until the job ends, across restarts. `attempt`: number of the attempt whose
        lines are read; None: the current one. `tail`: begin with the last `tail` lines.
        """
        async with aclosing(self.log_chunks(WantedLauncherOutput(self.name, rank, attempt, follow, tail))) as chunks:
            rest = b""
            async for chunk in chunks:
                *lines, rest = (rest + chunk).split(b"\n")
                for line in lines:
                    yield line.decode(errors="replace")
            if rest:
                yield rest.decode(errors="replace")

    def log_chunks(self, wanted: WantedLauncherOutput) -> AsyncGenerator[bytes, None]:
        """Yield the requested log as bytes, in chunks of any size."""
        return self._backend.logs(wanted)


class AsyncClient:
    """Client that starts and finds jobs on a cluster, or with LocalBackend() on this machine; a context manager.

    Without a backend, jobs run on the kubeconfig's cluster, or on the cluster in which this program runs as a pod.
    """

    def __init__(self, backend: Backend | None = None, *, namespace: str = "") -> None:
        if backend is not None and namespace:
            raise ValueError(
                "backend and namespace are both set; pass backend=ClusterBackend(namespace=...) without namespace"
            )
        self.backend: Backend = backend or ClusterBackend(namespace)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the connections. Jobs on a cluster continue; jobs on this machine end."""
        await self.backend.close()

    async def train(self, code: Code, **options: Unpack[Options]) -> AsyncRun:
        """Start a job that runs `code` once per rank, and return it. `code` is a Python file, or a function, which is
        sent as source.

        `options`: see Options. A file is stored in a ConfigMap that the job owns, so its limit is 1 MiB. Raises
        ScriptUnusable if the code cannot be sent, Invalid with each wrong field, AlreadyExists, Forbidden.
        """
        if unknown := sorted(options.keys() - Options.__annotations__.keys()):
            hint = spelling_hint(unknown[0], Options.__annotations__)
            raise TypeError(
                f"train() has no argument {unknown[0]!r}; {hint or 'pass other fields of the job as spec='}"
            )
        template, image = options.get("template") or "", options.get("image") or ""
        if not image and not template:
            if not isinstance(self.backend, LocalBackend):
                message = (
                    "is missing; on a cluster, ranks need an image with Python and the packages that the code imports"
                )
                raise Invalid([Problem("image", message)])
            image = NO_IMAGE
        script, command = self._command(code, options)
        training = Training(
            command=[escape_references(word) for word in command],
            image=image,
            template=template,
            workers=options.get("workers", 1),
            devices=options.get("devices") or {},
            slots=options.get("slots"),
            env={key: escape_references(value) for key, value in (options.get("env") or {}).items()},
            resources=options.get("resources") or {},
            spec=options.get("spec") or {},
        )
        stem = Path(script.name if script is not None else str(code)).stem
        job = manifest_of(training, options.get("name") or unique_job_name(stem))
        return self._run(await self.backend.create(job, script))

    def _command(self, code: Code, options: Options) -> tuple[Script | None, list[str]]:
        """Return the script to send (None if it is in the image) and the ranks' command. Raises ScriptUnusable for
        invalid code or arguments."""
        args, kwargs = options.get("args", ()), options.get("kwargs") or {}
        in_image = options.get("in_image", False)
        if not isinstance(code, str | Path):
            if in_image:
                raise ScriptUnusable(
                    "in_image=True needs the path of a script, not a function; a function is sent to the "
                    "cluster as source code"
                )
            script = function_script(code, args, kwargs)
            return script, self.backend.command_of(script)
        wrong = next((arg for arg in args if not isinstance(arg, str)), None)
        if kwargs or wrong is not None or isinstance(args, str):
            problem = "kwargs are for a function" if kwargs else f"args is {shown(args)}"
            raise ScriptUnusable(f"{problem}; to a script, pass args=[...], a list of strings, and no kwargs")
        if in_image:
            return None, ["python", str(code), *args]
        script = read_script(code)
        return script, [*self.backend.command_of(script), *args]

    async def submit(self, manifest: Mapping[str, Any] | str | Path) -> AsyncRun:
        """Create the job of a manifest (a mapping, or a file with one job). Raises Invalid with each wrong field."""
        return self._run(await self.backend.create(_load_one_job(manifest)))

    async def get(self, name: str) -> AsyncRun:
        """Return the job `name`. Raises NotFound if it does not exist."""
        return self._run(await self.backend.get(name))

    async def of(self, name: str) -> AsyncRun:
        """Return the job `name` without a check that it exists. If it does not, its methods raise NotFound."""
        return AsyncRun(self.backend, name, await self.backend.place_of())

    async def list(self) -> list[AsyncRun]:
        """Return all jobs of the namespace."""
        return [self._run(job) for job in await self.backend.select()]

    def _run(self, job: Json) -> AsyncRun:
        namespace = job["metadata"].get("namespace") or "default"
        return AsyncRun(self.backend.inside(namespace), job["metadata"]["name"], namespace)


def _load_one_job(manifest: Mapping[str, Any] | str | Path) -> Json:
    """Return the one job in a manifest or in a file. Raises Invalid for an invalid job, ManifestUnreadable for a file
    without one job."""
    if isinstance(manifest, Mapping):
        if named_template(manifest) is None:  # with a template, the backend checks the merged job
            parse_job(manifest, templates=False)  # the backend knows which pod templates its cluster takes
        return dict(manifest)
    path = Path(manifest)
    jobs = load_jobs(path)
    if len(jobs) > 1:
        names = ", ".join(str((job.get("metadata") or {}).get("name")) for job in jobs)
        raise ManifestUnreadable(f"{path}: has {len(jobs)} jobs ({names}); submit them one by one")
    return jobs[0]
