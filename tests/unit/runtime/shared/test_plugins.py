"""A plugin's package has a second name in `ringtrain`, and its modules run once."""

import sys
from pathlib import Path

import pytest
from support.commands import completed

CORE = Path(__file__).parents[4] / "worker_image"


@pytest.fixture
def plugin(tmp_path: Path) -> Path:
    """A folder with the package `ringtrain_toy`, whose submodules count how often they run."""
    package = tmp_path / "ringtrain_toy"
    (package / "part").mkdir(parents=True)
    (package / "__init__.py").write_text("from ringtrain_toy.part import inner as inner\nthing = object()\n")
    (package / "part" / "__init__.py").touch()
    (package / "part" / "inner.py").write_text("print('inner runs')\nclass Kind: pass\n")
    (package / "part" / "broken.py").write_text("import a_module_that_is_absent\n")
    return tmp_path


def output_of(plugin: Path, program: str) -> list[str]:
    first = f"import sys; sys.path.insert(0, {str(plugin)!r}); from ringtrain.shared.plugins import provide; "
    done = completed([sys.executable, "-c", first + program])
    return [*done.stdout.splitlines(), *done.stderr.splitlines()[-1:]]


PROVIDE = "provide('ringtrain.toy', 'ringtrain_toy')\n"


@pytest.mark.parametrize(
    "use",
    [
        "import ringtrain.toy as t, ringtrain_toy; print(t is ringtrain_toy)",
        "import ringtrain.toy.part.inner as i; from ringtrain_toy.part import inner; print(i is inner)",
        "from ringtrain.toy.part.inner import Kind; import pickle; print(pickle.loads(pickle.dumps(Kind)) is Kind)",
        "import ringtrain.toy.part.inner as i; print(i.__spec__.name == i.__name__ == 'ringtrain_toy.part.inner')",
        "import ringtrain.toy.part.inner as i, importlib; print(importlib.reload(i) is i and not print('again'))",
    ],
)
def test_a_module_is_one_under_both_names(plugin: Path, use: str) -> None:
    """Also a submodule of a submodule; it keeps its own name."""
    printed = output_of(plugin, PROVIDE + use)
    assert printed[0] == "inner runs"
    assert printed[-1] == "True"
    assert printed.count("inner runs") == (2 if "reload" in use else 1)


@pytest.mark.parametrize("alias", ["ringtrain.toy.part.inner", "ringtrain.again.inner"])
def test_a_module_under_its_second_name_is_a_program(plugin: Path, alias: str) -> None:
    """For `python -m`, also where the second name leads to a third."""
    again = "provide('ringtrain.again', 'ringtrain.toy.part')\n"
    run = f"import runpy; print(runpy.run_module({alias!r}, run_name='__main__')['Kind'].__module__)"
    assert output_of(plugin, PROVIDE + again + run)[1:] == [
        "inner runs",
        "__main__",
    ]


@pytest.mark.parametrize(
    ("use", "says"),
    [
        ("import ringtrain.toy.absent", "No module named 'ringtrain.toy.absent'"),
        ("import ringtrain.toy.part.broken", "No module named 'a_module_that_is_absent'"),
    ],
)
def test_what_is_not_there_is_named(plugin: Path, use: str, says: str) -> None:
    """As Python names it."""
    assert output_of(plugin, PROVIDE + use)[-1] == f"ModuleNotFoundError: {says}"


def test_a_plugin_that_is_not_installed_is_named(plugin: Path) -> None:
    """With the command that installs it."""
    assert output_of(plugin, "provide('ringtrain.other', 'ringtrain_other.deep')")[-1] == (
        "ModuleNotFoundError: ringtrain.other needs the plugin ringtrain-other, which is not installed: "
        "pip install 'ringtrain[other]', or from a clone pip install ./worker_image ./plugins/other"
    )


WITHOUT = """
import sys
sys.modules["ringtrain_diloco"] = None  # as if it were not installed
import ringtrain as rt
assert rt.optim.HostOptimizer and not hasattr(rt.optim, "Absent")
"""


@pytest.mark.parametrize("use", ["rt.optim.DiLoCo", "from ringtrain.optim import DiLoCo", "import ringtrain.diloco"])
def test_an_optimizer_whose_plugin_is_not_installed(use: str) -> None:
    """The core works without it; whoever uses the name reads what to install."""
    done = completed([sys.executable, "-c", f"{WITHOUT}\n{use}"])
    assert done.stderr.splitlines()[-1] == (
        "ModuleNotFoundError: ringtrain.diloco needs the plugin ringtrain-diloco, which is not installed: "
        "pip install 'ringtrain[diloco]', or from a clone pip install ./worker_image ./plugins/diloco"
    )


def test_a_name_is_loaded_on_use(plugin: Path) -> None:
    """Its module does not run before; other names are no attributes."""
    program = (
        "from ringtrain.shared.plugins import load_on_use; get = load_on_use('here', Kind='ringtrain_toy.part.inner'); "
        "print('before'); print(get('Kind').__name__); get('Other')"
    )
    assert output_of(plugin, program) == [
        "before",
        "inner runs",
        "Kind",
        "AttributeError: module 'here' has no attribute 'Other'",
    ]


def test_the_core_names_no_plugin_of_optimizers() -> None:
    """Neither library nor launcher has its name in an import, a condition, a message or a comment."""
    sources = [path for package in ("ringtrain", "ringtrain_job") for path in (CORE / package).rglob("*.py")]
    named = {path.relative_to(CORE).as_posix() for path in sources if "diloco" in path.read_text().lower()}
    assert named == {"ringtrain/diloco.py"}
