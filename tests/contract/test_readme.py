"""Commands, files and make targets that README and docs name exist, and README's programs run."""

import os
import re
import shlex
import shutil
import sys
from pathlib import Path

import click
import numpy as np
import pytest
from frameworks.warm_python import shared_python
from support.commands import completed, module_at
from support.deadlines import patient
from support.needs import need

ROOT = Path(__file__).parents[2]
BIN = Path(sys.executable).parent
README = ROOT / "README.md"
check = module_at(ROOT / "docs/check.py")
PAGES, BLOCK = check.pages(), check.BLOCK
DEADLINE_S = patient(240.0)


def blocks(page: Path, language: str) -> list[str]:
    """The fenced blocks of a page."""
    return [text for found, text in BLOCK.findall(page.read_text()) if found == language]


def named(program: str) -> set[tuple[str, str]]:
    """(page, word) for every `program word` in code on any page."""
    found = set()
    for page in PAGES:
        text = page.read_text()
        inline = re.findall(r"`([^`\n]+)`", BLOCK.sub("", text))
        shell = [line.split("#")[0] for block in blocks(page, "") for line in block.splitlines()]
        for code in (*inline, *shell):
            for word in re.findall(rf"(?:^|[\s/]){program} ([a-z][a-z-]*)(?![\w.=/-])", code, re.MULTILINE):
                found.add((str(page.relative_to(ROOT)), word))
    return found


@pytest.mark.parametrize("page", PAGES, ids=[str(p.relative_to(ROOT)) for p in PAGES])
def test_what_a_page_names_is_there(page: Path) -> None:
    """Links lead to files and headings; named files, folders, modules and their members exist."""
    assert list(check.problems(page)) == []


def test_every_make_target_that_is_named_exists() -> None:
    """`make X` on a page is in the Makefile, and the Makefile's help lists it."""
    targets = set(re.findall(r"^([a-z0-9-]+):.*##", (ROOT / "Makefile").read_text(), re.MULTILINE))
    used = named("make")
    assert {"demo", "test", "images"} <= {word for _, word in used}
    assert {(page, word) for page, word in used if word not in targets} == set()


@pytest.mark.parametrize("program", ["dtj", "ringtrain"])
def test_every_command_that_is_named_exists(program: str) -> None:
    """`dtj X` and `ringtrain X` on a page are commands of theirs."""
    import ringtrain_client.cli.main
    import ringtrain_job.cli.main

    group = {"dtj": ringtrain_client.cli.main.main, "ringtrain": ringtrain_job.cli.main.main}[program]
    assert isinstance(group, click.Group)
    known = set(group.list_commands(click.Context(group)))
    used = named(program)
    assert used
    assert {(page, word) for page, word in used if word not in known} == set()


def test_files_on_the_readmes_command_lines_are_there() -> None:
    """Manifests, samples, the chart and the examples."""
    words = [word for block in blocks(README, "") for word in block.split()]
    paths = [word for word in words if re.match(r"(manifests|charts|examples)/", word)]
    assert {"charts/ringtrain-operator", "examples/digits/train.py"} <= set(paths)
    assert [path for path in paths if not (ROOT / path).exists()] == []


@pytest.mark.slow
def test_the_readmes_run_works_as_it_is_written(tmp_path: Path) -> None:
    """`ringtrain run …` trains, with nothing of the environment in PATH."""
    (line,) = [line for block in blocks(README, "") for line in block.splitlines() if "ringtrain run" in line]
    program, run, *words = shlex.split(line)
    assert (program, run) == (".venv/bin/ringtrain", "run")
    (tmp_path / ".venv").symlink_to(BIN.parent)
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    env = {"PATH": os.defpath, "HOME": str(tmp_path), "OMP_NUM_THREADS": "1"}
    done = completed([program, run, *words], cwd=tmp_path, env=env)
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"test accuracy: 0\.9[6-9]", done.stdout)


def ended_with(directory: Path, ranks: int, python: str = sys.executable) -> np.ndarray:
    """Return the weights that every rank of README's program printed.

    The program is run in `directory`: one rank without a launcher, several under `ringtrain run`.
    """
    env = {**os.environ, "PATH": f"{Path(python).parent}:{os.environ['PATH']}", "OMP_NUM_THREADS": "1"}
    runner = [str(BIN / "ringtrain"), "run", "-np", str(ranks)] if ranks > 1 else []
    done = completed([*runner, "python", "train.py"], cwd=directory, env=env)
    assert done.returncode == 0, done.stdout + done.stderr
    printed = re.findall(r"^(?:\[\d+\] )?(\d+) (.+)$", done.stdout, re.MULTILINE)
    assert sorted(int(rank) for rank, _ in printed) == list(range(ranks)), done.stdout
    assert len({weights for _, weights in printed}) == 1
    return np.array(printed[0][1].split(), float)


@pytest.mark.slow
def test_the_readmes_torch_program_gives_the_same_weights_on_any_number_of_ranks(tmp_path: Path) -> None:
    """As it is written, in at most 25 lines, with 1 and 3 ranks. It is the first program that README shows."""
    need("torch")
    python = shared_python("torch")
    program, _ = blocks(README, "python")
    assert len(program.splitlines()) <= 25
    (tmp_path / "train.py").write_text(program)
    weights = ended_with(tmp_path, 1, python)
    assert np.abs(weights - np.arange(8)).max() < 0.2
    assert np.allclose(ended_with(tmp_path, 3, python), weights, atol=1.1e-3)  # printed with 3 digits


@pytest.mark.slow
def test_the_readmes_numpy_program_gives_the_same_weights_on_any_number_of_ranks(tmp_path: Path) -> None:
    """As it is written, in at most 25 lines, with 1, 2 and 3 ranks; checkpoints resume."""
    _, program = blocks(README, "python")
    assert len(program.splitlines()) <= 25
    alone, two, three = (tmp_path / name for name in ("alone", "two", "three"))
    for directory in (alone, two, three):
        directory.mkdir()
        (directory / "train.py").write_text(program)
    weights = ended_with(alone, 1)
    assert np.abs(weights - np.arange(8)).max() < 0.2
    assert np.allclose(ended_with(two, 2), weights, atol=1.1e-3)  # printed with 3 digits
    shutil.copytree(two / "checkpoints", three / "checkpoints")
    newest = sorted((three / "checkpoints").iterdir())[-1]
    newest.unlink()
    assert np.allclose(ended_with(three, 3), weights, atol=1.1e-3)
    assert newest.exists()
