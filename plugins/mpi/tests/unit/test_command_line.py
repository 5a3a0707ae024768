"""Our mpirun command line, made of the user's, and its description of the workers."""

from dataclasses import replace

import pytest

from ringtrain.errors import ConfigurationError
from ringtrain_job.control.model import CannotRun, Reason, Registration
from ringtrain_mpi.implementation import (
    MpiImplementation,
    MpirunVersion,
    identify_mpirun,
    mpi_library_of,
)
from ringtrain_mpi.launcher.command_line import MpirunLine
from ringtrain_mpi.launcher.hosts import mpirun_host_names, mpirun_hostfile

OPEN_MPI, MPICH, INTEL = MpiImplementation
WRAPPER = ["/bin/sh", "-c", 'exec "${RINGTRAIN_MPI_WRAPPER:?is set by the worker agent}" "$@"', "mpi-rank"]


def line(implementation: MpiImplementation, *options: str) -> MpirunLine:
    """Return the command line of a job of four ranks."""
    return MpirunLine(MpirunVersion("/usr/bin/mpirun", implementation, "4.1.4"), options, 4, "10.0.0.1")


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        pytest.param("python train.py -np 9", f"-np 4 {WRAPPER} python train.py -np 9", id="number-is-added"),
        pytest.param("-np 4 train", f"-np 4 {WRAPPER} train", id="number-is-given"),
        pytest.param("--n 4 -x A=1 train", f"--n 4 -x A=1 {WRAPPER} train", id="two-dashes"),
        pytest.param(
            "--forward-signals SIGUSR1 train", f"-np 4 --forward-signals SIGUSR1 {WRAPPER} train", id="signals"
        ),
        pytest.param("-npernode 2 train", f"-npernode 2 {WRAPPER} train", id="another-way-to-say-it"),
        pytest.param("--map-by=node -- -strange", f"-np 4 --map-by=node -- {WRAPPER} -strange", id="end-of-options"),
        pytest.param("-np 1 a : -np 3 b", f"-np 1 {WRAPPER} a : -np 3 {WRAPPER} b", id="two-programs"),
    ],
)
def test_a_command_line_of_open_mpi(arguments: str, expected: str) -> None:
    """-np is added unless the user sets it, and every program runs inside the wrapper."""
    words = line(OPEN_MPI).words(arguments.split())
    assert words[0] == "mpirun"
    assert " ".join(words[1:]).replace(" ".join(WRAPPER), str(WRAPPER)) == expected


def test_options_of_the_spec_come_first() -> None:
    """MPICH gets the launcher's address, and an option that leaves the workers' environment unchanged."""
    words = line(MPICH, "-genv", "A", "two words").words(["train"])
    assert words[:4] == ["/usr/bin/mpirun", "-localhost", "10.0.0.1", "-genvnone"]
    assert words[4:] == ["-np", "4", "-genv", "A", "two words", *WRAPPER, "train"]


def test_a_command_line_of_intel_mpi() -> None:
    """An option sets the slots of each host, unless the user does; the launcher's own variables are passed to the
    ranks, those of mpirun are not."""
    intel = replace(line(INTEL), hostfile="/hosts")
    variables = ["I_MPI_DEBUG", "I_MPI_HYDRA_BOOTSTRAP", "FI_PROVIDER", "I_MPI_ROOT", "PATH"]
    before = ["/usr/bin/mpirun", "-localhost", "10.0.0.1", "-genvnone"]
    assert intel.words(["train"])[:8] == [*before, "-machinefile", "/hosts", "-np", "4"]
    passed = ["-genvlist", "FI_PROVIDER,I_MPI_DEBUG"]
    given = ["-np", "4", "-ppn", "2", "train"]
    assert intel.words(given, variables=variables)[:9] == [*before[:3], *passed, *given[:4]]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        pytest.param("-np many train", "-np is 'many': expected a number of processes", id="not-a-number"),
        pytest.param("-np 4", "names no program to run", id="no-program"),
        pytest.param("--magic train", "-magic is not a known option of OpenMPI's mpirun", id="unknown-option"),
    ],
)
def test_a_command_line_that_cannot_be_read(arguments: str, says: str) -> None:
    with pytest.raises(ConfigurationError, match=says):
        line(OPEN_MPI).words(arguments.split())


@pytest.mark.parametrize("arguments", ["-np 3 train", "-np 2 a : -np 3 b"])
def test_another_world_than_declared(arguments: str) -> None:
    """Says both numbers, and its own reason in the job's status."""
    with pytest.raises(CannotRun, match=r"starts [35] ranks \(-np\), but the job declares 4") as raised:
        line(OPEN_MPI).words(arguments.split())
    assert raised.value.reason is Reason.SLOTS_MISMATCH


def worker(index: int, address: str) -> Registration:
    return Registration("uid", 1, index, 2, f"i{index}", f"w-{index}", "node", address, 7360, (), (), 0)


def test_workers_are_known_by_their_addresses() -> None:
    """No name has to resolve; workers on one address, or on the launcher's, get names that only our rsh knows."""
    workers = [worker(0, "10.0.0.2"), worker(1, "10.0.0.3"), worker(2, "10.0.0.3"), worker(3, "10.0.0.1")]
    names = mpirun_host_names(workers, "10.0.0.1")
    assert names == ["10.0.0.2", "ringtrain-worker-1", "ringtrain-worker-2", "ringtrain-worker-3"]
    hosts = dict.fromkeys(names[:2], 2)
    assert mpirun_hostfile(hosts, OPEN_MPI).splitlines()[0] == "10.0.0.2 slots=2"
    for hydra in (MPICH, INTEL):
        assert mpirun_hostfile(hosts, hydra).splitlines() == ["10.0.0.2:2", "ringtrain-worker-1:2"]


@pytest.mark.parametrize(
    ("answer", "found"),
    [
        pytest.param("mpirun (Open MPI) 4.1.4", (OPEN_MPI, "4.1.4"), id="openmpi-4"),
        pytest.param("mpirun.openmpi (OpenRTE) 4.1.4", (OPEN_MPI, "4.1.4"), id="debian"),
        pytest.param("mpirun (Open MPI) 5.0.11", (OPEN_MPI, "5.0.11"), id="openmpi-5"),
        pytest.param("HYDRA build details:\n    Version:                 4.0.2", (MPICH, "4.0.2"), id="mpich"),
        pytest.param(
            "Intel(R) MPI Library for Linux* OS, Version 2021.13 Build 20240515 (id: a)",
            (INTEL, "2021.13"),
            id="intel",
        ),
        pytest.param("usage: mpirun", None, id="unknown"),
    ],
)
def test_whose_mpirun_it_is(answer: str, found: tuple[MpiImplementation, str] | None) -> None:
    mpirun = identify_mpirun("/usr/bin/mpirun", answer)
    assert (mpirun and (mpirun.implementation, mpirun.version)) == found


@pytest.mark.parametrize(
    ("library", "whose"),
    [("libmpi.so.40", OPEN_MPI), ("libmpi.so.12", MPICH), ("libmpich.so.12", MPICH), ("libc.so.6", None)],
)
def test_whose_library_it_is(library: str, whose: MpiImplementation | None) -> None:
    assert mpi_library_of(library) is whose
