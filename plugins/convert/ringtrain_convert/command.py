"""Command `dtj convert FILE`, which converts other operators' jobs to DistributedTrainingJobs."""

import functools
import shlex
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import click

from ringtrain_client.cli.session import ClusterAccess, ClusterOptions, Json, cluster_options, with_session
from ringtrain_client.local.documents import read_documents, write_documents
from ringtrain_convert.batchjob import convert_batchjob, is_batchjob
from ringtrain_convert.entrypoints import Entrypoints, Program, images_with_arguments, read_entrypoint, with_programs
from ringtrain_convert.known_runtimes import TRAINER_VERSION, known_runtime
from ringtrain_convert.metadata import Converted, NoCommand
from ringtrain_convert.mpijob import convert_mpijob, is_mpijob
from ringtrain_convert.runtime_template import beyond_template, convert_runtime
from ringtrain_convert.trainingjob import convert_trainingjob, is_trainingjob
from ringtrain_convert.trainjob import GROUP, RUNTIMES, VERSION, convert_trainjob, is_runtime, is_trainjob, runtime_of
from ringtrain_convert.unsupported import why_unsupported
from ringtrain_operator.cluster.api.errors import ApiError
from ringtrain_operator.cluster.api.resources import ApiResource
from ringtrain_operator.errors import Invalid, ManifestUnreadable, OperatorError, Problem, spelling_hint
from ringtrain_operator.reporting import errors_reported, problem_lines
from ringtrain_operator.spec.base import without_nulls
from ringtrain_operator.spec.parse import name_in_metadata
from ringtrain_operator.spec.training_template import read_template

_CONVERSIONS = (
    (is_mpijob, convert_mpijob),
    (is_trainingjob, convert_trainingjob),
    (is_batchjob, convert_batchjob),
)
# API group of each kind. Job is not here: Volcano and Kubernetes both have it.
_GROUPS = {
    **dict.fromkeys(("MPIJob", "PyTorchJob", "TFJob", "JAXJob", "XGBoostJob"), "kubeflow.org"),
    "JobSet": "jobset.x-k8s.io",
    **dict.fromkeys(("TrainJob", *RUNTIMES), GROUP),
}


def _programs(_: click.Context, __: click.Parameter, given: tuple[str, ...]) -> dict[str, Program]:
    """Parse the values of --entrypoint."""
    try:
        return dict(map(read_entrypoint, given))
    except ValueError as exc:
        raise click.BadParameter(str(exc)) from exc


