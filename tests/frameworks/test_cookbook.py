"""docs/cookbook.md: every recipe runs as it is written, and does what the page says."""

import os
import re
import sys
from pathlib import Path

from frameworks.declared import declared
from support.commands import completed
from support.deadlines import patient

PAGE = (Path(__file__).parents[2] / "docs/cookbook.md").read_text()
DEADLINE_S = patient(120.0)


RECIPES = ("test_cookbook_recipes.py", "test_cookbook_libraries.py")


def blocks() -> dict[str, list[str]]:
    """The programs under each heading, by the heading's words."""
    sections = dict(section.split("\n", 1) for section in PAGE.split("\n## ")[1:])
    return {
        re.sub(r"\W+", "_", heading.lower()): re.findall(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
        for heading, text in sections.items()
    }


def test_a_notebook_gets_what_its_ranks_returned():
    """The cell is run as a notebook runs it: its function is in no file."""
    (cell,) = blocks()["ranks_from_a_notebook"]
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = completed([sys.executable, "-c", cell], env=env, timeout=DEADLINE_S)
    assert re.fullmatch(r"\[0\.\d+, 0\.\d+\]\n", done.stdout), done.stderr


def test_every_recipe_is_tested():
    """A recipe without a test would no longer work one day."""
    files = [declared(Path(__file__).with_name(name)) for name in RECIPES]
    tested = {test.removeprefix("test_") for file in files if file for test in file.lines}
    others = {"the_beginning_of_every_recipe", "ranks_from_a_notebook"}
    assert {name for name, programs in blocks().items() if programs} == tested | others


def test_recipes_are_short():
    """25 lines of code are what a reader takes in at once."""
    recipes = [block.split("\n") for programs in blocks().values() for block in programs]
    assert [lines[:2] for lines in recipes if len(list(filter(None, lines))) > 25] == []
