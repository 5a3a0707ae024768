"""Code that the commands for a cluster share: options that select it, a client for it, and error output."""

from __future__ import annotations

import functools
import json
import os
import re
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click
from click.shell_completion import CompletionItem

from ringtrain_operator.errors import OperatorError
from ringtrain_operator.reporting import errors_reported

from ..jobs.session import ClusterAccess as ClusterAccess
from ..jobs.session import Json as Json
from ..local.documents import write_documents

if TYPE_CHECKING:
    from ..jobs.backends import Backend
    from ..jobs.runs import AsyncClient

# Default folder of the runs of `dtj local`, and the key in click's context for the folder of --runs.
RUNS = Path("runs")
_RUNS_KEY = "ringtrain.runs"
# The API server's words.
_NO_JOB = re.compile(r'distributedtrainingjobs\S* "([^"]+)" not found')
T = TypeVar("T")
Command = TypeVar("Command", bound=Callable[..., Any])


@dataclass(frozen=True)
class ClusterOptions:
    """Cluster and namespace that the user selected. An empty field means the kubeconfig's default."""

    namespace: str = ""
    context: str = ""
    kubeconfig: str = ""


def cluster_options(command: Callable[..., None]) -> Callable[..., None]:
    """Decorate a command so that it accepts kubectl's --namespace, --context and --kubeconfig and gets them as one
    argument `cluster`. Its jobs may be named NAMESPACE/JOB. Return the command."""

    @functools.wraps(command)
    def collected(namespace: str, context: str, kubeconfig: str, **given: Any) -> None:
        namespace = _take_namespace(namespace, given)
        command(**given, cluster=ClusterOptions(namespace, context, kubeconfig))

    for name, text in (
        ("--kubeconfig", "Kubeconfig file; default: $KUBECONFIG, then ~/.kube/config."),
        ("--context", "Context of the kubeconfig; default: its current one."),
    ):
        collected = click.option(name, default="", help=text)(collected)
    return click.option(
        "--namespace", "-n", default="", help="Namespace of the jobs; default: the namespace in the kubeconfig."
    )(collected)


def _take_namespace(option: str, given: dict[str, Any]) -> str:
    """Return the namespace of the jobs in `given`, and remove it from names such as NAMESPACE/JOB. `option`: value of
    --namespace. With --local, or if it exists, such a name is a folder of a run."""
    names = given.get("names") or (given.get("name") or "",)
    parts = [name.rpartition("/") for name in names]
    if given.get("local") or given.get("runs") or not any(slash for _, slash, _ in parts) or Path(names[0]).exists():
        return option
    found = {namespace if slash else option for namespace, slash, _ in parts} | {option or parts[0][0]}
    if len(found) > 1 or not all(name for _, _, name in parts):
        raise click.UsageError(f"{' '.join(names)}: expected JOB or NAMESPACE/JOB, all in one namespace (-n)")
    given |= {"names": tuple(name for _, _, name in parts)} if "names" in given else {"name": parts[0][2]}
    return found.pop()


def runs_folder() -> Path:
    """Return the folder of the runs of `dtj local` that the running command reads."""
    context = click.get_current_context(silent=True)
    return context.meta.get(_RUNS_KEY, RUNS) if context else RUNS


def local_or_cluster_options(command: Callable[..., None]) -> Callable[..., None]:
    """Decorate a command with `cluster_options`, --local and --runs. With --local (the jobs under runs/), `cluster` is
    None.

    `cluster` is also None with --runs, and if runs/ exists and no option, variable or ~/.kube/config names a cluster.
    """

    @cluster_options
    @functools.wraps(command)
    def chosen(local: bool, runs: Path | None, cluster: ClusterOptions, **given: Any) -> None:
        if runs:
            click.get_current_context().meta[_RUNS_KEY] = runs
        elif not local and cluster == ClusterOptions() and RUNS.is_dir():
            named = os.environ.get("KUBECONFIG") or os.environ.get("KUBERNETES_SERVICE_HOST")
            local = not named and not Path("~/.kube/config").expanduser().exists()
        command(**given, cluster=None if local or runs else cluster)

    text = "Jobs of `dtj local`; the default without a kubeconfig where runs/ exists."
    folder = click.Path(path_type=Path, exists=True, file_okay=False)
    chosen = click.option("--runs", type=folder, help="Folder of the jobs of `dtj local`, if not runs/.")(chosen)
    return click.option("--local", is_flag=True, help=text)(chosen)


