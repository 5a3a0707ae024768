"""`ringtrain`: one command, one subcommand a file. A new one is a click command added to `_COMMANDS`."""

import importlib
import logging
import sys

import click

# Loaded when used, so that `ringtrain agent` does not pay for what it does not run.
_COMMANDS = {
    "agent": "ringtrain.cli.agent:agent",
    "bench": "ringtrain.cli.bench:bench",
    "launcher": "ringtrain.cli.launcher:launcher",
    "logs": "ringtrain.cli.logs:logs",
    "run": "ringtrain.cli.run:run",
    "rsh": "ringtrain.cli.rsh:rsh",
}


class _LazyGroup(click.Group):
    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in _COMMANDS:
            return None
        module, name = _COMMANDS[cmd_name].split(":")
        command: click.Command = getattr(importlib.import_module(module), name)
        return command


@click.command(cls=_LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="ringtrain")
def main() -> None:
    """Data-parallel training: workers, launcher, and jobs on one machine."""


def log_to_stderr(role: str, level: str = "info") -> None:
    """Send this process's own messages from `level` on to stderr, marked with its `role`."""
    said = f"%(asctime)s ringtrain {role}: %(message)s"
    logging.basicConfig(stream=sys.stderr, level=level.upper(), format=said, force=True)
