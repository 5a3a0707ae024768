"""Jobs of a program, asynchronously: `AsyncClient` starts them, `AsyncRun` is one of them."""

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

from ..local.manifest import load_objects
from .backends import Backend, ClusterBackend
from .errors import JobEnded, JobFailed, ScriptUnusable, Timeout
from .following import ENDED, state_of
from .launcher_output import WantedLauncherOutput
from .local_backend import LocalBackend
from .manifest import Training, fresh_job_name, manifest_of, yaml_literal
from .script import Script, function_script, read_script
from .session import Json
from .views import Snapshot, Why, display_here, snapshot_of

Code = str | Path | Callable[..., object]
# What a local job has for an image, which nobody looks at.
NO_IMAGE = "local"


class Options(TypedDict, total=False):
    """What `train` takes beside the code.

    `image`: for ranks, with Python and what the code imports; needed on a cluster unless a template has it,
    ignored on this machine. `template`: the ClusterTrainingTemplate that says what the others do not, by its name,
    or {"kind": "TrainingTemplate", "name": ...}.
    `workers`: pods. `devices`: of each worker, for example {"nvidia.com/gpu": 2}; each gets a rank unless `slots`
    says how many ranks a worker has. `args`: texts for a script; JSON values for a function, which gets `kwargs`,
    too. `env`: variables of the ranks. These texts arrive as they are, `$(NAME)` among them. `resources`: as
    Kubernetes writes them. `name`: default: the script's, and some letters. `in_image`: the script is not here but
    in the image, at this path. `spec`: anything else of the job's spec, laid over what the others make: mappings
    are merged, all else is replaced.
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
    """One job. Its methods ask the cluster each time; none keeps what was true before.

    All of them raise NotFound when the job is gone, and Forbidden where the user may not ask.
    """

    def __init__(self, backend: Backend, name: str, namespace: str) -> None:
        self._backend = backend
        self.name = name
        self.namespace = namespace

    def __repr__(self) -> str:
        return f"<run {self.namespace}/{self.name}>"

    async def job(self) -> Json:
        """The whole DistributedTrainingJob."""
        return await self._backend.get(self.name)

    async def status(self) -> JobStatus:
        """What the operator says of the job."""
        return parse_status((await self.job()).get("status"))

    async def snapshot(self) -> Snapshot:
        """The job in short; in a notebook a table."""
        return snapshot_of(await self.job())

    async def metrics(self) -> Progress | None:
        """Step, loss, speed and the job's own metrics as last reported; None before the first report."""
        return (await self.status()).progress

    async def why(self) -> Why:
        """Why the job is in the state it is in, as `dtj why` says it."""
        status = await self.status()
        return Why(tuple(await self._backend.causes(self.name)), status.failure)

    async def watch(self) -> AsyncGenerator[Snapshot, None]:
        """The job as it is now and after each change, until it has ended. Raises NotFound when it is deleted."""
        async with aclosing(self._backend.changes(self.name)) as jobs:
            async for job in jobs:
                yield snapshot_of(job)
                if state_of(job) in ENDED:
                    return
        raise NotFound(f"{self.namespace}/{self.name} was deleted")

    async def wait(self, timeout: float | None = None, *, until: str = "", show: bool = False) -> JobStatus:
        """Wait until the job has succeeded, or is in the state `until`; the answer is its status.

        `timeout`: seconds; None: as long as the job may take by its own deadlines. `show`: what it does is shown
        meanwhile, in a notebook as a table that changes, elsewhere as lines on stderr. Raises JobFailed with the
        first cause, also for a job that is Rejected, as that goes on only when somebody changes it; Timeout;
        NotFound when the job is deleted; JobEnded when it ends before it comes to `until`.
        """
        display, last = display_here() if show else None, "Pending"
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
            raise Timeout(await self._late(timeout, last, until)) from exc
        if last in ("Failed", "Rejected"):
            raise JobFailed(f"{self.namespace}/{self.name}", await self.status(), (await self.why()).lines)
        if until:
            raise JobEnded(f"{self.namespace}/{self.name} is {last}, and was never seen {until}")
        return await self.status()

    async def _late(self, timeout: float | None, state: str, until: str) -> str:
        wanted = until or "at its end"
        said = f"{self.namespace}/{self.name} is {state} and not {wanted} after {timeout:g} s"
        try:
            return f"{said}: {await self.why()}"
        except NotFound:
            return said

    async def scale(self, workers: int) -> None:
        """Change the number of workers. Raises Invalid with the field, JobEnded."""
        await self._change({"worker": {"replicas": workers}})

    async def suspend(self) -> None:
        """Take the job's pods away until it is resumed; it goes on from its checkpoint. Raises JobEnded."""
        await self._change({"runPolicy": {"suspend": True}})

    async def resume(self) -> None:
        """Let a suspended job run again. Raises JobEnded."""
        await self._change({"runPolicy": {"suspend": False}})

    async def _change(self, spec: Json) -> None:
        state = state_of(await self.job())
        if state in ENDED:
            raise JobEnded(f"{self.namespace}/{self.name} has ended ({state}); submit it anew to run it again")
        await self._backend.patch(self.name, spec)

    async def delete(self) -> None:
        """Delete the job, and with it its pods; volumes stay."""
        await self._backend.delete(self.name)

    async def logs(
        self, rank: int | None = None, *, follow: bool = False, attempt: int | None = None, tail: int | None = None
    ) -> AsyncGenerator[str, None]:
        """The lines that a rank wrote, or all ranks as the launcher merged them, without their ends.

        `follow`: until the job ends, over restarts. `attempt`: of that one. `tail`: begin with the last lines.
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
        """The log as bytes, in pieces of any size."""
        return self._backend.logs(wanted)


class AsyncClient:
    """Starts and finds jobs, on a cluster or, with LocalBackend(), on this machine. A context manager.

    Without a backend: the cluster of the kubeconfig, or of the pod this runs in.
    """

    def __init__(self, backend: Backend | None = None, *, namespace: str = "") -> None:
        if backend is not None and namespace:
            raise ValueError("give the namespace to the backend: ClusterBackend(namespace=...)")
        self.backend: Backend = backend or ClusterBackend(namespace)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Close connections. Jobs on a cluster go on; those of this machine end."""
        await self.backend.close()

    async def train(self, code: Code, **options: Unpack[Options]) -> AsyncRun:
        """Start a job that runs `code` once per rank: a Python file, or a function, which is sent by its source.

        `options`: see Options. A file travels in a ConfigMap that the job owns, and so has at most 1 MiB. Raises
        ScriptUnusable for code that cannot be sent, Invalid with each wrong field, AlreadyExists, Forbidden.
        """
        if unknown := sorted(options.keys() - Options.__annotations__.keys()):
            hint = spelling_hint(unknown[0], Options.__annotations__)
            raise TypeError(f"train() has no argument {unknown[0]!r}; {hint or 'anything of the spec goes into spec='}")
        template, image = options.get("template") or "", options.get("image") or ""
        if not image and not template:
            if not isinstance(self.backend, LocalBackend):
                message = "is missing; on a cluster ranks run in an image, with Python and what the code imports"
                raise Invalid([Problem("image", message)])
            image = NO_IMAGE
        script, command = self._command(code, options)
        training = Training(
            command=[yaml_literal(word) for word in command],
            image=image,
            template=template,
            workers=options.get("workers", 1),
            devices=options.get("devices") or {},
            slots=options.get("slots"),
            env={key: yaml_literal(value) for key, value in (options.get("env") or {}).items()},
            resources=options.get("resources") or {},
            spec=options.get("spec") or {},
        )
        stem = Path(script.name if script is not None else str(code)).stem
        job = manifest_of(training, options.get("name") or fresh_job_name(stem))
        return self._run(await self.backend.create(job, script))

    def _command(self, code: Code, options: Options) -> tuple[Script | None, list[str]]:
        args, kwargs = options.get("args", ()), options.get("kwargs") or {}
        in_image = options.get("in_image", False)
        if not isinstance(code, str | Path):
            if in_image:
                raise ScriptUnusable("in_image is for a script's path; a function is sent by its source")
            script = function_script(code, args, kwargs)
            return script, self.backend.command_of(script)
        wrong = next((arg for arg in args if not isinstance(arg, str)), None)
        if kwargs or wrong is not None or isinstance(args, str):
            said = "kwargs are for a function" if kwargs else f"args is {shown(args)}"
            raise ScriptUnusable(f"{said}; a script gets a list of texts, as on its command line")
        if in_image:
            return None, ["python", str(code), *args]
        script = read_script(code)
        return script, [*self.backend.command_of(script), *args]

    async def submit(self, manifest: Mapping[str, Any] | str | Path) -> AsyncRun:
        """Start the job of a manifest: a mapping, or a file that holds one job. Raises Invalid with each field."""
        return self._run(await self.backend.create(_one_job(manifest)))

    async def get(self, name: str) -> AsyncRun:
        """The job of this name. Raises NotFound."""
        return self._run(await self.backend.get(name))

    async def of(self, name: str) -> AsyncRun:
        """The job of this name, whether there is one or not: what is asked of it says so."""
        return AsyncRun(self.backend, name, await self.backend.place_of())

    async def list(self) -> list[AsyncRun]:
        """All jobs of the namespace."""
        return [self._run(job) for job in await self.backend.select()]

    def _run(self, job: Json) -> AsyncRun:
        namespace = job["metadata"].get("namespace") or "default"
        return AsyncRun(self.backend.inside(namespace), job["metadata"]["name"], namespace)


def _one_job(manifest: Mapping[str, Any] | str | Path) -> Json:
    if isinstance(manifest, Mapping):
        if named_template(manifest) is None:  # else the backend knows what the rest of it is
            parse_job(manifest, templates=False)  # the backend knows which pod templates its cluster takes
        return dict(manifest)
    path = Path(manifest)
    jobs = load_objects(path)
    if len(jobs) > 1:
        names = ", ".join(str((job.get("metadata") or {}).get("name")) for job in jobs)
        raise ManifestUnreadable(f"{path}: holds {len(jobs)} jobs ({names}); submit them one by one")
    return jobs[0]
