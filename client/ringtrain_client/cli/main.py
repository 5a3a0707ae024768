"""The group `dtj`. A new subcommand is a file with a click command and a line in `cli/commands.py`."""

import difflib
import errno
import functools
import gc
import importlib
import io
import sys
from importlib.metadata import entry_points
from typing import Any

import click
from click.shell_completion import get_completion_class

from .commands import COMMANDS, LazyCommand


@functools.cache
def lazy_commands() -> dict[str, LazyCommand]:
    """Return all commands by name, those of installed plugins included."""
    tables = [point.load() for point in entry_points(group="dtj.commands")]
    return {command.name: command for table in tables or [COMMANDS] for command in table}


class _LazyCommandGroup(click.Group):
    """Click group that lists the subcommands from a table and imports a subcommand only when it is called."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted(lazy_commands())

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        found = lazy_commands().get(cmd_name)
        if found is None:
            return None
        module, _, attribute = found.load.partition(":")
        command: click.Command = getattr(importlib.import_module(module), attribute)
        if not gc.isenabled():  # the program disabled it for the import
            gc.freeze()
            gc.enable()
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
            meant = {word: one.name for one in lazy_commands().values() for word in one.meant}
            plugins = {point.name: point.value for point in entry_points(group="dtj.commands.of_plugins")}
            if args[0] in plugins:
                from ..jobs.plugins import plugin_missing

                raise click.ClickException(str(plugin_missing(f"dtj {args[0]}", plugins[args[0]])))
            near = [meant[args[0]]] if args[0] in meant else difflib.get_close_matches(args[0], [*known, *plugins], n=1)
            ctx.fail(f"No such command {args[0]!r}." + (f" Did you mean {near[0]!r}?" if near else ""))
        return super().resolve_command(ctx, args)

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command. Ctrl-C ends it with exit code 130, unless it handles Ctrl-C itself. Only `dtj local`, which
        prints a summary later, prints a line."""
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            if "local" in sys.argv[1:2]:
                click.echo("stopped before any rank was started", err=True)
            sys.exit(130)

    def main(self, *args: Any, **options: Any) -> Any:
        """Run the program. If stdout cannot be written, print one line and exit with code 1."""
        try:
            try:
                return super().main(*args, **options)
            finally:
                if sys.stdout:  # None if the shell closed it
                    sys.stdout.flush()
        except OSError as exc:
            if exc.filename is not None or not _is_stdout_lost():
                raise
            sys.stdout = io.StringIO()  # the interpreter flushes it at its end
            if exc.errno != errno.EPIPE:  # a pipe's reader that has read enough, such as head
                click.echo(f"Error: cannot write to stdout: {exc.strerror}", err=True)
            sys.exit(1)


def _is_stdout_lost() -> bool:
    """Return whether a line end cannot be written to stdout."""
    try:
        sys.stdout.write("\n")
        sys.stdout.flush()
    except OSError:
        return True
    return False


@click.group(cls=_LazyCommandGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="ringtrain-client", prog_name="dtj")
def main() -> None:
    """Run and watch DistributedTrainingJobs, on a cluster or on this machine.

    Maturity: Beta on a cluster, Stable on this machine.
    """


@click.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> None:
    """Print the completion script of SHELL. For bash: source <(dtj completion bash)."""
    found = get_completion_class(shell)
    if found is None:
        raise click.ClickException(f"the installed version of click cannot complete commands in {shell}; update click")
    click.echo(found(main, {}, "dtj", "_DTJ_COMPLETE").source())
