"""Table of commands: each command loads, and its help fits one line."""

import importlib
import subprocess
import sys

import click
import pytest

from ringtrain_client.cli.main import lazy_commands


@pytest.mark.parametrize("name", sorted(lazy_commands()))
def test_a_command_of_the_table(name: str) -> None:
    """The module has a click command of that name, hidden as in the table, with a help of at most 60 characters."""
    entry = lazy_commands()[name]
    module, attribute = entry.load.split(":")
    command = getattr(importlib.import_module(module), attribute)
    assert isinstance(command, click.Command)
    assert command.hidden == entry.hidden
    assert 0 < len(entry.help) <= 60
    assert entry.help.endswith(".")


def test_help_loads_no_command() -> None:
    """The list of commands imports no command's module."""
    code = (
        "import sys; from ringtrain_client.cli.main import main; main(['--help'], standalone_mode=False); "
        "print([name for name in sys.modules if name.startswith('ringtrain_client.cli.')])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "['ringtrain_client.cli.commands', 'ringtrain_client.cli.main']"
