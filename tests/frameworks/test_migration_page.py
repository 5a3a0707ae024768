"""docs/migrate-from-horovod.md knows every public name."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def public_names(module: str) -> list[str]:
    """`__all__` of an adapter, read without importing its framework."""
    tree = ast.parse((ROOT / "worker_image/ringtrain" / module / "__init__.py").read_text())
    (names,) = [n.value for n in tree.body if isinstance(n, ast.Assign) and n.targets[0].id == "__all__"]
    return ast.literal_eval(names)


@pytest.mark.parametrize("module", ["torch", "tensorflow", "keras"])
def test_every_public_name_is_on_the_page(module):
    """So that a reader finds whether it is the same."""
    page = (ROOT / "docs/migrate-from-horovod.md").read_text()
    known = set(re.findall(r"`(?:callbacks\.)?(\w+)", page))
    assert set(public_names(module)) - known == set()
