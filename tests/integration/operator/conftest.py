"""Both API servers for the operator's tests."""

import functools
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.apiserver import ControlPlane, why_unavailable
from support.cluster import OpenCluster, fake_cluster, real_cluster
from support.documents import documents
from support.kubelet import ProcessRuntime
from support.kueue import why_no_kueue
from support.queued import Setting, open_setting

from ringtrain_operator.cluster import versions
from ringtrain_operator.cluster.pods import KnownPods

ROOT = Path(__file__).parents[3]
running: list[ControlPlane] = []


@pytest.fixture
def control_plane(tmp_path_factory: pytest.TempPathFactory) -> ControlPlane:
    """A real control plane with our CRDs, one for this folder; skips with the way to get its binaries."""
    if reason := why_unavailable():
        pytest.skip(reason)
    if not running:
        files = [ROOT / "manifests" / name for name in ("crd.yaml", "crd-templates.yaml")]
        crds = tuple(crd for file in files for crd in documents(file))
        running.append(ControlPlane.start(tmp_path_factory.mktemp("control-plane"), crds))
    return running[0]


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(nextitem: pytest.Item | None) -> None:
    """End the control plane behind the folder's last test: it takes a twentieth of a core even when it idles."""
    if running and (nextitem is None or Path(__file__).parent not in nextitem.path.parents):
        running.pop().stop()


@pytest.fixture(scope="session")
def setting(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Setting]:
    """A control plane with the real Kueue, started once; skips where its manager is not there."""
    if reason := why_unavailable() or why_no_kueue():
        pytest.skip(reason)
    with open_setting(tmp_path_factory.mktemp("kueue")) as opened:
        yield opened


@pytest.fixture(autouse=True)
def all_jobs_are_large(monkeypatch: pytest.MonkeyPatch) -> None:
    """An operator in this process reads the pods of every job as those of large jobs: as watches tell of them."""
    monkeypatch.setattr(versions, "KnownPods", functools.partial(KnownPods, large=1))


@pytest.fixture(params=["fake", pytest.param("real", marks=pytest.mark.apiserver)])
def open_cluster(request: pytest.FixtureRequest) -> OpenCluster:
    """`async with open_cluster() as cluster`: the test runs once on the fake and once on the real API server."""
    if request.param == "fake":
        return fake_cluster
    return functools.partial(real_cluster, request.getfixturevalue("control_plane"))


@pytest.fixture
def one_cluster(request: pytest.FixtureRequest) -> OpenCluster:
    """The real API server if its programs are there, otherwise the fake one: for whole jobs, which take long."""
    if why_unavailable():
        return fake_cluster
    return functools.partial(real_cluster, request.getfixturevalue("control_plane"))


@pytest.fixture(scope="session")
def venv_bin() -> Path:
    """The folder with the programs of this environment, `ringtrain` among them."""
    return Path(sys.executable).parent


@pytest.fixture
def runtime(venv_bin: Path) -> ProcessRuntime:
    """Containers as processes, which find the programs of this environment."""
    return ProcessRuntime(ROOT, {"PATH": f"{venv_bin}:{os.environ['PATH']}"})