@click.command()
@click.argument("manifest", type=click.Path(path_type=Path))
@click.option("--to", type=click.Path(path_type=Path), help="File to which the result is written, instead of stdout.")
@click.option(
    "--templates",
    is_flag=True,
    help="Also convert the runtimes of TrainJobs, to templates that the jobs name. Maturity: Experimental.",
)
@click.option(
    "--entrypoint",
    "entrypoints",
    multiple=True,
    metavar="IMAGE=COMMAND",
    callback=_programs,
    help="Program of an image, for containers without a command.",
)
@click.option("--registry", is_flag=True, help="Read programs from registries. Maturity: Experimental.")
@cluster_options
def convert(
    manifest: Path,
    to: Path | None,
    templates: bool,
    entrypoints: dict[str, Program],
    registry: bool,
    cluster: ClusterOptions,
) -> None:
    """Print kubeflow's jobs in MANIFEST as DistributedTrainingJobs.

    Kubeflow's kinds are MPIJob, TrainJob, PyTorchJob, TFJob, JAXJob and XGBoostJob. JobSets, Volcano's Jobs, and Jobs
    that start torchrun, accelerate or mpirun are converted, too.

    MANIFEST is a file, or - for standard input. A TrainJob's runtime is read from MANIFEST, or from the
    cluster if MANIFEST does not have it.
    Other objects are not changed. Fields that have no counterpart are listed on stderr. If a job cannot be converted,
    the other jobs are printed and the exit code is 1. Maturity: Beta.
    """
    made, failures = [], []
    with errors_reported():
        documents = [document for document in read_documents(manifest) if isinstance(document, dict)]
        if not any(_is_job(document) or (templates and is_runtime(document)) for document in documents):
            wanted = "MPIJob, PyTorchJob, TFJob, JAXJob or XGBoostJob of kubeflow.org"
            others = "a JobSet, a Volcano Job, a Job that starts torchrun or mpirun"
            found, hint = _kinds_found(documents)
            wanted = f"an {wanted}, {others} or a TrainJob of {GROUP}"
            raise ManifestUnreadable(f"{manifest}: has {found}; expected {wanted}{hint}")
    of_runtimes = _ConvertedTemplates() if templates else None
    programs = Entrypoints(entrypoints, registry)
    for document in documents:
        if is_runtime(document):
            if of_runtimes is not None:
                of_runtimes.of(document)
            continue
        if not _is_job(document):
            made.append(document)
            if note := _misspelt_note(document):
                click.echo(f"{_manifest_name(document)}: {note}", err=True)
            continue
        name = _manifest_name(document)
        try:
            converted = _with_programs(
                document, programs, functools.partial(_converted_job, document, documents, cluster, of_runtimes)
            )
        except OperatorError as exc:
            failures += [f"{manifest}: {name}: {line}" for line in problem_lines(exc)]
            continue
        made += [converted.manifest, *converted.others]
        for note in converted.notes:
            click.echo(f"{name}: {note}", err=True)
    _write_manifests([*(of_runtimes.manifests() if of_runtimes is not None else ()), *made], to)
    if failures:
        raise click.ClickException("\n       ".join(failures))


def _kinds_found(documents: list[Json]) -> tuple[str, str]:
    """Return the kinds of `documents` as a text, and a hint about a misspelt one, which may be empty."""
    named = [doc for doc in documents if doc.get("kind")]
    kinds = dict.fromkeys(f"{doc['kind']} ({doc.get('apiVersion') or 'without apiVersion'})" for doc in named)
    hints = (
        spelling_hint(str(doc.get("kind")), _GROUPS) for doc in documents if doc.get("kind") not in ("Job", *_GROUPS)
    )
    hint = next(filter(None, hints), "")
    return ", ".join(list(kinds)[:5]) or "no object with a kind", hint and f"; {hint}"


def _misspelt_note(document: Json) -> str:
    """Return a note about an object that is not converted because its kind or group is misspelt; otherwise empty."""
    kind, version = str(document.get("kind")), str(document.get("apiVersion"))
    if kind in _GROUPS:
        return f"is not converted: apiVersion is {version}; expected {_GROUPS[kind]}/VERSION"
    is_builtin = "." not in version.partition("/")[0]  # such as batch/v1, which has CronJob
    hint = "" if is_builtin else spelling_hint(kind, _GROUPS)
    return hint and f"is not converted: kind is {kind}; {hint}"


class _ConvertedTemplates:
    """Templates converted from Kubeflow runtimes. Each runtime is converted once."""

    def __init__(self) -> None:
        self._made: dict[tuple[str, str], Json | None] = {}

    def of(self, runtime: Json) -> Json | None:
        """Return the runtime's template. If it cannot be converted, print why and return None."""
        runtime = without_nulls(runtime)
        key = str(runtime["kind"]), _manifest_name(runtime)
        if key not in self._made:
            try:
                self._made[key] = convert_runtime(runtime).manifest
            except OperatorError as exc:
                click.echo(f"{' '.join(key)} is not converted to a template, so its jobs name none: {exc}", err=True)
                self._made[key] = None
        return self._made[key]

    def named_by(self, converted: Converted, runtime: Json) -> Converted:
        """Return the converted job with a reference to the runtime's template instead of a copy of its fields, if
        possible."""
        template = self.of(runtime)
        if template is None:
            return converted
        job = beyond_template(converted.manifest, read_template(template))
        if job is not None:
            return replace(converted, manifest=job)
        return replace(
            converted, notes=(*converted.notes, "the job names no template: it removes fields of its runtime")
        )

    def manifests(self) -> list[Json]:
        """Return all templates."""
        return [manifest for manifest in self._made.values() if manifest is not None]


