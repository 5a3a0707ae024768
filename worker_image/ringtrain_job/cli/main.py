"""`ringtrain`: one command, one subcommand a file. A new one is a click command added to `_COMMANDS`."""

import difflib
import importlib
import logging
import sys
from typing import Any

import click

from ringtrain.errors import RingtrainError

# Loaded when used, so that `ringtrain agent` does not pay for what it does not run.
_COMMANDS = {
    "agent": "ringtrain_job.cli.pods:agent",
    "bench": "ringtrain_job.cli.bench:bench",
    "compare": "ringtrain_job.cli.listing:compare_runs",
    "completion": "ringtrain_job.cli.main:completion",
    "data-worker": "ringtrain_job.cli.pods:data_worker",
    "export": "ringtrain_job.cli.report:export",
    "launcher": "ringtrain_job.cli.pods:launcher",
    "list": "ringtrain_job.cli.listing:list_runs",
    "logs": "ringtrain_job.cli.logs:logs",
    "remote-agent": "ringtrain_job.cli.remote_agent:remote_agent",
    "report": "ringtrain_job.cli.report:report",
    "run": "ringtrain_job.cli.run:run",
    "rsh": "ringtrain_job.cli.pods:rsh",
    "tensorboard": "ringtrain_job.cli.tensorboard:tensorboard",
    "timeline": "ringtrain_job.cli.timeline:timeline",
    "ui": "ringtrain_job.cli.ui:ui",
}


class _LazyCommandGroup(click.Group):
    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in _COMMANDS:
            return None
        module, name = _COMMANDS[cmd_name].split(":")
        command: click.Command = getattr(importlib.import_module(module), name)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if not args[0].startswith("-") and args[0] not in _COMMANDS:
            near = difflib.get_close_matches(args[0], _COMMANDS, n=1)
            ctx.fail(f"No such command {args[0]!r}." + (f" Did you mean {near[0]!r}?" if near else ""))
        return super().resolve_command(ctx, args)

    def invoke(self, ctx: click.Context) -> Any:
        """An error of ringtrain's is a message on stderr, and exit code 1."""
        try:
            return super().invoke(ctx)
        except RingtrainError as exc:
            raise click.ClickException(str(exc)) from exc


@click.command(cls=_LazyCommandGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="ringtrain")
def main() -> None:
    """Data-parallel training: workers, launcher, and jobs on one machine."""


def log_to_stderr(role: str, level: str = "info") -> None:
    """Send this process's own messages from `level` on to stderr, marked with its `role`."""
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
