"""Command `dtj templates`, and the options by which other commands find the templates that jobs in a file name."""

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from ringtrain_operator.reporting import errors_reported
from ringtrain_operator.spec.training_template import Template, named_template

from ..local.templates import LocalTemplates
from .session import ClusterAccess, ClusterOptions, Json, cluster_options, output_option, print_data, with_session

template_files = click.option(
    "--templates",
    "of_templates",
    multiple=True,
    type=click.Path(path_type=Path),
    help="File with templates, in addition to those in the job's file. Maturity: Experimental.",
)


def template_options(command: Callable[..., None]) -> Callable[..., None]:
    """Decorate a command so that it accepts --templates, --server and `cluster_options` and gets them as one argument
    `templates`. Return the command."""

    @template_files
    @click.option("--server", is_flag=True, help="Read a template from the cluster if it is not in a file.")
    @cluster_options
    @functools.wraps(command)
    def collected(of_templates: tuple[Path, ...], server: bool, cluster: ClusterOptions, **given: Any) -> None:
        command(**given, templates=templates_of(of_templates, cluster if server else None))

    return collected


def templates_of(files: tuple[Path, ...], cluster: ClusterOptions | None) -> LocalTemplates:
    """Return the templates in `files`. A template that the files lack is read from `cluster`, unless `cluster` is
    None."""
    with errors_reported():
        return LocalTemplates.of_files(
            files, functools.partial(_read_cluster_template, cluster) if cluster is not None else None
        )


def _read_cluster_template(cluster: ClusterOptions, job: Json) -> Template:
    """Read the template that a job names from the cluster and return it."""
    from ringtrain_operator.cluster.templates import read_named_template

    named = named_template(job)
    assert named is not None
    metadata = job.get("metadata")
    namespace = metadata.get("namespace") if isinstance(metadata, dict) else None
    return with_session(cluster, lambda at: read_named_template(at.api, namespace or at.namespace, *named))


@click.command()
@output_option("table", "json", "yaml", "name")
@cluster_options
def templates(output: str, cluster: ClusterOptions) -> None:
    """List the templates of the cluster and of the namespace. Maturity: Experimental."""
    found = with_session(cluster, _listed_templates)
    if output in ("json", "yaml"):
        print_data(found, output)
        return
    if output == "name":
        for o in found:
            click.echo(o["metadata"]["name"])
        return
    rows = [(o["metadata"]["name"], o["kind"], (o["spec"].get("description") or "-").strip()) for o in found]
    rows = [("NAME", "KIND", "DESCRIPTION"), *rows]
    widths = [max(len(row[column]) for row in rows) for column in (0, 1)]
    for name, kind, description in rows if found else ():
        click.echo(f"{name:{widths[0]}}  {kind:{widths[1]}}  {' '.join(description.split())}")
    if not found:
        click.echo("No templates.", err=True)


async def _listed_templates(session: ClusterAccess) -> list[Json]:
    """Return the cluster-wide templates and those of the namespace. Print an error line for a kind that cannot be
    listed."""
    from ringtrain_operator.cluster.api.errors import Forbidden, NotFound
    from ringtrain_operator.cluster.api.resources import TEMPLATES

    found: list[Json] = []
    for resource in TEMPLATES.values():
        try:
            of_kind = await session.api.select(resource, session.namespace if resource.namespaced else None)
        except (Forbidden, NotFound) as exc:
            session.tell(f"{resource.kind}: {exc}")
            continue
        found += [{**obj, "kind": resource.kind} for obj in of_kind]
    return found
