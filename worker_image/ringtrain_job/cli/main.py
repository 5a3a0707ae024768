"""The program `ringtrain`. To add a command, write a click command and add it to the table in `cli/commands.py`."""

import difflib
import functools
import importlib
import logging
import os
import signal
import sys
from typing import Any

import click

from ringtrain.errors import RingtrainError
from ringtrain.shared.plugins import entry_points_of, missing_plugin_text
from ringtrain_job.cli.commands import COMMANDS, LazyCommand
from ringtrain_job.cli.interrupts import EXIT_INTERRUPTED, raise_on_interrupt


@functools.cache
def lazy_commands() -> dict[str, LazyCommand]:
    """Return the table of all commands by name, including those of installed plugins."""
    tables = [point.load() for point in entry_points_of("ringtrain.commands")]
    return {command.name: command for table in tables or [COMMANDS] for command in table}


class _LazyCommandGroup(click.Group):
    """Group of commands that imports only the command that runs."""

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
            meant = {word: one.name for one in lazy_commands().values() for word in one.meant}
            plugins = {point.name: point.value for point in entry_points_of("ringtrain.commands.of_plugins")}
            if args[0] in plugins:
                raise click.ClickException(missing_plugin_text(f"ringtrain {args[0]}", plugins[args[0]]))
            near = [meant[args[0]]] if args[0] in meant else difflib.get_close_matches(args[0], [*known, *plugins], n=1)
            ctx.fail(f"No such command {args[0]!r}." + (f" Did you mean {near[0]!r}?" if near else ""))
        found = super().resolve_command(ctx, args)
        raise_on_interrupt()
        return found

    def main(self, *args: Any, **kwargs: Any) -> Any:
        """Run the program. If stdout accepts no more output, print one line and exit with 1."""
        try:
            return super().main(*args, **kwargs)  # ends quietly if the reader of a pipe has gone
        except OSError as exc:
            if exc.filename is not None or not _is_stdout_unwritable():
                raise
            discard_unwritable_output()
            click.echo(f"Error: cannot write to stdout: {exc.strerror}", err=True)
            sys.exit(1)

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command. A RingtrainError is printed to stderr as one line; the exit code is then 1. Ctrl-C: 130."""
        if os.getpid() == 1:
            # The kernel ignores SIGTERM to a container's first process until that has a handler. The commands of pods
            # install their own after a second of imports; a pod deleted before would live to its grace period's end.
            signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
        try:
            return super().invoke(ctx)
        except RingtrainError as exc:
            raise click.ClickException(str(exc)) from exc
        except KeyboardInterrupt:
            ctx.exit(EXIT_INTERRUPTED)  # not click's `Aborted!` and exit code 1


@click.command(cls=_LazyCommandGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="ringtrain")
@click.pass_context
def main(ctx: click.Context) -> None:
    """Train data-parallel on one or several machines, and show runs."""
    if os.environ.get("NO_COLOR"):
        ctx.color = False  # for all commands; by default terminals get colours and pipes do not


def _is_stdout_unwritable() -> bool:
    """Return whether stdout refuses one more line break. Flushing is no test: Python discards a large failed write."""
    try:
        os.write(1, b"\n")
    except OSError:
        return True
    return False


def discard_unwritable_output() -> None:
    """Discard output that a closed terminal or a full disk no longer accepts, which would make Python exit with code
    120."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, stream.fileno())
            os.close(nowhere)


def log_to_stderr(role: str, level: str = "info") -> None:
    """Log this process's messages of at least `level` to stderr, with the name `role` in each line.

    On a terminal a message replaces the current line, which may be the launcher's progress.
    """
    line = ("\r\x1b[K" if sys.stderr.isatty() else "") + f"%(asctime)s ringtrain {role}: %(message)s"
    logging.basicConfig(stream=sys.stderr, level=level.upper(), format=line, force=True)


@click.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> None:
    """Print the completion script of SHELL. For bash: source <(ringtrain completion bash)."""
    from click.shell_completion import get_completion_class

    found = get_completion_class(shell)
    if found is None:
        raise click.ClickException(f"click does not support completion for {shell}")
    click.echo(found(main, {}, "ringtrain", "_RINGTRAIN_COMPLETE").source())
