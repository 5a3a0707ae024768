"""Variables that only a plugin reads, where the plugin is not installed."""

import json
import os
import sys
import tomllib
from pathlib import Path

import pytest
from support.commands import completed
from support.deadlines import patient
from support.small_job import environment

from ringtrain.errors import ConfigurationError
from ringtrain.shared import contract
from ringtrain.shared.environment import EnvironmentVariables
from ringtrain_job.launcher.config import check_plugins

RUNTIME = Path(__file__).parents[4] / "worker_image" / "pyproject.toml"


def test_a_variable_of_a_plugin_needs_the_plugin() -> None:
    """Set and not installed is refused; unset, empty or of no plugin is not."""
    plugins = {"RINGTRAIN_OF_PLUGIN": "absent"}
    with pytest.raises(ConfigurationError) as caught:
        check_plugins(EnvironmentVariables({"RINGTRAIN_OF_PLUGIN": "some,words"}), plugins)
    assert str(caught.value) == (
        "RINGTRAIN_OF_PLUGIN='some,words' needs the plugin ringtrain-absent where the launcher runs: "
        "pip install 'ringtrain[absent]'"
    )
    check_plugins(EnvironmentVariables({}), plugins)
    check_plugins(EnvironmentVariables({"RINGTRAIN_OF_PLUGIN": ""}), plugins)
    check_plugins(EnvironmentVariables({"RINGTRAIN_OF_PLUGIN": "if-installed"}), plugins)
    check_plugins(EnvironmentVariables({"RINGTRAIN_OF_PLUGIN": "1"}), {})


# The launcher in a Python in which no plugin is installed.
WITHOUT_PLUGINS = """
import importlib.metadata as metadata
of_all = metadata.distribution

def of_core(name):
    if name.startswith("ringtrain-"):
        raise metadata.PackageNotFoundError(name)
    return of_all(name)

metadata.distribution = of_core
from ringtrain_job.cli.main import main
main()
"""


@pytest.mark.parametrize(("variable", "plugin"), contract.PLUGIN_VARIABLES.items())
def test_a_launcher_without_a_plugin_refuses_its_variable(tmp_path: Path, variable: str, plugin: str) -> None:
    """The launcher ends with 64 and one line, which is also in the pod's status. ringtrain has an extra that installs
    the plugin. `ringtrain run` refuses the variable before it starts anything, unless it removes the variable, because
    the variable describes the run that has started this one."""
    message = tmp_path / "message"
    env = {**environment(1), variable: "1", "RINGTRAIN_TERMINATION_MESSAGE_PATH": str(message)}
    done = completed([sys.executable, "-c", WITHOUT_PLUGINS, "launcher"], env=env, timeout=patient(60))
    (line,) = done.stderr.splitlines()
    assert done.returncode == contract.EXIT_BAD_CONFIGURATION
    assert f"{variable}='1' needs the plugin ringtrain-{plugin} where the launcher runs" in line
    assert json.loads(message.read_text())["failure"]["message"] in line
    assert plugin in tomllib.loads(RUNTIME.read_text())["project"]["optional-dependencies"]
    if variable == contract.ENV_HOST_DISCOVERY_SCRIPT:
        return
    run = [sys.executable, "-c", WITHOUT_PLUGINS, "run", "-np", "1", "--log-dir", str(tmp_path), "true"]
    refused = completed(run, env={**os.environ, variable: "1"}, timeout=patient(60))
    assert refused.returncode == contract.EXIT_BAD_CONFIGURATION
    assert line.partition("launcher: ")[2] in refused.stderr


def test_a_run_without_a_page_refuses_ui(tmp_path: Path) -> None:
    """Without a plugin for pages, `ringtrain run --ui` starts nothing and names the package to install."""
    code = (
        "import importlib.metadata as metadata\n"
        "found = {point for package in metadata.distributions() for point in package.entry_points}\n"
        "others = metadata.EntryPoints(point for point in found if point.group != 'ringtrain.run.started')\n"
        "metadata.entry_points = lambda **chosen: others.select(**chosen)\n"
        "from ringtrain_job.cli.main import main\nmain()"
    )
    run = [sys.executable, "-c", code, "run", "--ui", "-np", "1", "--log-dir", str(tmp_path), "true"]
    done = completed(run, timeout=patient(60))
    assert done.returncode == 1
    assert done.stderr == "Error: --ui needs the plugin that serves pages: pip install 'ringtrain[page]'\n"
    assert not list(tmp_path.iterdir())
