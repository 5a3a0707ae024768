"""Group `ringtrain`. A new subcommand is a click command and a line in `cli/commands.py`."""

import difflib
import functools
import importlib
import logging
import os
import sys
from importlib.metadata import entry_points
from typing import Any

import click

from ringtrain.errors import RingtrainError
from ringtrain_job.cli.commands import COMMANDS, LazyCommand


@functools.cache
def lazy_commands() -> dict[str, LazyCommand]:
    """Return all commands by name, those of installed plugins included."""
    tables = [point.load() for point in entry_points(group="ringtrain.commands")]
    return {command.name: command for table in tables or [COMMANDS] for command in table}


class _LazyCommandGroup(click.Group):
    """A group that reads its commands from tables and imports the one that is called."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted(lazy_commands())

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        found = lazy_commands().get(cmd_name)
        if found is None:
            return None
        module, name = found.load.split(":")
        command: click.Command = getattr(importlib.import_module(module), name)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        rows = [(one.name, one.help) for name, one in sorted(lazy_commands().items()) if not one.hidden]
        with formatter.section("Commands"):
            formatter.write_dl(rows)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        known = self.list_commands(ctx)
        if not args[0].startswith("-") and args[0] not in known:
            near = difflib.get_close_matches(args[0], known, n=1)
            hint = f"Did you mean {near[0]!r}?" if near else "If a plugin has it, install the plugin."
            ctx.fail(f"No such command {args[0]!r}. {hint}")
        return super().resolve_command(ctx, args)

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command. An error of ringtrain becomes a message on stderr and exit code 1."""
        try:
            return super().invoke(ctx)
        except RingtrainError as exc:
            raise click.ClickException(str(exc)) from exc


@click.command(cls=_LazyCommandGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="ringtrain")
@click.pass_context
def main(ctx: click.Context) -> None:
    """Train data-parallel on one or several machines, and show runs."""
    if os.environ.get("NO_COLOR"):
        ctx.color = False  # for all commands; by default terminals get colours and pipes do not


def log_to_stderr(role: str, level: str = "info") -> None:
    """Send this process's messages of at least `level` to stderr, prefixed with its `role`."""
    line = f"%(asctime)s ringtrain {role}: %(message)s"
    logging.basicConfig(stream=sys.stderr, level=level.upper(), format=line, force=True)


@click.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> None:
    """Print the completion script of SHELL. For bash: source <(ringtrain completion bash)."""
    from click.shell_completion import get_completion_class

    found = get_completion_class(shell)
    if found is None:
        raise click.ClickException(f"click knows no completion for {shell}")
    click.echo(found(main, {}, "ringtrain", "_RINGTRAIN_COMPLETE").source())