def output_option(*formats: str, help: str | None = None) -> Callable[[Command], Command]:
    """Return a decorator that adds the option `--output` to a command; the first of `formats` is the default."""
    return click.option("--output", "-o", type=click.Choice(formats), default=formats[0], show_default=True, help=help)


def with_session(options: ClusterOptions, work: Callable[[ClusterAccess], Awaitable[T]]) -> T:
    """Connect to the cluster and return the result of `work`. An API error ends the command with exit code 1."""
    import asyncio

    from ringtrain_operator.cluster.api.client import ApiClient
    from ringtrain_operator.cluster.api.connection import ApiConnection

    async def run() -> T:
        connection = ApiConnection.from_env(os.environ, options.kubeconfig, options.context)
        namespace = options.namespace or connection.namespace
        async with ApiClient(connection, user_agent="dtj") as api:
            with missing_job_named(namespace):
                return await work(ClusterAccess(api, namespace, functools.partial(click.echo, err=True)))

    with errors_reported(), _local_runs_named():
        return asyncio.run(run())


@contextmanager
def _local_runs_named() -> Iterator[None]:
    """Add the way out to the error of a user without a cluster whose jobs are runs of `dtj local`."""
    from ringtrain_operator.cluster.api.errors import NoCluster

    try:
        yield
    except NoCluster as exc:
        command = "ringtrain ui" if RUNS.is_dir() else "dtj list --local"
        raise OperatorError(f"{exc}; {command} shows the runs of dtj local") from exc


@contextmanager
def missing_job_named(namespace: str) -> Iterator[None]:
    """Replace the API server's words about a job that does not exist by its name, namespace and the way out."""
    from ringtrain_operator.cluster.api.errors import NotFound

    try:
        yield
    except NotFound as exc:
        if (found := _NO_JOB.fullmatch(exc.message)) is None:
            raise
        message = f"there is no job {found[1]} in namespace {namespace}; dtj list -A shows the jobs of all namespaces"
        raise NotFound(message) from exc


def with_client(options: ClusterOptions | None, work: Callable[[AsyncClient], Awaitable[T]]) -> T:
    """Call `work` with a client of the cluster, or of the jobs under runs/ if `options` is None. Return its result."""
    import asyncio

    from ..jobs.backends import ClusterBackend
    from ..jobs.local_backend import LocalBackend
    from ..jobs.runs import AsyncClient

    def backend() -> Backend:
        if options is None:
            return LocalBackend(runs_folder())
        return ClusterBackend(
            options.namespace,
            context=options.context,
            kubeconfig=options.kubeconfig,
            user_agent="dtj",
            tell=functools.partial(click.echo, err=True),
        )

    async def run() -> T:
        async with AsyncClient(backend()) as client:
            with missing_job_named(await client.backend.place_of()):
                return await work(client)

    with errors_reported(), _local_runs_named():
        return asyncio.run(run())


def complete_job(ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Return job names for shell completion; an empty list if the cluster does not answer."""

    async def names(client: AsyncClient) -> list[str]:
        return [run.name for run in await client.list()]

    try:
        given = {field.name: ctx.params.get(field.name) or "" for field in fields(ClusterOptions)}
        found = with_client(ClusterOptions(**given), names)
    except Exception:  # completion must never print an error, whatever the cluster's problem is
        return []
    return [CompletionItem(name) for name in found if name.startswith(incomplete)]


def job_argument(command: Command) -> Command:
    """Add the argument JOB to a command."""
    return click.argument("name", metavar="JOB", shell_complete=complete_job)(command)


def optional_job_argument(command: Command) -> Command:
    """Add the optional argument [JOB] to a command."""
    return click.argument("name", metavar="[JOB]", required=False, shell_complete=complete_job)(command)


def print_data(data: Any, form: str) -> None:
    """Print `data` as json or yaml."""
    click.echo(f"{json.dumps(data, indent=2)}\n" if form == "json" else write_documents([data]), nl=False)
