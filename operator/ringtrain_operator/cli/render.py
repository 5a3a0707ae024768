"""`dtj render FILE`: the objects that the operator would create."""

from __future__ import annotations

from pathlib import Path

import click
import yaml

from .failures import told


@click.command()
@click.argument("manifest", type=click.Path(path_type=Path))
def render(manifest: Path) -> None:
    """Print what the operator would create for the job in MANIFEST, as YAML. Credentials are left out."""
    from ..local.manifest import load_objects
    from ..local.render import rendered
    from ..spec import parse_job

    with told(f"{manifest}: "):
        jobs = [parse_job(obj) for obj in load_objects(manifest)]
    objects = [obj for job in jobs for obj in rendered(job)]
    click.echo(yaml.safe_dump_all(objects, sort_keys=False), nl=False)
