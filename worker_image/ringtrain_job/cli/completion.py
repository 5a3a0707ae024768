"""`ringtrain completion SHELL`: the script that makes a shell complete ringtrain's commands and options."""

import click
from click.shell_completion import get_completion_class


@click.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> None:
    """Print the completion script of SHELL. For bash: source <(ringtrain completion bash)."""
    from ringtrain_job.cli.main import main

    found = get_completion_class(shell)
    if found is None:
        raise click.ClickException(f"click knows no completion for {shell}")
    click.echo(found(main, {}, "ringtrain", "_RINGTRAIN_COMPLETE").source())
