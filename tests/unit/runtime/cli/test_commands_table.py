"""The table of commands: each loads, and its line fits."""

import importlib
import subprocess
import sys
from pathlib import Path

import click
import pytest
from click.testing import CliRunner
from support.plugin_commands import ROOT, commands_of_plugins, run_core_alone

from ringtrain_job.cli.main import lazy_commands


@pytest.mark.parametrize("name", sorted(lazy_commands()))
def test_a_command_of_the_table(name: str) -> None:
    """It is a click command of that name, hidden where the table says so, and its line fits 60 characters."""
    entry = lazy_commands()[name]
    module, attribute = entry.load.split(":")
    command = getattr(importlib.import_module(module), attribute)
    assert isinstance(command, click.Command)
    assert command.hidden == entry.hidden
    assert 0 < len(entry.help) <= 60
    assert entry.help.endswith(".")


@pytest.mark.parametrize("command", commands_of_plugins("ringtrain.commands"))
def test_a_command_of_a_plugin_that_is_not_installed(command: str) -> None:
    """One line names the plugin and how to install it; a misspelt command gets a hint."""
    program = "from ringtrain_job.cli.entry import ringtrain; ringtrain()"
    done = run_core_alone("worker_image", program, command, "--help")
    folder = commands_of_plugins("ringtrain.commands")[command].partition("_")[2]
    extra = folder.replace("_", "-")
    assert (done.returncode, done.stderr) == (
        1,
        f"Error: ringtrain {command} needs the plugin ringtrain-{extra}, which is not installed: "
        f"pip install 'ringtrain[{extra}]', or from a clone pip install ./worker_image ./plugins/{folder}\n",
    )
    assert (ROOT / "plugins" / folder / "pyproject.toml").exists()
    misspelt = run_core_alone("worker_image", program, f"{command}x")
    assert misspelt.stderr.endswith(f"Did you mean {command!r}?\n")


# Sends Ctrl-C to itself when the module of its first argument is imported, and runs `ringtrain` with the others.
INTERRUPTED = """
import _signal as signal, os, sys
class Finder:
    def find_spec(self, name, *_):
        if name == module:
            os.kill(os.getpid(), signal.SIGINT)
module = sys.argv.pop(1)
sys.meta_path.insert(0, Finder())
signal.signal(signal.SIGINT, signal.default_int_handler)
from ringtrain_job.cli.entry import ringtrain
ringtrain()
"""
EARLY = "stopped before the ranks started\n"


@pytest.mark.parametrize(
    ("module", "words", "says"),
    [
        ("enum", ("run", "-np", "1", "true"), EARLY),
        ("ringtrain_job.cli.main", ("run", "-np", "1", "true"), EARLY),
        ("ringtrain_job.cli.run", ("run", "-np", "1", "true"), EARLY),
        ("ringtrain_job.cli.logs", ("logs",), ""),
        ("click.shell_completion", ("completion", "bash"), ""),
    ],
    ids=["first-import", "imports", "imports-of-run", "imports-of-logs", "command"],
)
def test_ctrl_c_ends_a_command_with_130(module: str, words: tuple[str, ...], says: str, tmp_path: Path) -> None:
    """At any moment after Python's own start: without a traceback, and without click's `Aborted!`."""
    command = [sys.executable, "-c", INTERRUPTED, module, *words]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", says)


@pytest.mark.parametrize("words", [("--help",), ("completion", "bash"), ("logs", ".")], ids=" ".join)
def test_a_full_disk_is_one_line(words: tuple[str, ...], tmp_path: Path) -> None:
    """The file of stdout is on it. The output may be larger than Python's buffer."""
    (tmp_path / "job.log").write_text("line\n" * 500_000)
    with Path("/dev/full").open("w") as full:
        command = [sys.executable, "-m", "ringtrain", *words]
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, check=False, cwd=tmp_path)
    assert (done.returncode, done.stderr) == (1, "Error: cannot write to stdout: No space left on device\n")


@pytest.mark.parametrize("name", sorted(lazy_commands()))
def test_the_help_of_a_group_is_not_cut(name: str) -> None:
    """Click ends a line that is too long with `...`."""
    module, attribute = lazy_commands()[name].load.split(":")
    command = getattr(importlib.import_module(module), attribute)
    if isinstance(command, click.Group):
        help_text = CliRunner().invoke(command, ["--help"], terminal_width=80).output
        assert "...\n" not in help_text.partition("Commands:")[2]


def test_help_loads_no_command() -> None:
    """The list is read from the tables alone."""
    code = (
        "import sys; from ringtrain_job.cli.main import main; main(['--help'], standalone_mode=False); "
        "print([name for name in sys.modules if name.startswith('ringtrain_job.cli.')])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert (
        done.stdout.splitlines()[-1]
        == "['ringtrain_job.cli.commands', 'ringtrain_job.cli.interrupts', 'ringtrain_job.cli.main']"
    )
