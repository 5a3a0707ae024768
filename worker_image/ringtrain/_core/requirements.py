"""Check that required packages are installed: numpy always, a framework for its adapter."""

from importlib.util import find_spec

import numpy as np

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
