"""The tests of collectives that run over every transport, run over MPI: under mpirun, by every rank.

What is the same for all transports: bits, order, mismatches, asynchronous forms, process sets, objects. `spmd` in
tests/ring has a rank take part in a test; a test for another number of ranks than mpirun has started is skipped.
"""

import os
import re
import sys
from pathlib import Path

import pytest
from mpi_libraries import MPICH, OPEN_MPI, OPEN_MPI_5, Library
from support.commands import completed

TESTS = Path(__file__).parents[3] / "tests"
FILES = ["ring/test_collectives.py", "ring/test_mismatch.py", "ring/test_reductions.py"]


@pytest.mark.parametrize(
    ("library", "ranks"),
    [
        pytest.param(OPEN_MPI, 4, id="openmpi-4-ranks"),
        pytest.param(OPEN_MPI_5, 3, id="openmpi5-3-ranks"),
        pytest.param(MPICH, 2, id="mpich-2-ranks"),
    ],
)
def test_over_mpi(library: Library, ranks: int, short_path: Path) -> None:
    """Every rank passes every test that is for so many ranks."""
    passes_over_mpi(library, ranks, short_path)


def test_over_an_mpi_that_counts_to_less(short_path: Path) -> None:
    """So are buffers of more elements than MPI's int counts, which would take gigabytes."""
    passes_over_mpi(OPEN_MPI, 3, short_path, RINGTRAIN_TEST_COUNT_MOST="7")


def passes_over_mpi(library: Library, ranks: int, short_path: Path, **env: str) -> None:
    variables = {**os.environ, **library.need_mpi4py(short_path), "RINGTRAIN_TEST_UNDER_MPIRUN": "1", **env}
    pytest_command = [sys.executable, "-m", "pytest", "-q", "-rs", "--color=no", "-p", "no:cacheprovider"]
    done = completed(
        [
            library.mpirun,
            *_options(library),
            "-np",
            str(ranks),
            *_TO_A_FILE_OF_ITS_OWN,
            *pytest_command,
            "-x",
            "-m",
            "under_mpirun",
            *FILES,
        ],
        cwd=TESTS,
        env=variables | _AS_ROOT | {"TMPDIR": str(short_path)},
    )
    told = [file.read_text() for file in short_path.glob("*.told")]
    assert done.returncode == 0, "\n".join(text[-4000:] for text in told) + done.stderr[-2000:]
    passed = [int(number) for text in told for number in re.findall(r"(\d+) passed", text)]
    assert len(passed) == ranks
    assert min(passed) == max(passed) > 5
    reasons = {reason for text in told for reason in re.findall(r"^SKIPPED .*?: (.*)", text, re.MULTILINE)}
    assert all(reason.endswith(f"mpirun has started {ranks}") for reason in reasons), reasons


# mpirun mixes what the ranks print, in the middle of a line too.
_TO_A_FILE_OF_ITS_OWN = ["sh", "-c", 'exec "$0" "$@" > "$TMPDIR/$$.told" 2>&1']

# Ranks that poll would keep a machine with fewer cores than ranks from making progress.
_AS_ROOT = {
    "OMPI_ALLOW_RUN_AS_ROOT": "1",
    "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    "PRTE_ALLOW_RUN_AS_ROOT": "1",
    "PRTE_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    "OMPI_MCA_mpi_yield_when_idle": "1",
}


def _options(library: Library) -> list[str]:
    return [] if library is MPICH else ["--oversubscribe", "--bind-to", "none"]
