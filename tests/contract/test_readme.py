"""What README and docs tell a reader to type or to open is there."""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import click
import numpy as np
import pytest

ROOT = Path(__file__).parents[2]
BIN = Path(sys.executable).parent
README = ROOT / "README.md"
PAGES = sorted([README, *(ROOT / "docs").rglob("*.md"), *(ROOT / "bench").rglob("*.md")])
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
DEADLINE_S = 240.0


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


def anchor(heading: str) -> str:
    """The fragment under which a heading can be reached."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


@pytest.mark.parametrize("page", PAGES, ids=[str(p.relative_to(ROOT)) for p in PAGES])
def test_links_lead_somewhere(page: Path) -> None:
    """Every link into the repository is to a file or folder that is there, and to a heading that it has."""
    for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text()):
        if "://" in target:
            continue
        path, _, fragment = target.partition("#")
        file = (page.parent / path).resolve() if path else page
        assert file.exists(), target
        if fragment:
            assert fragment in {anchor(h) for h in re.findall(r"^#+ (.+)$", file.read_text(), re.MULTILINE)}, (
                target
            )


def test_every_make_target_that_is_named_exists() -> None:
    """`make X` on a page is in the Makefile, and the Makefile's help lists it."""
    targets = set(re.findall(r"^([a-z0-9-]+):.*##", (ROOT / "Makefile").read_text(), re.MULTILINE))
    used = named("make")
    assert {"demo", "test", "images"} <= {word for _, word in used}
    assert {(page, word) for page, word in used if word not in targets} == set()


@pytest.mark.parametrize("program", ["dtj", "ringtrain"])
def test_every_command_that_is_named_exists(program: str) -> None:
    """`dtj X` and `ringtrain X` on a page are commands of theirs."""
    import ringtrain.cli.main
    import ringtrain_operator.cli.main

    group = {"dtj": ringtrain_operator.cli.main.main, "ringtrain": ringtrain.cli.main.main}[program]
    assert isinstance(group, click.Group)
    known = set(group.list_commands(click.Context(group)))
    used = named(program)
    assert used
    assert {(page, word) for page, word in used if word not in known} == set()


def test_files_on_the_readmes_command_lines_are_there() -> None:
    """Manifests, samples, the chart and the examples."""
    words = [word for block in blocks(README, "") for word in block.split()]
    paths = [word for word in words if re.match(r"(manifests|charts|examples)/", word)]
    assert {"manifests/", "charts/ringtrain-operator", "examples/digits/train.py"} <= set(paths)
    assert [path for path in paths if not (ROOT / path).exists()] == []


def test_the_readmes_run_works_as_it_is_written(tmp_path: Path) -> None:
    """`ringtrain run …` trains; only where the logs go is added."""
    (line,) = [line for block in blocks(README, "") for line in block.splitlines() if "ringtrain run" in line]
    program, run, *words = shlex.split(line)
    assert (program, run) == (".venv/bin/ringtrain", "run")
    env = {**os.environ, "PATH": f"{BIN}:{os.environ['PATH']}", "OMP_NUM_THREADS": "1"}
    command = [str(BIN / "ringtrain"), run, "--log-dir", str(tmp_path), *words]
    done = subprocess.run(
        command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=DEADLINE_S, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"test accuracy: 0\.9[6-9]", done.stdout)


def test_the_readmes_training_loop_trains(monkeypatch: pytest.MonkeyPatch) -> None:
    """The Python block runs in a world of one and changes the weights."""
    for name in [name for name in os.environ if name.startswith(("RINGTRAIN_", "TF_CONFIG"))]:
        monkeypatch.delenv(name)
    (block,) = blocks(README, "python")
    initial = {"w": np.ones(8, np.float32)}
    names: dict[str, Any] = {
        "initial": initial,
        "samples": range(128),
        "backward": lambda _batch: [("w", np.ones(8, np.float32))],
    }
    exec(compile(block, str(README), "exec"), names)
    assert np.all(names["weights"]["w"] < 1)
    names["rt"].shutdown()
