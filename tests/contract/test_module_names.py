"""Modules beside scripts that tests run as programs: Python finds them before its own."""

import sys
from pathlib import Path

TESTS = Path(__file__).parents[1]
# Folders of such scripts: Python puts a script's folder first on its path.
FOLDERS = [TESTS / "support", TESTS / "frameworks", TESTS / "ring"]


def test_no_module_hides_one_of_pythons_own() -> None:
    """A module named as one of the standard library breaks whatever imports that one."""
    names = {path.relative_to(TESTS): path.stem for folder in FOLDERS for path in folder.glob("*.py")}
    assert [str(path) for path, name in names.items() if name in sys.stdlib_module_names] == []
