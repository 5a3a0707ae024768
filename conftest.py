"""Options, fixtures and deadlines for all tests."""

import asyncio
import functools
import gc
import inspect
import os
import signal
from pathlib import Path
from typing import Any

import pytest
from frameworks.harness import TORCH_DEVICES
from hypothesis import HealthCheck, settings
from ring.leftovers import note_others
from support.deadlines import patient

pytest_plugins = ["support.gangfixture", "support.storefixtures", "frameworks.collected"]
pytest.register_assert_rewrite("support.kubelet_cases", "support.nodes_under_test")

ROOT = Path(__file__).parent
OF_FRAMEWORKS = ("clusters", "data_service", "graphcore", "jax", "tensorflow", "torch")
MARKS_OF = {
    **{ROOT / "plugins" / name: "frameworks" for name in OF_FRAMEWORKS},
    ROOT / "tests" / "frameworks": "frameworks",
    ROOT / "tests" / "integration" / "operator": "cluster",
    ROOT / "tests" / "e2e": "cluster",
}

# Of a test that is a coroutine. Generous: the machine may be busy; a passing test takes seconds.
DEADLINE_S = patient(480.0)

# Every run has the same inputs. One that is slow to make is no fault of a test: the machine may be busy.
settings.register_profile("busy", derandomize=True, deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("busy")

# Otherwise each of the thousands of processes that import numpy starts threads that spin: 45 ms of an import's 115.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

# A shell's background jobs ignore Ctrl-C, and so would every process that a test starts and interrupts.
signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_configure(config: pytest.Config) -> None:
    config.option.fast = config.args_source is config.ArgsSource.TESTPATHS
    if hasattr(config, "workerinput"):
        config.option.fast = config.workerinput["fast"]


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """Before a worker of pytest-xdist starts, which is given the words of the command line alone."""
    node.workerinput["fast"] = node.config.option.fast


def pytest_report_header() -> str:
    """Return the header line that names the devices of the PyTorch checks; without a GPU, CUDA is not checked."""
    on = ", ".join(f"{device} ({backend})" for device, backend in TORCH_DEVICES.items())
    return f"tensors of ringtrain.torch: {on}" + ("" if "cuda" in TORCH_DEVICES else "; no GPU, CUDA is not run")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark tests as their folder says. A run that names no tests leaves slow ones out."""
    for item in items:
        for folder, mark in MARKS_OF.items():
            if _is_in(item.path, folder):
                item.add_marker(mark)
    if config.option.fast:
        left_out = [item for item in items if item.get_closest_marker("slow")]
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if not item.get_closest_marker("slow")]


def pytest_collection_finish() -> None:
    """Exclude ten thousand tests from each search for garbage: it took a sixth of the time of tests in one process."""
    gc.collect()
    gc.freeze()


@functools.cache
def _is_in(path: Path, folder: Path) -> bool:
    """Of ten thousand cases in some hundred files."""
    return path.is_relative_to(folder)


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run a coroutine test in a fresh event loop, with a deadline."""
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    arguments = {name: pyfuncitem.funcargs[name] for name in pyfuncitem._fixtureinfo.argnames}

    async def bounded() -> None:
        async with asyncio.timeout(DEADLINE_S):
            await pyfuncitem.obj(**arguments)

    asyncio.run(bounded())
    return True


@pytest.fixture(scope="module", autouse=True)
def leftovers_of_others() -> None:
    """Exclude threads and sockets from before this module from its leftover checks."""
    note_others()
