"""Pages that are transcripts: every command works as it is written, and prints what the page says."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

from support.deadlines import patient

ROOT = Path(__file__).parents[3]
BIN = Path(sys.executable).parent
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
FILE = re.compile(r"`([\w.-]+)`[^`\n]*:\n\n```\w+\n(.*?)^```$", re.MULTILINE | re.DOTALL)
HOME = "/home/you/first"
PAGE = ROOT / "docs/contributors-hour.md"
# Files that a patch changes.
CHANGED = re.compile(r"^\+\+\+ b/(\S+)$", re.MULTILINE)
# Of one field of the resource, by hand.
MOST_FILES = 8
DEADLINE_S = patient(240.0)


def masked(output: str) -> list[str]:
    """Lines without what differs between runs: speeds, times, who is late, numbers of processes, table widths."""
    text = re.sub(r" +rank \d+ holds others up \d+ %$", "", output, flags=re.MULTILINE)
    text = re.sub(r"-[0-9a-f]{4}(?=/|$)", "-0", text, flags=re.MULTILINE)  # at the end of a run's name
    text = re.sub(
        r"(?<=took) .*?(?=,|$)|(?:\d+[smhd])+ *$|\d[\d,]*\.\d+|\d{1,3}(?:,\d{3})+|\d{2,}",
        " 0",
        text,
        flags=re.MULTILINE,
    )
    return [" ".join(line.split()) for line in text.splitlines()]


def transcript(page: str) -> list[tuple[str, list[str]]]:
    """Each command of the page with the lines that the page prints below; `…` stands for any lines."""
    parts = "".join(text for language, text in BLOCK.findall(page) if language == "console").split("$ ")
    commands = [part.partition("\n") for part in parts if part]
    return [(command, [line for line in masked(printed) if line != "…"]) for command, _, printed in commands]


def test_a_speed_is_masked_however_fast() -> None:
    """So that the page's line is found on any machine."""
    speeds = ("812", "3,089", "11,492", "1,234,567")
    assert [masked(f"samples/s {speed}") for speed in speeds] == [["samples/s 0"]] * len(speeds)


def play(page: str, folder: Path, env: dict[str, str]) -> None:
    """Run a page's commands in `folder`, one after the other: every line of the page is printed."""
    for name, text in FILE.findall(page):
        (folder / name).write_text(text)
    code = 0
    for command, expected in transcript(page):
        done = subprocess.run(
            ["bash", "-c", f"(exit {code}); {command}"],
            cwd=folder,
            env={**os.environ, "PATH": f"{BIN}:{os.environ['PATH']}", "OMP_NUM_THREADS": "1", **env},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=DEADLINE_S,
            check=False,
        )
        code = done.returncode
        printed = masked(done.stdout.replace(str(folder), HOME))
        assert [line for line in expected if line not in printed] == [], f"$ {command}\n{done.stdout}"


def test_the_commands_of_the_first_hour_print_what_the_page_says(tmp_path: Path) -> None:
    _, program = re.findall(r"^```python\n(.*?)^```$", (ROOT / "README.md").read_text(), re.MULTILINE | re.DOTALL)
    (tmp_path / "train.py").write_text(program)
    play((ROOT / "docs/first-hour.md").read_text(), tmp_path, {})


def test_the_commands_of_a_contributors_hour_print_what_the_page_says(tmp_path: Path) -> None:
    """In a copy of the repository, whose code is the installed one's."""
    for part in ("operator", "client", "worker_image", "plugins", "tests", "proto", "manifests", "charts", "docs"):
        shutil.copytree(ROOT / part, tmp_path / part, ignore=shutil.ignore_patterns("__pycache__"))
    for file in ("pyproject.toml", "conftest.py", "Makefile", "CHANGELOG.md", "requirements-dev.txt", ".importlinter"):
        shutil.copy(ROOT / file, tmp_path)
    venv = tmp_path / ".venv"  # for make: it is there, and younger than what it is made of
    venv.mkdir()
    for part in ("bin", "lib", "pyvenv.cfg"):
        (venv / part).symlink_to(BIN.parent / part)
    for made in (".core", ".installed"):
        (venv / made).touch()
    author = {f"GIT_{who}_{what}": "you@example.com" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}
    path = ":".join(str(tmp_path / part) for part in ("operator", "client", "worker_image"))
    env = {"PYTHONPATH": path, "PYTEST_ADDOPTS": "", "COLUMNS": "300", **author}
    for command in (["init", "-q"], ["add", "."], ["commit", "-qm", "The repository"]):
        subprocess.run(["git", *command], cwd=tmp_path, env={**os.environ, **author}, check=True)
    play(PAGE.read_text(), tmp_path, env)


def test_a_field_of_the_resource_costs_at_most_eight_files_by_hand() -> None:
    """From the manifest to the status, with tests and the word to users; the rest is generated."""
    page = dict(FILE.findall(PAGE.read_text()))
    written = {name for patch in ("tail-test.patch", "tail.patch") for name in CHANGED.findall(page[patch])}
    assert any("/spec/" in name for name in written)
    assert 0 < len(written) <= MOST_FILES
    shown = next(printed for command, printed in transcript(PAGE.read_text()) if command == "git diff --name-only")
    assert written <= set(shown)
