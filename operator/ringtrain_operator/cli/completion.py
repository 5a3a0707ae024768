"""`dtj completion SHELL`: the script that makes a shell complete dtj's commands and job names."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class


@click.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> None:
    """Print the completion script of SHELL. For bash: source <(dtj completion bash)."""
    from .main import main

    found = get_completion_class(shell)
    if found is None:
        raise click.ClickException(f"click knows no completion for {shell}")
    click.echo(found(main, {}, "dtj", "_DTJ_COMPLETE").source())
