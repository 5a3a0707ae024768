"""Tests of what need not be installed are skipped without it."""

from importlib.util import find_spec

import pytest


def installed(*modules: str) -> bool:
    """Whether `modules` can be imported. None is, as a framework would take seconds of each test process."""
    try:
        return all(find_spec(module) for module in modules)
    except ModuleNotFoundError:  # a parent's
        return False


def need(*modules: str) -> None:
    """Skip the test, or the file that calls this at its top, unless `modules` are installed."""
    for module in modules:
        if not installed(module):
            pytest.skip(f"{module} is not installed: make for-tests", allow_module_level=True)
