"""A run of a sample takes some cases of a long test; the same ones again when it is asked to."""

import os
import re
import sys
from collections import Counter
from pathlib import Path

import pytest

from support.commands import completed
from support.sampling import Sample

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
MPI = ROOT / "plugins/mpi/tests/test_elastic.py"
VALUES = list("abcdefgh")


def test_a_sample_is_the_same_for_its_seed_and_leaves_nothing_out_for_ever() -> None:
    """Whoever replays a number gets its cases; over the numbers every case has its turn."""
    samples = [Sample(str(seed)).of(VALUES, 3, "a test") for seed in range(100)]
    assert samples == [Sample(str(seed)).of(VALUES, 3, "a test") for seed in range(100)]
    assert {len(taken) for taken in samples} == {3}
    assert all(taken == sorted(taken) for taken in samples)
    assert {value for taken in samples for value in taken} == set(VALUES)


def test_without_a_seed_everything_is_taken() -> None:
    assert Sample("").of(VALUES, 3, "a test") == VALUES
    assert Sample("1").of(VALUES, 8, "a test") == VALUES


@pytest.mark.sampled(one_in=2)
def test_a_run_takes_the_sample_that_it_says() -> None:
    """With a number it takes one library of several; without one, all of them."""
    printed = _collected("--sample=7")
    assert "sample 7 of the long tests" in printed
    assert len(re.findall(r"test_mpirun_is_run_anew\w*\[\w+\]", printed)) == 1
    assert len(re.findall(r"test_mpirun_is_run_anew\w*\[\w+\]", _collected())) > 1
    assert re.search(r"sample \d+ of the long tests", _collected("--sample=any"))


@pytest.mark.sampled(one_in=2)
def test_a_run_that_names_no_tests_is_the_fast_one() -> None:
    """`pytest`, which `make fast` runs: nothing that is slow, and no folder of processes."""
    printed = _run_pytest("--collect-only", "-q")
    assert "tests/unit/operator/plan/" in printed
    assert "tests/frameworks/" not in printed
    assert "test_sampling" not in printed


@pytest.mark.sampled(one_in=2)
def test_the_processes_of_a_run_take_the_same_sample(tmp_path: Path) -> None:
    """A number that is drawn is drawn once: processes that collect different tests run none."""
    test = tmp_path / "test_cases.py"
    test.write_text(
        "import pytest\n\n\n@pytest.mark.sampled(1)\n@pytest.mark.parametrize('case', range(100))\n"
        "def test_case(case: int) -> None:\n    pass\n"
    )
    assert "1 passed" in _run(test, "-n", "2", "--sample=any")


def test_each_value_of_a_parameter_has_cases_of_its_own(tmp_path: Path) -> None:
    """So that a run leaves no check out, and takes each of them in some of the worlds."""
    test = tmp_path / "test_cases.py"
    test.write_text(
        "import pytest\n\n\n@pytest.mark.sampled(2, of='size', each='check')\n"
        "@pytest.mark.parametrize('check', range(20))\n@pytest.mark.parametrize('size', range(4))\n"
        "def test_case(check: int, size: int) -> None:\n    print('case', check, size)\n"
    )
    taken = re.findall(r"case (\d+) (\d+)", _run(test, "-s", "--sample=7"))
    assert Counter(check for check, _ in taken) == {str(check): 2 for check in range(20)}
    assert len(Counter(size for _, size in taken)) == 4


@pytest.mark.sampled(one_in=2)
def test_a_case_runs_on_one_implementation_of_a_seam_and_a_long_test_in_some_runs(tmp_path: Path) -> None:
    """Over the runs each case has its turn on each of them."""
    test = tmp_path / "test_cases.py"
    test.write_text(
        "import pytest\n\n\n@pytest.mark.parametrize('transport', ['shm', 'grpc'])\n"
        "@pytest.mark.parametrize('case', range(20))\ndef test_case(case: int, transport: str) -> None:\n"
        "    print('case', case, transport)\n\n\n@pytest.mark.sampled(one_in=3)\ndef test_long() -> None:\n"
        "    print('ran long')\n"
    )
    runs = [_run(test, "-s", f"--sample={seed}") for seed in range(4)]
    taken = [re.findall(r"case (\d+) (\w+)", printed) for printed in runs]
    assert [Counter(case for case, _ in run) for run in taken] == [Counter(map(str, range(20)))] * 4
    assert {transport for run in taken for _, transport in run} == {"shm", "grpc"}
    assert 0 < sum("ran long" in printed for printed in runs) < 4


def test_a_thin_run_takes_half_of_the_marked_tests_and_every_case_of_a_seam(tmp_path: Path) -> None:
    """Of a hundred that one run in two takes, some 25 in place of 50; of those with a count half of the tests."""
    lines = ["import pytest", "@pytest.mark.parametrize('transport', ['shm', 'grpc'])"]
    lines += ["@pytest.mark.parametrize('case', range(20))", "def test_case(case, transport): print('seam')"]
    for number in range(100):
        lines += ["@pytest.mark.sampled(one_in=2)", f"def test_long_{number}(): print('long')"]
        lines += ["@pytest.mark.sampled(1)", "@pytest.mark.parametrize('case', range(3))"]
        lines += [f"def test_cases_{number}(case): print('counted')"]
    test = tmp_path / "test_cases.py"
    test.write_text("\n".join(lines))
    printed = [_run(test, "-s", "--sample=7", f"--thin={thin}") for thin in (1, 2)]
    plain, thin = (Counter(re.findall("seam|long|counted", text)) for text in printed)
    assert (plain["seam"], thin["seam"], plain["counted"]) == (20, 20, 100)
    assert 35 < plain["long"] < 65
    assert 12 < thin["long"] < 38
    assert 35 < thin["counted"] < 65


@pytest.mark.sampled(one_in=2)
def test_what_fast_leaves_out_is_what_comes_after_it() -> None:
    """Together they are all tests of the folder, each once."""
    folder = str(ROOT / "tests/unit/runtime/cli")

    def collected(*options: str) -> set[str]:
        printed = _run_pytest("--collect-only", "-q", *options, folder)
        return {line for line in printed.splitlines() if "::" in line}

    after, both = collected("--after-fast"), collected()
    assert 0 < len(after) < len(both)
    slow = collected("-m", "slow and not kueue")
    assert after == slow


def _run(test: Path, *options: str) -> str:
    done = completed(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "conftest", *options, str(test)],
        cwd=test if test.is_dir() else test.parent,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(map(str, (ROOT / "tests", ROOT)))},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def _collected(*options: str) -> str:
    return _run_pytest("--collect-only", "-q", *options, str(MPI))


def _run_pytest(*options: str) -> str:
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *options]
    done = completed(command, cwd=ROOT)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout
