"""`dtj`: a new subcommand is a file with a click command, and a line in `_COMMANDS`."""

import difflib
import importlib

import click
from click.shell_completion import get_completion_class

# Loaded when used, so that `dtj validate` does not wait for a Kubernetes client.
_COMMANDS = {
    "delete": "ringtrain_operator.cli.changing:delete",
    "describe": "ringtrain_operator.cli.listing:why",
    "list": "ringtrain_operator.cli.listing:list_jobs",
    "convert": "ringtrain_operator.cli.convert:convert",
    "local": "ringtrain_operator.cli.local:local",
    "operator": "ringtrain_operator.cli.operator:operator",
    "logs": "ringtrain_operator.cli.logs:logs",
    "render": "ringtrain_operator.cli.render:render",
    "resume": "ringtrain_operator.cli.changing:resume",
    "submit": "ringtrain_operator.cli.submit:submit",
    "suspend": "ringtrain_operator.cli.changing:suspend",
    "templates": "ringtrain_operator.cli.templates:templates",
    "tensorboard": "ringtrain_operator.cli.tensorboard:tensorboard",
    "ui": "ringtrain_operator.cli.ui:ui",
    "validate": "ringtrain_operator.cli.validate:validate",
    "why": "ringtrain_operator.cli.listing:why",
}

# What other commands call what these do.
_MEANT = {
    **dict.fromkeys(["ls", "ps", "get"], "list"),
    **dict.fromkeys(["create", "apply"], "submit"),
    **dict.fromkeys(["status", "events"], "why"),
    "rm": "delete",
    "stop": "suspend",
    "start": "resume",
    "run": "local",
    "check": "validate",
}


class _LazyCommandGroup(click.Group):
    """Knows its commands by name and imports the one that is called."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted([*_COMMANDS, *self.commands])

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in _COMMANDS:
            return super().get_command(ctx, cmd_name)
        module, _, attribute = _COMMANDS[cmd_name].partition(":")
        command: click.Command = getattr(importlib.import_module(module), attribute)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        known = self.list_commands(ctx)
        if not args[0].startswith("-") and args[0] not in known:
            near = [_MEANT[args[0]]] if args[0] in _MEANT else difflib.get_close_matches(args[0], known, n=1)
            ctx.fail(f"No such command {args[0]!r}." + (f" Did you mean {near[0]!r}?" if near else ""))
        return super().resolve_command(ctx, args)


@click.group(cls=_LazyCommandGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="ringtrain-operator", prog_name="dtj")
def main() -> None:
    """Run and watch DistributedTrainingJobs, on a cluster or on this machine.

    Maturity: Beta on a cluster, Stable on this machine.
    """


@main.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> None:
    """Print the completion script of SHELL. For bash: source <(dtj completion bash)."""
    found = get_completion_class(shell)
    if found is None:
        raise click.ClickException(f"click knows no completion for {shell}")
    click.echo(found(main, {}, "dtj", "_DTJ_COMPLETE").source())
