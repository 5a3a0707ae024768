"""The stand-in kubelet agrees with a real one: tests/e2e/test_kubelet_contract.py runs the same cases on a cluster."""

from pathlib import Path

import pytest
from support.apiserver import ControlPlane
from support.cluster import namespace_of, real_cluster
from support.kubelet import Kubelet, ProcessRuntime
from support.kubelet_cases import CASES, Case
from support.nodes_under_test import NodesUnderTest

IMAGES = {"worker": "train:1", "root": "root:1"}


@pytest.mark.apiserver
@pytest.mark.parametrize("case", CASES)
async def test_the_stand_in(control_plane: ControlPlane, runtime: ProcessRuntime, tmp_path: Path, case: Case) -> None:
    """Beside the real API server."""
    async with (
        namespace_of(real_cluster(control_plane)) as (c, namespace),
        Kubelet(c.api, runtime, tmp_path, namespace=namespace, pull_s=0) as kubelet,
    ):
        nodes = NodesUnderTest(c.api, namespace, IMAGES, kubelet.evict)
        async with nodes.recorded():
            await case(nodes)
