"""Skips tests of packages that are not installed."""

from importlib.util import find_spec

import pytest


def installed(*modules: str) -> bool:
    """Return whether `modules` can be imported. It imports none, because a framework would take seconds."""
    try:
        return all(find_spec(module) for module in modules)
    except ModuleNotFoundError:  # a parent package is missing
        return False


def need(*modules: str) -> None:
    """Skip the test, or the file that calls this at its top, unless `modules` are installed."""
    for module in modules:
        if not installed(module):
            pytest.skip(f"{module} is not installed: make for-tests", allow_module_level=True)
