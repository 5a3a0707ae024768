"""One call goes no farther than bench/README.md says, by what `python -m bench.walk` counts."""

import re
import sys
from pathlib import Path

import pytest
from support.commands import completed

ROOT = Path(__file__).parents[3]
ROW = re.compile(r"^(?:\[0\] )?\| ([^|]+) \| (\d+) \| (\d+) \| \d+ \|", re.MULTILINE)


def rows(text: str) -> dict[str, tuple[int, int]]:
    """Files and changes of folder by what was called."""
    return {what: (int(files), int(changes)) for what, files, changes in ROW.findall(text)}


@pytest.fixture(scope="module")
def counted() -> dict[str, tuple[int, int]]:
    run = [sys.executable, "-m", "bench.walk"]
    done = completed(run, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    return rows(done.stdout)


@pytest.mark.slow
def test_no_walk_is_longer_than_published(counted: dict[str, tuple[int, int]]) -> None:
    """Nobody lengthens a road without a word on the page."""
    _, _, section = (ROOT / "bench/README.md").read_text().partition("## How far one call goes")
    published = rows(section.partition("\n## ")[0])
    assert published.keys() == counted.keys()
    longer = {
        what: (walk, published[what])
        for what, walk in counted.items()
        if any(now > said for now, said in zip(walk, published[what], strict=True))
    }
    assert not longer  # what was counted, and what is published