def _with_programs(
    document: Json, programs: Entrypoints, convert_job: Callable[[Mapping[str, Program]], Converted]
) -> Converted:
    """Return the job of `convert_job`, which gets the programs of images whose containers have no command."""
    used: dict[str, Program] = {}
    for image in images_with_arguments(document):
        with suppress(OperatorError):  # of a sidecar; otherwise the arguments become the command, with a note
            if (program := programs.of(image)) is not None:
                used[image] = program
    while True:
        try:
            converted = convert_job(used)
        except NoCommand as exc:
            program = programs.of(exc.image)
            if program is None or exc.image in used:
                raise
            used[exc.image] = program
            continue
        words = {image: shlex.join(program.entrypoint or program.arguments) for image, program in used.items()}
        notes = (f"the program of image {image} becomes the command: {text}" for image, text in words.items())
        return replace(converted, notes=(*notes, *converted.notes))


def _converted_job(
    document: Json,
    documents: list[Json],
    cluster: ClusterOptions,
    of_runtimes: _ConvertedTemplates | None,
    programs: Mapping[str, Program],
) -> Converted:
    """Convert one job of `documents`. Raises OperatorError if it is invalid or not supported, or lacks its runtime.

    A null field counts as absent, as for the API server.
    """
    document = with_programs(without_nulls(document), programs)
    if why := why_unsupported(document):
        raise Invalid([Problem("", why)])
    for is_kind, convert_kind in _CONVERSIONS:
        if is_kind(document):
            return convert_kind(document)
    runtime, origin = _trainjob_runtime(document, documents, cluster)
    runtime = with_programs(runtime, programs)
    converted = convert_trainjob(document, runtime)
    converted = replace(converted, notes=(*origin, *converted.notes))
    return converted if of_runtimes is None else of_runtimes.named_by(converted, runtime)


def _is_job(document: Json) -> bool:
    known = is_trainjob(document) or bool(why_unsupported(document))
    return known or any(is_kind(document) for is_kind, _ in _CONVERSIONS)


def _write_manifests(made: list[Json], output: Path | None) -> None:
    if not made:
        return
    text = write_documents(made)
    if output is None:
        click.echo(text, nl=False)
        return
    try:
        output.write_text(text, encoding="utf-8")
    except OSError as exc:
        raise click.FileError(str(output), exc.strerror) from exc


def _manifest_name(document: Json) -> str:
    """Return the name of an object, or its kind if it has no name, to begin messages about it."""
    metadata = document.get("metadata")
    name = name_in_metadata(metadata) if isinstance(metadata, dict) else None
    return str(name or document["kind"])


def _trainjob_runtime(job: Json, documents: list[Json], cluster: ClusterOptions) -> tuple[Json, tuple[str, ...]]:
    """Return the runtime of a TrainJob from its file or the cluster, or Trainer's own of this name with a note."""
    kind, name = runtime_of(job)
    for document in documents:
        if document.get("kind") == kind and _manifest_name(document) == name:
            return document, ()

    async def read(session: ClusterAccess) -> Json:
        resource = ApiResource(f"{GROUP}/{VERSION}", kind, RUNTIMES[kind], namespaced=kind == "TrainingRuntime")
        namespace = (job.get("metadata") or {}).get("namespace") or session.namespace
        try:
            return await session.api.get(resource, namespace, name)
        except ApiError as exc:
            raise OperatorError(f"{kind} {name} is not in MANIFEST and cannot be read from the cluster: {exc}") from exc

    try:
        return with_session(cluster, read), ()
    except click.ClickException as exc:
        if known := known_runtime(kind, name):
            place = "neither in the file nor in a cluster"
            return known, (f"{kind} {name} is {place}: used as in Trainer {TRAINER_VERSION}",)
        message = f"spec.runtimeRef: {kind} {name} is needed; put it into the file beside the job. {exc.message}"
        raise ManifestUnreadable(f"{message}") from exc
