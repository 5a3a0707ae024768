"""What all tests rely on."""

import asyncio
import functools
import inspect
import random
import signal
from pathlib import Path
from typing import Any

import pytest
from frameworks.harness import TORCH_DEVICES
from hypothesis import HealthCheck, settings
from ring.leftovers import note_others
from support.deadlines import patient
from support.sampling import MARK, Sample, mark_seams

pytest_plugins = ["support.gangfixture", "support.storefixtures", "frameworks.collected"]

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

# Input that is slow to make is no fault of a test: the machine may be busy.
settings.register_profile("busy", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("busy")

# A shell's background jobs ignore Ctrl-C, and so would every process that a test starts and interrupts.
signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--sample",
        default="",
        metavar="SEED",
        help="run some of the cases of tests marked `sampled`: those of a number, or, with `any`, of a new one",
    )
    parser.addoption(
        "--thin",
        type=int,
        default=1,
        metavar="N",
        help="of a sample: run each test marked `sampled` in one of so many runs, beside what its mark says",
    )
    parser.addoption("--after-fast", action="store_true", help="leave out what a bare pytest runs")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", MARK)
    config.option.fast = config.args_source is config.ArgsSource.TESTPATHS
    if hasattr(config, "workerinput"):
        config.option.sample = config.workerinput["sample"]
        config.option.fast = config.workerinput["fast"]
        return
    if config.option.sample == "any":
        config.option.sample = str(random.SystemRandom().randrange(1_000_000))


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """Before a worker of pytest-xdist starts, which is given the words of the command line alone."""
    node.workerinput["sample"] = node.config.option.sample
    node.workerinput["fast"] = node.config.option.fast


def pytest_report_header() -> str:
    """What checks of PyTorch run on: without a GPU nothing of CUDA does."""
    on = ", ".join(f"{device} ({backend})" for device, backend in TORCH_DEVICES.items())
    return f"tensors of ringtrain.torch: {on}" + ("" if "cuda" in TORCH_DEVICES else "; no GPU, CUDA is not run")


@pytest.hookimpl(trylast=True)
def pytest_sessionstart(session: pytest.Session) -> None:
    """The header, which `-q` does without, would be the place."""
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    seed = session.config.option.sample
    if reporter is not None and seed:
        reporter.write_line(
            f"sample {seed} of the long tests (again with --sample={seed}, all with make test-thorough)"
        )


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark what folders say of their tests. A sample, and a run that names no tests, leave some out."""
    for item in items:
        for folder, mark in MARKS_OF.items():
            if _is_in(item.path, folder):
                item.add_marker(mark)
    mark_seams(items)
    left_out = Sample(config.option.sample, config.option.thin).left_out(items)
    if config.option.fast:
        left_out |= {item for item in items if item.get_closest_marker("slow")}
    if config.option.after_fast:
        fast = [config.rootpath / path for path in config.getini("testpaths")]
        left_out |= {
            item
            for item in items
            if any(_is_in(item.path, path) for path in fast) and not item.get_closest_marker("slow")
        }
    config.hook.pytest_deselected(items=[item for item in items if item in left_out])
    items[:] = [item for item in items if item not in left_out]


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
    """Who counts what is left over counts from here."""
    note_others()


@pytest.fixture
def sample(request: pytest.FixtureRequest) -> Sample:
    """What a test that loops over its cases itself takes of them."""
    return Sample(request.config.option.sample)
