"""Both API servers for the operator's tests, and coroutine tests run to their end with a deadline."""

import asyncio
import functools
import inspect
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from support.apiserver import ControlPlane, why_unavailable
from support.cluster import OpenCluster, fake_cluster, real_cluster

ROOT = Path(__file__).parents[3]
DEADLINE_S = 240.0  # generous: the machine may be busy; a passing test takes seconds


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run a coroutine test in a fresh event loop."""
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    arguments = {name: pyfuncitem.funcargs[name] for name in pyfuncitem._fixtureinfo.argnames}

    async def bounded() -> None:
        async with asyncio.timeout(DEADLINE_S):
            await pyfuncitem.obj(**arguments)

    asyncio.run(bounded())
    return True


@pytest.fixture(scope="session")
def control_plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """A real control plane with our CRD, started once; skips with the way to get its binaries."""
    if reason := why_unavailable():
        pytest.skip(reason)
    crds = tuple(yaml.safe_load_all((ROOT / "manifests" / "crd.yaml").read_text()))
    plane = ControlPlane.start(tmp_path_factory.mktemp("control-plane"), crds)
    yield plane
    plane.stop()


@pytest.fixture(params=["fake", pytest.param("real", marks=pytest.mark.apiserver)])
def open_cluster(request: pytest.FixtureRequest) -> OpenCluster:
    """`async with open_cluster() as cluster`: the test runs once on the fake and once on the real API server."""
    if request.param == "fake":
        return fake_cluster
    return functools.partial(real_cluster, request.getfixturevalue("control_plane"))


@pytest.fixture(scope="session")
def venv_bin() -> Path:
    """The folder with the programs of this environment, `ringtrain` among them."""
    return Path(sys.executable).parent
