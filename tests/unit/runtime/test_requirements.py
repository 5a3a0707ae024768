"""Errors of `import` if a dependency is missing or too old."""

import sys
from pathlib import Path

from support.commands import completed


def last_line(program: str, *path: str) -> str:
    """Return the last line of output of a new process that fails. `path`: searched first for modules."""
    done = completed([sys.executable, "-c", f"import sys; sys.path[:0] = {list(path)}; {program}"])  # fmt: skip
    assert done.returncode
    return done.stderr.splitlines()[-1]


def test_an_old_numpy_is_named(tmp_path: Path) -> None:
    """With the first use of ringtrain, before anything fails of it."""
    (tmp_path / "numpy").mkdir()
    (tmp_path / "numpy" / "__init__.py").write_text('__version__ = "1.25.2"')
    line = last_line("import ringtrain; ringtrain.init()", str(tmp_path))
    expected = "ringtrain needs numpy 1.26 or newer; numpy 1.25.2 is installed: pip install 'numpy>=1.26'"
    assert line == f"ImportError: {expected}"
