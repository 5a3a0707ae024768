"""ringtrain_sdk: one set of methods, blocking and not, and nothing of kopf."""

import inspect
import subprocess
import sys
from collections.abc import AsyncGenerator, Iterator
from importlib.metadata import requires

import pytest

import ringtrain_sdk
from ringtrain_sdk import AsyncClient, AsyncRun, Client, Run

WITHOUT_KOPF = """
import importlib.abc, sys

class Blocked(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("kopf", "prometheus_client", "ringtrain", "torchx", "kubeflow", "IPython"):
            raise ImportError(f"{name} is not here")

sys.meta_path.insert(0, Blocked())
import ringtrain_sdk
from ringtrain_client.cli.main import main
for name in ("list", "submit", "logs", "why", "local", "delete", "convert", "validate", "render"):
    try:
        main([name, "--help"])
    except SystemExit as ended:
        assert ended.code == 0, name
"""


def methods(kind: type) -> dict[str, inspect.Signature]:
    """Its own public methods."""
    found = inspect.getmembers(kind, inspect.isfunction)
    return {name: inspect.signature(method, eval_str=False) for name, method in found if not name.startswith("_")}


@pytest.mark.parametrize(("blocking", "asynchronous"), [(Client, AsyncClient), (Run, AsyncRun)])
def test_both_have_the_same_methods(blocking: type, asynchronous: type) -> None:
    """Names, arguments, defaults and promises; only bytes of logs are the asynchronous one's alone."""
    ours, theirs = methods(blocking), methods(asynchronous)
    assert theirs.keys() - ours.keys() <= {"log_chunks"}
    assert ours.keys() <= theirs.keys()
    for name, signature in ours.items():
        assert signature.parameters == theirs[name].parameters, name
        assert getattr(blocking, name).__doc__ == getattr(asynchronous, name).__doc__
        assert getattr(blocking, name).__doc__, name


def test_what_is_offered_has_a_docstring() -> None:
    """Every name of the package."""
    assert [name for name in ringtrain_sdk.__all__ if not inspect.getdoc(getattr(ringtrain_sdk, name))] == []


@pytest.mark.slow
def test_neither_the_package_nor_dtj_needs_kopf() -> None:
    """Nor do the distributions that are installed with it, unless the extra is asked for."""
    subprocess.run([sys.executable, "-c", WITHOUT_KOPF], check=True, stdout=subprocess.DEVNULL)
    needed = [line for line in requires("ringtrain-operator") or () if "extra ==" not in line]
    assert not [line for line in needed if line.startswith(("kopf", "prometheus"))]


def test_generators_stay_generators() -> None:
    """Methods that are async generators of AsyncRun return iterators in Run."""
    for name in ("logs", "watch"):
        assert inspect.isasyncgenfunction(getattr(AsyncRun, name))
        returned = inspect.signature(getattr(Run, name), eval_str=True).return_annotation
        assert returned.__origin__ is Iterator
        assert AsyncGenerator is not Iterator
