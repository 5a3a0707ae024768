"""docs/migrate-from-horovod.md knows every public name, Horovod's and ours."""

import ast
import re
from pathlib import Path

import pytest
from frameworks.horovod_names import NOT_HERE, horovod_names
from support.commands import module_at

ROOT = Path(__file__).parents[2]
CHECK = module_at(ROOT / "docs/check.py")
PAGE = (ROOT / "docs/migrate-from-horovod.md").read_text()


def public_names(module: str) -> list[str]:
    """`__all__` of an adapter and of those that it takes names from, read without importing a framework."""
    name = CHECK.in_plugin(module)
    path = ROOT / CHECK.DISTRIBUTIONS[name.partition(".")[0]] / name.replace(".", "/")
    tree = ast.parse((path / "__init__.py" if path.is_dir() else path.with_suffix(".py")).read_text())
    sources = {
        alias.name: str(node.module) if alias.name == "__all__" else f"{node.module}.{alias.name}"
        for node in tree.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    if "__all__" in sources:
        return public_names(sources["__all__"])
    (names,) = [n.value for n in tree.body if isinstance(n, ast.Assign) and n.targets[0].id == "__all__"]
    own = [element.value for element in names.elts if isinstance(element, ast.Constant)]
    own += [word.arg for n in tree.body for word in _loaded_on_use(n)]
    starred = [element.value.value.id for element in names.elts if isinstance(element, ast.Starred)]
    return own + [name for source in starred for name in public_names(sources[source])]


def _loaded_on_use(node: ast.stmt) -> list[ast.keyword]:
    """Return the names in `__getattr__ = load_on_use(__name__, NAME="module")`."""
    if not (isinstance(node, ast.Assign) and isinstance(node.value, ast.Call)):
        return []
    return node.value.keywords if ast.unparse(node.value.func) == "load_on_use" else []


def names_on_the_page(text: str = PAGE) -> set[str]:
    return set(re.findall(r"`(?:callbacks\.|elastic\.)?(\w+)", text))


@pytest.mark.parametrize("module", ["torch", "tensorflow", "keras"])
def test_every_public_name_is_on_the_page(module):
    """So that a reader finds whether it is the same."""
    assert set(public_names(f"ringtrain.{module}")) - names_on_the_page() == set()


@pytest.mark.parametrize("module", horovod_names())
def test_every_name_of_horovod_is_on_the_page(module):
    """Also those that are not here."""
    assert set(horovod_names()[module]) - names_on_the_page() == set()


def test_the_page_says_what_is_not_here():
    """In rows of their own."""
    rows = "\n".join(line for line in PAGE.splitlines() if "| not here |" in line)
    assert names_on_the_page(rows) >= NOT_HERE


def test_every_name_that_the_page_calls_the_same_exists():
    """A row that promises a name which no module has would send a reader astray."""
    sections = dict(re.findall(r"^## `ringtrain\.(\w+)`[^\n]*\n(.*?)(?=^## |\Z)", PAGE, re.MULTILINE | re.DOTALL))
    assert set(sections) == {"torch", "tensorflow", "keras"}
    for module, text in sections.items():
        rows = [line.split("|") for line in text.splitlines() if line.startswith("| `")]
        promised = {
            name
            for row in rows
            if row[2].strip() in ("same", "different", "new") and "(method)" not in row[1]
            for name in re.findall(r"`(?:callbacks\.|elastic\.)?(\w+)", row[1])
        }
        further = {
            name for below in horovod_names() if below.startswith(f"{module}.") for name in horovod_names()[below]
        }
        assert promised - set(public_names(f"ringtrain.{module}")) - further == set(), module
