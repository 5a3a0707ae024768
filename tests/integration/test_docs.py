"""`make docs`: the pages and the reference of the Python API are built without a warning."""

import html
import os
import re
import sys
from pathlib import Path

from support.commands import completed
from support.needs import need

import ringtrain as rt

ROOT = Path(__file__).parents[2]


def test_the_pages_build_and_hold_the_whole_public_api(tmp_path: Path) -> None:
    """Strictly: no dead link or heading. Every public function and class of `ringtrain` has its entry."""
    need("mkdocs")
    made = completed(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(tmp_path)],
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
    )
    assert made.returncode == 0, made.stdout + made.stderr
    page = html.unescape((tmp_path / "reference/python/index.html").read_text())
    entries = {name.rpartition(".")[2] for name in re.findall(r'id="(ringtrain[\w.]*)"', page)}
    public = {name for name in rt.__all__ if callable(getattr(rt, name))}
    assert public - entries == set()
    index = (tmp_path / "index.html").read_text()
    assert 'data-md-color-scheme="slate"' in index  # a dark palette
    assert "site.css" in index  # which leaves names of fields in tables whole
