"""Jobs that compete for devices: the real control plane and kube-scheduler, and nodes that run pods by script."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from support.apiserver import ControlPlane, why_unavailable
from support.rounds import open_arena, scheduling_plane

pytestmark = pytest.mark.apiserver


@pytest.fixture(scope="module")
def plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """One with a scheduler; skips with the way to get its binaries."""
    if reason := why_unavailable("kube-scheduler"):
        pytest.skip(reason)
    with scheduling_plane(tmp_path_factory.mktemp("scheduling-plane")) as found:
        yield found


async def test_a_deadlock_of_jobs_that_are_placed_pod_by_pod_ends_by_itself(
    plane: ControlPlane, tmp_path: Path
) -> None:
    """Four jobs of 4 workers with 2 devices each on 8 devices: one is whole within 30 s, and all run in turn."""
    async with open_arena(plane, tmp_path) as arena:
        result = await arena.round(jobs=4, workers=4, devices=2)
    assert result.first_whole_s < 30
    assert (result.restarts, result.disruptions) == (0, 0)
