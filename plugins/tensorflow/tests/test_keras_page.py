"""The program in docs/keras.md runs unchanged, and continues after its end."""

import os
import re
import sys
from pathlib import Path

import pytest
from frameworks.harness import ENV
from frameworks.warm_python import shared_python
from support.commands import completed
from support.deadlines import patient

PAGE = (Path(__file__).parents[3] / "docs/keras.md").read_text()
HOROVODRUN = Path(sys.executable).with_name("horovodrun")
PROGRAM, COMPILE = re.findall(r"^```python\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
DEADLINE_S = patient(300.0)


@pytest.fixture(scope="module")
def python() -> str:
    """A `python` that has imported Keras."""
    return shared_python("keras")


def run(folder: Path, python: str) -> list[tuple[str, str, str]]:
    """Rank, first epoch and sum of weights of each rank."""
    done = completed(
        [HOROVODRUN, "-np", "2", python, "train.py"], cwd=folder, env={**os.environ, **ENV}, timeout=DEADLINE_S
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return sorted(re.findall(r"rank (\d): from epoch (\d), ([\d.]+)", done.stdout))


def trained(folder: Path, program: str, python: str) -> str:
    """Train anew: the sum of weights, of which both ranks have the same."""
    (folder / "train.py").write_text(program)
    (_, first, one), (_, also_first, other) = run(folder, python)
    assert (first, also_first, one) == ("0", "0", other)
    return one


def test_the_program_of_the_page(tmp_path: Path, python: str) -> None:
    """Both ranks end with the same weights; with more epochs the program continues at the fifth."""
    one = trained(tmp_path, PROGRAM, python)
    (tmp_path / "train.py").write_text(
        PROGRAM.replace('epochs, batch = Path("model.keras"), 4', 'epochs, batch = Path("model.keras"), 6')
    )
    (_, first, again), (_, also_first, other) = run(tmp_path, python)
    assert (first, also_first, again) == ("4", "4", other)
    assert again != one


def test_its_host_optimizer(tmp_path: Path, python: str) -> None:
    """The page's other line of `compile` trains as well."""
    program, count = re.subn(r"(?<=    )model\.compile\(.*\n", COMPILE, PROGRAM)
    assert count == 1
    assert trained(tmp_path, program, python)
