"""Fixture of a gang of real processes."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from support.gang import GangProcesses


@pytest.fixture
def gang(tmp_path: Path) -> Iterator[Callable[..., GangProcesses]]:
    """Return `gang(workers, slots, **settings)`. All its processes have ended after the test."""
    made: list[GangProcesses] = []

    def make(workers: int, slots: int, **settings: str) -> GangProcesses:
        made.append(GangProcesses(tmp_path, workers, slots, **settings))
        return made[-1]

    yield make
    for one in made:
        one.close()
