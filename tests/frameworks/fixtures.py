"""Fixtures of the tests in this folder and of the plugins' tests."""

from collections.abc import Iterator

import pytest
from frameworks.harness import end_servers


@pytest.fixture
def among(request: pytest.FixtureRequest) -> tuple[str, ...]:
    """The checks that this run takes of the test's world: those of the cases whose other parameters are alike."""

    def world_of(item: pytest.Item) -> tuple[str, dict[str, object]]:
        others = {name: value for name, value in _params(item).items() if name != "check"}
        return item.nodeid.partition("[")[0], others

    own = world_of(request.node)
    return tuple(_params(item)["check"] for item in request.session.items if world_of(item) == own)


def _params(item: pytest.Item) -> dict[str, str]:
    return item.callspec.params if hasattr(item, "callspec") else {}


@pytest.fixture(scope="module", autouse=True)
def servers_end_with_their_file() -> Iterator[None]:
    yield
    end_servers()
