"""docs/architecture.md's map places every folder, in the order that .importlinter enforces."""

import ast
import random
import re
from pathlib import Path

import pytest
from support.commands import module_at

ROOT = Path(__file__).parents[2]
PACKAGES = {
    "ringtrain": ROOT / "worker_image/ringtrain",
    "ringtrain._core": ROOT / "worker_image/ringtrain/_core",
    "ringtrain_job": ROOT / "worker_image/ringtrain_job",
    "ringtrain_operator": ROOT / "operator/ringtrain_operator",
    "ringtrain_client": ROOT / "client/ringtrain_client",
}
CONTRACTS = {
    "ringtrain": "library-layers",
    "ringtrain._core": "core-layers",
    "ringtrain_job": "job-layers",
    "ringtrain_operator": "operator-layers",
    "ringtrain_client": "client-layers",
}


def rows(package: str) -> list[list[str]]:
    """The folders and files of each row of a distribution's table, without the last slash."""
    text = (ROOT / "docs/architecture.md").read_text()
    section = text.split(f"{PACKAGES[package].relative_to(ROOT)}/`, from the top")[1].split("\n#")[0]
    table = [line.split("|")[1] for line in section.splitlines() if line.startswith("| `")]
    return [[name.rstrip("/").removesuffix(".py") for name in re.findall(r"`([^`]+)`", cell)] for cell in table]


def row_of(package: str, module: Path) -> int:
    """The row of the folder (or file) that a module is in."""
    inside = module.relative_to(PACKAGES[package]).with_suffix("").as_posix()
    folder = "_core" if package == "ringtrain" and inside.startswith("_core/") else inside.rpartition("/")[0]
    found = [n for n, names in enumerate(rows(package)) if folder in names or inside in names]
    assert len(found) == 1, f"{module}: in rows {found} of the map"
    return found[0]


def modules(package: str) -> list[Path]:
    """All modules but the package's own two, what is generated, and those of a package with its own table."""
    files = sorted(PACKAGES[package].rglob("*.py"))
    if package == "ringtrain":
        files = [file for file in files if not file.is_relative_to(PACKAGES["ringtrain._core"])]
    return [file for file in files if file.parent != PACKAGES[package] or not file.name.startswith("__")]


def imported(package: str, module: Path) -> list[Path]:
    """The modules and folders of its own package that a module imports from, without `.py`."""
    found = []
    for node in ast.walk(ast.parse(module.read_text())):
        if not isinstance(node, ast.ImportFrom):
            continue
        parts = (node.module or "").split(".")
        if node.level:
            found.append(module.parents[node.level - 1].joinpath(*parts))
        elif f"{node.module}.".startswith(f"{package}."):
            found.append(PACKAGES[package].joinpath(*parts[package.count(".") + 1 :]))
    return [target for target in found if target != PACKAGES[package]]


@pytest.mark.parametrize("package", PACKAGES)
def test_the_map_has_the_layers_in_their_order(package: str) -> None:
    """Every layer stands in one row, and a layer that .importlinter has below another does not stand above it."""
    layers = module_at(ROOT / "docs/images/layers.py").layers(CONTRACTS[package])
    table = rows(package)
    places = []
    for names in layers:
        found = {name: [n for n, row in enumerate(table) if name in row] for name in names if name != "__main__"}
        assert {name: at for name, at in found.items() if len(at) != 1} == {}
        places += sorted(at[0] for at in found.values())
    assert places == sorted(places)


@pytest.mark.parametrize("package", PACKAGES)
def test_every_module_is_on_the_map(package: str) -> None:
    """Each module's folder has its one row, sub-folders included."""
    assert all(row_of(package, module) >= 0 for module in modules(package))


@pytest.mark.slow
def test_twenty_functions_are_placed_by_the_map() -> None:
    """Picked by a fixed seed: the row of each one's module, and everything it imports in that row or below."""
    functions = [
        (package, module, node.name)
        for package in PACKAGES
        for module in modules(package)
        for node in ast.walk(ast.parse(module.read_text()))
        if isinstance(node, ast.FunctionDef)
    ]
    for package, module, name in random.Random(11).sample(functions, 20):
        row = row_of(package, module)
        for target in imported(package, module):
            file = target.with_suffix(".py") if target.with_suffix(".py").exists() else target / "__init__.py"
            assert row_of(package, file) >= row, f"{name} of {module} may not import {target}"


def test_the_picture_is_drawn_from_the_layers() -> None:
    """`make generate` draws it; nobody need look whether it is true."""
    assert (ROOT / "docs/images/layers.svg").read_text() == module_at(ROOT / "docs/images/layers.py").picture()


def test_decisions_have_one_format_and_are_all_listed() -> None:
    """Title with its number, Context and Choice first, Turned down last, and a row in the index."""
    folder = ROOT / "docs/decisions"
    index = (folder / "README.md").read_text()
    known = ["Context", "Choice", "Measured", "Limits", "Turned down"]
    for page in sorted(folder.glob("0*.md")):
        text = page.read_text()
        title = text.splitlines()[0]
        assert title.startswith(f"# {page.name[:4]}: "), page
        headings = re.findall(r"^## (.+)$", text, re.MULTILINE)
        assert headings == [name for name in known if name in headings], page
        assert {"Context", "Choice", "Turned down"} <= set(headings), page
        assert f"| [{page.name[:4]}]({page.name}) | {title[8:]} |" in index, page


def test_the_operator_imports_its_own_in_one_style() -> None:
    """Every module names the others relative to itself; so does the client."""
    for name in ("ringtrain_operator", "ringtrain_client"):
        absolute = re.compile(rf"^\s*(from|import) {name}", re.MULTILINE)
        assert [file for file in PACKAGES[name].rglob("*.py") if absolute.search(file.read_text())] == []
