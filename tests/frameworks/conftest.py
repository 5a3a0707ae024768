"""What tests of frameworks share."""

from collections.abc import Iterator

import pytest
from frameworks.harness import end_servers


@pytest.fixture(scope="module", autouse=True)
def _servers_end_with_their_file() -> Iterator[None]:
    yield
    end_servers()
