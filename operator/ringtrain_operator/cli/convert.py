"""`dtj convert FILE`: another operator's jobs as DistributedTrainingJobs."""

from __future__ import annotations

from pathlib import Path

import click
import yaml

from ..convert.mpijob import convert_mpijob, is_mpijob
from ..errors import ManifestUnreadable
from ..spec.documents import read_documents
from .failures import errors_reported


@click.command()
@click.argument("manifest", type=click.Path(path_type=Path))
@click.option("-o", "--output", type=click.Path(path_type=Path), help="Write there instead of to stdout.")
def convert(manifest: Path, output: Path | None) -> None:
    """Print the MPIJobs of kubeflow in MANIFEST as DistributedTrainingJobs.

    Other objects in the file stay as they are. What could not be taken over is said on stderr.
    """
    with errors_reported(f"{manifest}: "):
        documents = [document for document in read_documents(manifest) if isinstance(document, dict)]
        if not any(is_mpijob(document) for document in documents):
            raise ManifestUnreadable(f"{manifest}: holds no MPIJob of kubeflow.org")
        made = []
        for document in documents:
            if not is_mpijob(document):
                made.append(document)
                continue
            converted = convert_mpijob(document)
            made.append(converted.manifest)
            for note in converted.notes:
                click.echo(f"{converted.manifest['metadata']['name']}: {note}", err=True)
    text = yaml.safe_dump_all(made, sort_keys=False)
    if output is None:
        click.echo(text, nl=False)
        return
    try:
        output.write_text(text, encoding="utf-8")
    except OSError as exc:
        raise click.FileError(str(output), exc.strerror) from exc
