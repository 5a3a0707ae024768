"""A file that declares worlds is collected without being imported, and each of its tests runs on ranks."""

import json
import os
import re
import sys
from pathlib import Path

import pytest
from support.commands import completed

ROOT = Path(__file__).parents[2]
FILE = """
import os
from functools import partial

import ringtrain as rt

assert "RINGTRAIN_RING_ADDRESSES" in os.environ, "imported by pytest"
RUN_IN = [
    {"framework": "ringtrain", "ranks": [1, 2]},
    {
        "framework": "ringtrain",
        "name": "alone",
        "ranks": [1],
        "each": {"RINGTRAIN_TEST_WORD": ["a", "b"]},
        "tests": ["test_sum"],
    },
]
rt.init()


def test_sum():
    assert rt.allreduce([1.0], op=rt.Sum) == rt.size()


def test_only_alone():
    assert rt.size() == 1, f"rank {rt.rank()} is not alone"


def _word(wanted):
    assert os.environ.get("RINGTRAIN_TEST_WORD") == wanted


test_word = partial(_word, None)
"""
IDS = ["test_sum[ranks-1]", "test_only_alone[ranks-1]", "test_word[ranks-1]"]
IDS += [one.replace("1]", "2]") for one in IDS] + ["test_sum[alone-a-ranks-1]", "test_sum[alone-b-ranks-1]"]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    (tmp_path / "pytest.ini").touch()
    (tmp_path / "test_of_ranks.py").write_text(FILE)
    return tmp_path / "test_of_ranks.py"


RUNS = """
import json, sys
import pytest

for options in json.loads(sys.argv[1]):
    pytest.main(["-p", "no:cacheprovider", "-p", "conftest", *options])
    print("the end of this run", flush=True)
"""


def run(file: Path, *runs: tuple[str, ...]) -> list[str]:
    """Return what pytest prints in each of the runs with these options, which one process does one after another."""
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, [ROOT, ROOT / "tests"]))}
    done = completed([sys.executable, "-c", RUNS, json.dumps(runs)], cwd=file.parent, env=env)
    *printed, rest = done.stdout.split("the end of this run\n")
    assert len(printed) == len(runs), rest + done.stderr
    return printed


def test_each_test_in_each_world_is_an_item(file: Path) -> None:
    (printed,) = run(file, ("--collect-only", "-q"))
    assert re.findall(r"::(.*)", printed) == IDS


def test_items_run_alone_and_fail_with_the_tracebacks_of_all_ranks(file: Path) -> None:
    """Also where they are distributed; a name with its world, a name without it, and `-k` choose among them."""
    printed, both, without_world, by_words = run(
        file,
        ("-n", "2", "--dist", "loadfile"),
        (f"{file.name}::test_sum[alone-a-ranks-1]", "-k", "sum"),
        (f"{file.name}::test_sum",),
        ("-k", "ranks-1 and not alone"),
    )
    assert "1 failed, 7 passed" in printed
    assert re.search(r"rank 0:\n.*rank 0 is not alone\n\nrank 1:\n.*rank 1 is not alone", printed, re.S)
    assert "FAILED test_of_ranks.py::test_only_alone[ranks-2]" in printed
    assert "1 passed" in both
    assert "4 passed" in without_world
    assert "2 passed, 6 deselected" in by_words


def test_what_would_not_run_is_named(file: Path) -> None:
    lines = [
        ('globals()["test_made"] = test_sum', r"\['test_made'\] are never run; expected `def test_…` or `test_… = …`"),
        ('RUN_IN = {"frame": "ringtrain"}', r"RUN_IN has the keys \['frame'\]; expected some of framework, ranks"),
        ('RUN_IN = {"framework": "x", "tests": ["test_x"]}', r"RUN_IN names \['test_x'\], expected tests of the file"),
    ]
    folders = [file.with_name(f"line{index}") for index in range(len(lines))]
    for folder, (line, _) in zip(folders, lines, strict=True):
        folder.mkdir()
        (folder / file.name).write_text(f"{FILE}\n{line}\n")
    printed = run(file, *((folder.name, "-k", "test_word") for folder in folders))
    for (_, words), found in zip(lines, printed, strict=True):
        assert re.search(words, found), found
