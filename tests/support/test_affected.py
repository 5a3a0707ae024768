"""`make test-changed` finds the tests that a change can affect, in a repository of a few files."""

import subprocess
import sys
from pathlib import Path

import pytest

from support.affected import Repository, affected, changed_since
from support.commands import completed

FILES = {
    "lib/pyproject.toml": """
[project.scripts]
tool = "pack.cli:main"
[project.entry-points."pack.parts"]
one = "pack.part:load"
""",
    "lib/pack/__init__.py": "def lazy():\n    from . import heavy\n",
    "lib/pack/heavy.py": "",
    "lib/pack/base.py": "",
    "lib/pack/part.py": "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from . import heavy\n",
    "lib/pack/cli.py": '"""Not a use of values.yaml."""\nfrom .base import x\nGROUP = "pack.parts"\n',
    "lib/values.yaml": "",
    "lib/other/train.py": "",
    "scripts/train.py": "",
    "tests/contract/test_all.py": "",
    "tests/helper.py": "import pack.base\n",
    "tests/test_base.py": "from helper import y\n",
    "tests/test_pack.py": "import pack\n",
    "tests/test_tool.py": "PROGRAM = 'tool'\n",
    "tests/test_run.py": "COMMAND = '-m pack.heavy'\n",
    "tests/test_values.py": "def test():\n    open('lib/values.yaml')\n",
    "tests/test_script.py": "SCRIPT = 'scripts/train.py'\n",
    "tests/test_nothing.py": "",
}


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The files, committed."""
    root = tmp_path_factory.mktemp("repository")
    for name, text in FILES.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    for words in ("init -q", "add .", "-c user.name=a -c user.email=a@example.com commit -qm files"):
        assert completed(["git", *words.split()], cwd=root).returncode == 0
    return root


@pytest.mark.parametrize(
    ("changed", "tests"),
    [
        pytest.param("lib/pack/base.py", ["base", "tool"], id="through-a-helper"),
        pytest.param("lib/pack/part.py", ["tool"], id="by-an-entry-point"),
        pytest.param("lib/pack/heavy.py", ["pack", "run"], id="in-a-function-and-by-a-string"),
        pytest.param("lib/pack/__init__.py", ["base", "pack", "run", "tool"], id="a-package"),
        pytest.param("lib/values.yaml", ["values"], id="a-file-that-a-test-names"),
        pytest.param("scripts/train.py", ["script"], id="one-of-two-files-of-a-name"),
        pytest.param("tests/test_nothing.py", ["nothing"], id="the-test-itself"),
        pytest.param("README.md", [], id="nobody-names-it"),
        pytest.param("lib/pyproject.toml", [], id="a-distribution"),
    ],
)
def test_a_change_affects_what_depends_on_it(root: Path, changed: str, tests: list[str]) -> None:
    """Contract tests are always among them."""
    found = affected({changed}, Repository(root))
    assert found == sorted(["tests/contract/test_all.py", *(f"tests/test_{name}.py" for name in tests)])


@pytest.mark.parametrize("changed", ["conftest.py", "pyproject.toml", "requirements-dev.txt", "lib/kernel.c"])
def test_a_change_of_what_all_tests_use_affects_all(root: Path, changed: str) -> None:
    """The configuration and the compiled library."""
    assert len(affected({changed}, Repository(root))) == 8


def test_changed_are_files_that_differ_and_new_ones(root: Path) -> None:
    """Committed files that are as they were are not; without a commit of that name there is no answer."""
    assert changed_since("HEAD", root) == set()
    (root / "new.py").touch()
    (root / "lib/pack/heavy.py").write_text("x = 1\n")
    assert changed_since("HEAD", root) == {"new.py", "lib/pack/heavy.py"}
    with pytest.raises(subprocess.CalledProcessError):
        changed_since("no-such-commit", root)


def test_the_program_prints_paths_of_this_repository() -> None:
    """Make passes these paths to pytest."""
    program = Path(__file__).with_name("affected.py")
    done = completed([sys.executable, str(program), "HEAD"], cwd=program.parents[2])
    assert done.returncode == 0, done.stderr
    assert all((program.parents[2] / line).is_file() for line in done.stdout.splitlines())
    assert "tests/contract/test_names.py" in done.stdout.splitlines()
