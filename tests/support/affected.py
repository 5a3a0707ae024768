"""Print the test files that a change since a commit can affect: `python tests/support/affected.py REVISION`.

A file depends on the files of the repository that it imports, also within functions. It also depends on what its
strings name: a module (`package.module` or `package.module:name`), a group of entry points, a program that a
distribution installs (`dtj`), or a file by its name (`train.py`, `values.yaml`). A test is affected if it, or anything
that it depends on, has changed. `tests/contract` is always included, because it reads files of every kind.
"""

import ast
import re
import subprocess
import sys
import tomllib
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
ALWAYS = "tests/contract"
# Every test depends on these.
OF_ALL = ("conftest.py", "pyproject.toml", "requirements")
NAMED = re.compile(r"[\w./-]+(?::\w+)?")


def changed_since(revision: str, root: Path = ROOT) -> set[str]:
    """Paths of the files that differ from `revision` or are new. Raises CalledProcessError without git."""
    commands = (["diff", "--name-only", "--relative", revision], ["ls-files", "--others", "--exclude-standard"])
    return {name for words in commands for name in _lines_of_git(words, root)}


def _lines_of_git(words: list[str], root: Path) -> list[str]:
    return subprocess.run(["git", *words], cwd=root, check=True, stdout=subprocess.PIPE, text=True).stdout.splitlines()


@dataclass(frozen=True)
class Node:
    """A file. `whole` is False for a package that is only imported as the parent of a module."""

    file: str
    whole: bool


class Repository:
    """Files of the repository by the names under which other files refer to them."""

    def __init__(self, root: Path = ROOT) -> None:
        self._root = root
        listed = _lines_of_git(["ls-files", "--cached", "--others", "--exclude-standard"], root)
        self.files = sorted(name for name in listed if (root / name).is_file())
        self._modules: dict[str, set[str]] = defaultdict(set)
        self._files: dict[str, set[str]] = defaultdict(set)
        self._named: dict[str, set[str]] = defaultdict(set)
        folders = {str(Path(name).parent) for name in self.files if name.endswith("/__init__.py")}
        tops = {folder for folder in folders if str(Path(folder).parent) not in folders}
        for name in self.files:
            if not name.endswith("__init__.py"):
                self._files[Path(name).name].add(name)
            if name.endswith(".py"):
                self._modules[self._module(name, tops)].add(name)
        for name in self.files:
            if name.endswith("pyproject.toml"):
                self._read_entry_points(tomllib.loads((root / name).read_text()).get("project", {}))

    def _module(self, name: str, tops: set[str]) -> str:
        """The name by which `name` is imported: below a package, below tests/, or alone in its folder."""
        path = Path(name)
        top = next((Path(one).parent for one in sorted(tops, key=len) if name.startswith(f"{one}/")), None)
        base = top or (Path("tests") if name.startswith("tests/") else path.parent)
        parts = path.relative_to(base).with_suffix("").parts
        return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)

    def _read_entry_points(self, project: dict[str, Any]) -> None:
        for group, points in project.get("entry-points", {}).items():
            for target in points.values():
                self._named[group] |= self._modules.get(target.partition(":")[0], set())
        for program, target in project.get("scripts", {}).items():
            self._named[program] |= self._modules.get(target.partition(":")[0], set())

    def imported(self, module: str) -> set[Node]:
        """Files of a module, and what importing it runs of the packages that it is in."""
        parts = module.split(".")
        packages = {file for end in range(1, len(parts)) for file in self._modules.get(".".join(parts[:end]), ())}
        return {Node(file, True) for file in self._modules.get(module, ())} | {Node(file, False) for file in packages}

    def named(self, text: str, folder: str) -> set[Node]:
        """Files that a string in a file of `folder` names. A name of several files is that of the one in `folder`."""
        found = {Node(file, True) for file in self._named.get(text, ())}
        for word in NAMED.findall(text):
            files = [file for file in self._files.get(word.rpartition("/")[2], ()) if f"/{file}".endswith(f"/{word}")]
            found |= {Node(one, True) for one in files if len(files) == 1 or one.rpartition("/")[0] == folder}
            found |= self.imported(word.partition(":")[0]) if "." in word else set()
        return found

    def dependencies(self, node: Node) -> set[Node]:
        """Return the files that `node` imports or names. If it is not `whole`: those that importing it loads."""
        found: set[Node] = set()
        for part in _nodes(ast.parse((self._root / node.file).read_text()), node.whole):
            if isinstance(part, ast.Import):
                found |= {file for one in part.names for file in self.imported(one.name)}
            elif isinstance(part, ast.ImportFrom):
                base = self._base(node.file, part)
                found |= self.imported(base)
                found |= {file for one in part.names for file in self.imported(f"{base}.{one.name}")}
            elif isinstance(part, ast.Constant) and isinstance(part.value, str) and node.whole:
                found |= self.named(part.value, node.file.rpartition("/")[0])
        return found - {node}

    def _base(self, name: str, node: ast.ImportFrom) -> str:
        if not node.level:
            return node.module or ""
        (module,) = [module for module, files in self._modules.items() if name in files]
        package = module.split(".") if name.endswith("/__init__.py") else module.split(".")[:-1]
        parts = package[: len(package) - node.level + 1] + ([node.module] if node.module else [])
        return ".".join(parts)


def _nodes(tree: ast.AST, whole: bool) -> Iterator[ast.AST]:
    """Nodes of a module without docstrings and what type checkers alone see; not `whole`: without functions' bodies."""
    for node in ast.iter_child_nodes(tree):
        is_docstring = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        is_for_checkers = isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)
        is_left_out = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and not whole
        if not (is_docstring or is_for_checkers or is_left_out):
            yield node
            yield from _nodes(node, whole)


def affected(changed: set[str], repository: Repository) -> list[str]:
    """The test files that depend on a changed file, and `tests/contract`; everything if the change is of all tests."""
    tests = [name for name in repository.files if re.search(r"(^|/)test_\w+\.py$", name)]
    if any(name.startswith(OF_ALL) or name.endswith((".c", ".h")) for name in changed):
        return tests
    users: dict[Node, set[Node]] = defaultdict(set)
    for name in repository.files:
        for node in (Node(name, True), Node(name, False)) if name.endswith(".py") else ():
            for other in repository.dependencies(node):
                users[other].add(node)
    pending = [Node(name, whole) for name in changed for whole in (True, False)]
    reached = set(pending)
    while pending:
        new = users[pending.pop()] - reached
        reached |= new
        pending += new
    return [name for name in tests if Node(name, True) in reached or name.startswith(f"{ALWAYS}/")]


if __name__ == "__main__":
    print("\n".join(affected(changed_since(sys.argv[1]), Repository())))
