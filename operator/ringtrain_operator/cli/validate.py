"""`dtj validate FILE…`: what is wrong with a manifest, before a cluster sees it."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from ..errors import OperatorError
from .failures import problem_lines


@click.command()
@click.argument("files", nargs=-1, required=True, type=click.Path(path_type=Path))
def validate(files: tuple[Path, ...]) -> None:
    """Check every job in FILES and name each problem with its field. Exit code 1 if there is one."""
    from ..local.manifest import load_objects
    from ..spec import parse_job

    failed = False
    for path in files:
        try:
            jobs = load_objects(path)
        except OperatorError as exc:
            failed = True
            click.echo(str(exc), err=True)
            continue
        for obj in jobs:
            try:
                job = parse_job(obj)
            except OperatorError as exc:
                failed = True
                for line in problem_lines(exc):
                    click.echo(f"{path}: {line}", err=True)
                continue
            click.echo(f"{path}: {job.name} is valid: {job.num_workers} workers, {job.world_size} ranks")
    sys.exit(1 if failed else 0)
