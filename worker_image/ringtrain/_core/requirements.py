"""Check that required packages are installed: numpy always, a framework for its adapter, a plugin for its transport."""

from importlib.util import find_spec
from typing import Any

import numpy as np

from ringtrain.errors import ConfigurationError
from ringtrain.shared.plugins import entry_points_of, missing_plugin_text

_OLDEST_NUMPY = (1, 26)  # as in pyproject.toml

if tuple(int(part) for part in np.__version__.split(".")[:2]) < _OLDEST_NUMPY:
    raise ImportError(
        f"ringtrain needs numpy 1.26 or newer; numpy {np.__version__} is installed: pip install 'numpy>=1.26'"
    )


def missing(framework: str) -> str:
    """Return a message with the pip command that installs `framework`; empty if it is installed."""
    if find_spec(framework) is not None:
        return ""
    return (
        f"ringtrain.{framework} needs {framework}, which is not installed: pip install 'ringtrain[{framework}]', or "
        f"from a clone pip install ./worker_image ./plugins/{framework}"
    )


def load_plugin(group: str, name: str, need: str) -> Any:
    """Return the object that an installed plugin registers as entry point `name` of `group`.

    Raises ConfigurationError if no plugin does. `need`: what needs the plugin, for the message.
    """
    for point in entry_points_of(group):
        if point.name == name:
            return point.load()
    raise ConfigurationError(missing_plugin_text(need, f"ringtrain_{name}"))
