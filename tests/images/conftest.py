"""The images as `make images` builds them; they are not built here."""

import os
from pathlib import Path

import pytest
from support.images import Engine, find_engine

HERE = Path(__file__).parent
WHY = "needs the images: run `make images images-check` where docker or podman runs"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Every test here needs images, which take minutes to build."""
    for item in items:
        if Path(item.path).is_relative_to(HERE) and not os.environ.get("RINGTRAIN_IMAGES"):
            item.add_marker(pytest.mark.skip(reason=WHY))


@pytest.fixture(scope="session")
def engine() -> Engine:
    """The engine that has the images."""
    program = find_engine()
    assert program, "neither docker nor podman answers; IMAGE_ENGINE names another program"
    return Engine(program)
