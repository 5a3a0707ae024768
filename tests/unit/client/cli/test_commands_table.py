"""Table of commands: each command loads, and its help fits one line. The program's end by Ctrl-C or a full disk."""

import importlib
import subprocess
import sys

import click
import pytest
from support.plugin_commands import ROOT, commands_of_plugins, run_core_alone

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


@pytest.mark.parametrize("command", commands_of_plugins("dtj.commands"))
def test_a_command_of_a_plugin_that_is_not_installed(command: str) -> None:
    """One line names the plugin and how to install it; a misspelt command gets a hint."""
    program = "from ringtrain_client.cli.__main__ import run; run()"
    done = run_core_alone("client", program, command, "file.yaml")
    package = commands_of_plugins("dtj.commands")[command]
    plugin, folder = package.replace("_", "-"), package.partition("_")[2]
    assert (done.returncode, done.stderr) == (
        1,
        f"Error: dtj {command} needs the plugin {plugin}, which is not installed: pip install {plugin}, or from a "
        f"clone pip install ./operator ./client ./plugins/{folder}\n",
    )
    assert (ROOT / "plugins" / folder / "pyproject.toml").exists()
    misspelt = run_core_alone("client", program, f"{command}x")
    assert misspelt.stderr.endswith(f"Did you mean {command!r}?\n")


@pytest.mark.parametrize("module", ["kubeflow", "torchx"])
def test_a_module_of_a_plugin_that_is_not_installed(module: str) -> None:
    """It says how to install the plugin."""
    code = f"import sys; sys.modules['ringtrain_convert'] = None; import ringtrain_sdk.{module}"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stderr.splitlines()[-1] == (
        f"ModuleNotFoundError: ringtrain_sdk.{module} needs the plugin ringtrain-convert, which is not installed: "
        "pip install ringtrain-convert, or from a clone pip install ./operator ./client ./plugins/convert"
    )


INTERRUPTED = """if True:
    import signal, sys
    module = sys.argv.pop(1)
    sys.addaudithook(lambda event, args: event == "import" and args[0] == module and signal.raise_signal(signal.SIGINT))
    from ringtrain_client.cli.__main__ import run
    run()"""


@pytest.mark.parametrize(
    ("module", "words"),
    [
        ("click", ["list"]),
        ("ringtrain_client.jobs.runs", ["list"]),
        ("ringtrain_client.jobs.local_backend", ["list", "--local"]),
        ("ringtrain_client.local.templates", ["local", "job.yaml"]),
    ],
)
def test_ctrl_c_before_a_command_begins(module: str, words: list[str]) -> None:
    """Exit code 130, whichever module is being imported; a line only from the command that prints a summary later."""
    done = subprocess.run([sys.executable, "-c", INTERRUPTED, module, *words], capture_output=True, text=True)
    said = "stopped before any rank was started\n" if "job.yaml" in words else ""
    assert (done.returncode, done.stdout + done.stderr) == (130, said)


@pytest.mark.parametrize("words", [["--help"], ["completion", "bash"], ["templates", "--help"]], ids=" ".join)
def test_a_full_disk_under_stdout(words: list[str]) -> None:
    """One line and exit code 1."""
    with open("/dev/full", "w") as full:
        command = [sys.executable, "-m", "ringtrain_client.cli", *words]
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True)
    assert (done.returncode, done.stderr) == (1, "Error: cannot write to stdout: No space left on device\n")
