"""Benchmarks, which are run by hand, import only names that exist."""

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[3]
FOLDERS = {
    "bench": ROOT,
    **dict.fromkeys(["ring", "support"], ROOT / "tests"),
    **dict.fromkeys(["mpi_jobs", "mpi_libraries"], ROOT / "plugins/mpi/tests"),
    **dict.fromkeys(["ringtrain", "ringtrain_job"], ROOT / "worker_image"),
    "ringtrain_operator": ROOT / "operator",
    **{f"ringtrain_{plugin.name}": plugin for plugin in (ROOT / "plugins").iterdir() if plugin.is_dir()},
}


def is_ours(module: str | None) -> bool:
    return module is not None and module.partition(".")[0] in FOLDERS


def names_of(module: str) -> set[str] | None:
    """Return the names that a module of ours defines, imports or has as submodules, without running it; or None."""
    place = FOLDERS[module.partition(".")[0]] / module.replace(".", "/")
    source = place / "__init__.py" if place.is_dir() else place.with_suffix(".py")
    names = {path.stem for path in place.iterdir()} if place.is_dir() else set()
    if not source.exists():
        return names or None
    for node in ast.walk(ast.parse(source.read_text())):
        match node:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                names.add(name)
            case ast.Name(id=name, ctx=ast.Store()):
                names.add(name)
            case ast.ImportFrom(module=str(other), names=[ast.alias(name="*")]) if is_ours(other):
                names |= names_of(other) or set()
            case ast.alias(name=name, asname=other):
                names.add(other or name.partition(".")[0])
    return names


def lacking(tree: ast.Module) -> Iterator[str]:
    """Yield the missing names of ours that a program imports. `ringtrain` and its frameworks make names on use."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and is_ours(node.module):
            names = names_of(str(node.module))
            if names is None:
                yield str(node.module)
            elif "__getattr__" not in names:
                yield from (f"{node.module}.{alias.name}" for alias in node.names if alias.name not in names)
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if is_ours(alias.name) and names_of(alias.name) is None)


def test_benchmarks_import_what_is_there() -> None:
    """A benchmark is run by hand: without this a module that moves would be missed months later."""
    programs = [path for path in sorted((ROOT / "bench").rglob("*.py")) if ".venv" not in path.parts]
    assert len(programs) > 30
    missing = {str(path.relative_to(ROOT)): list(lacking(ast.parse(path.read_text()))) for path in programs}
    assert {path: names for path, names in missing.items() if names} == {}


def test_what_is_not_there_is_found() -> None:
    """A module, a submodule and a name."""
    source = "import ringtrain.absent\nfrom support.absent import a\nfrom support.ports import absent\nimport os.absent"
    assert list(lacking(ast.parse(source))) == ["ringtrain.absent", "support.absent", "support.ports.absent"]
