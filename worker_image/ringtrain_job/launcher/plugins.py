"""Check that plugins are installed for the environment variables that only they read."""

from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, distribution

from ringtrain.errors import ConfigurationError, quoted
from ringtrain.shared import contract
from ringtrain.shared.environment import EnvironmentVariables


def check_plugins(env: EnvironmentVariables, plugins: Mapping[str, str] = contract.PLUGIN_VARIABLES) -> None:
    """Raise ConfigurationError if `env` sets a variable whose plugin is missing and which would be ignored.

    `plugins`: plugin name by variable. The value `if-installed` is never refused.
    """
    for variable, plugin in plugins.items():
        value = env.optional(variable)
        if value and value != contract.IF_INSTALLED and not _is_installed(f"ringtrain-{plugin}"):
            raise ConfigurationError(
                f"{variable}={quoted(value)} needs the plugin ringtrain-{plugin} where the launcher runs: "
                f"pip install 'ringtrain[{plugin}]'"
            )


def _is_installed(name: str) -> bool:
    try:
        distribution(name)
    except PackageNotFoundError:
        return False
    return True
