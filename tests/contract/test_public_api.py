"""Parts of the package that a user sees without its source: names, signatures, docstrings, a version."""

import inspect
import sys
import zipfile
from importlib.metadata import version
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from support.commands import completed

import ringtrain as rt
from ringtrain import checkpoint, data, elastic, errors, optim

ROOT = Path(__file__).parents[2]
PUBLIC = [rt, optim, data, checkpoint, elastic]
ids = [module.__name__ for module in PUBLIC]


def members(module: ModuleType) -> list[tuple[str, Any]]:
    """The functions and classes that a module offers."""
    found = [(name, getattr(module, name)) for name in module.__all__]
    return [(name, item) for name, item in found if inspect.isfunction(item) or inspect.isclass(item)]


def test_version_is_that_of_the_distribution() -> None:
    """`ringtrain.__version__`, as other packages have it."""
    assert rt.__version__ == version("ringtrain")


def test_an_unknown_name_is_an_attribute_error() -> None:
    """With the words that Python has for it."""
    with pytest.raises(AttributeError, match=r"module 'ringtrain' has no attribute 'allredcue'"):
        _ = rt.allredcue


@pytest.mark.parametrize("module", PUBLIC, ids=ids)
def test_dir_is_the_public_api(module: ModuleType) -> None:
    """Completion in a shell offers what is public, and no module of the implementation."""
    assert set(dir(module)) - {"__version__"} == set(module.__all__)


def test_errors_are_at_the_top_level() -> None:
    """`except rt.PeerLost` needs no second import; all errors of the tree are there."""
    classes = [item for _, item in inspect.getmembers(errors, inspect.isclass)]
    tree = [item for item in classes if issubclass(item, errors.RingtrainError)]
    assert errors.PeerLost in tree
    assert [kind for kind in tree if getattr(rt, kind.__name__, None) is not kind] == []


@pytest.mark.parametrize("module", PUBLIC, ids=ids)
def test_signatures_name_types_as_a_reader_knows_them(module: ModuleType) -> None:
    """`help()` shows `ArrayLike`, not the union behind it, and no module path of ours."""
    for name, item in members(module):
        try:
            shown = str(inspect.signature(item))
        except ValueError:  # an error without an __init__ of its own
            continue
        assert "numpy." not in shown, (name, shown)
        assert "ringtrain._core.process_groups" not in shown, (name, shown)
        assert "Union[" not in shown, (name, shown)


@pytest.mark.parametrize("module", PUBLIC, ids=ids)
def test_everything_public_has_a_docstring(module: ModuleType) -> None:
    """Functions, classes, and the methods and properties that a class shows."""
    missing = []
    for name, item in members(module):
        if not item.__doc__ or item.__doc__.startswith(f"{name}("):  # what a dataclass writes by itself
            missing.append(name)
        if not inspect.isclass(item):
            continue
        for attribute, value in vars(item).items():
            if attribute.startswith("_") or not (inspect.isfunction(value) or isinstance(value, property)):
                continue
            if not inspect.getdoc(value):
                missing.append(f"{name}.{attribute}")
    assert missing == []


def test_type_checkers_find_an_editable_installation(tmp_path: Path) -> None:
    """`pip install -e` puts folders on the path; type checkers read the path, and run no import hook."""
    for folder, package in [
        ("operator", "ringtrain_operator"),
        ("client", "ringtrain_client"),
        ("worker_image", "ringtrain"),
        ("plugins/torch", "ringtrain_torch"),
    ]:
        project = tmp_path / folder
        (project / package).mkdir(parents=True)
        (project / package / "__init__.py").touch()
        lines = (ROOT / folder / "pyproject.toml").read_text().split("[[tool.setuptools.ext-modules]]")
        (project / "pyproject.toml").write_text(lines[0])
        build = "from setuptools.build_meta import build_editable; print(build_editable('.'))"
        made = completed([sys.executable, "-c", build], cwd=project, check=True)
        with zipfile.ZipFile(project / made.stdout.split()[-1]) as wheel:
            (pth,) = [name for name in wheel.namelist() if name.endswith(".pth")]
            assert wheel.read(pth).decode().strip() == str(project)
