"""Description of the workers for mpirun."""

from pathlib import Path

import pytest

from ringtrain_job.control.model import Registration
from ringtrain_mpi.implementation import MpiImplementation, MpirunVersion
from ringtrain_mpi.launcher.hosts import MpirunPaths, mpirun_environment, mpirun_host_names

PATHS = MpirunPaths(Path("/hosts"), Path("/rsh"), Path("/socket"))
MPIRUN = MpirunVersion("/mpirun", MpiImplementation.OPEN_MPI, "5.0.11")


@pytest.mark.parametrize(
    ("addresses", "own", "users", "priority"),
    [
        (("10.0.0.1", "10.0.0.2"), "10.0.0.9", {}, None),
        (("10.0.0.1", "10.0.0.1"), "10.0.0.9", {}, "0"),
        (("10.0.0.1", "10.0.0.2"), "10.0.0.2", {}, "0"),
        (("10.0.0.1", "10.0.0.1"), "10.0.0.9", {"OMPI_MCA_coll_han_priority": "35"}, "35"),
    ],
    ids=["own-addresses", "one-address", "the-launchers-address", "the-user-says"],
)
def test_collectives_by_nodes_are_for_workers_with_nodes_of_their_own(
    addresses: tuple[str, ...], own: str, users: dict[str, str], priority: str | None
) -> None:
    """Open MPI's, which count on all ranks agreeing who is on a node."""
    workers = [
        Registration("uid", 1, index, 1, "first", f"pod-{index}", "node", address, 7360, (7400,), (7500,), 7390)
        for index, address in enumerate(addresses)
    ]
    slots = dict.fromkeys(mpirun_host_names(workers, own), 2)
    assert mpirun_environment(MPIRUN, PATHS, slots, users).get("OMPI_MCA_coll_han_priority") == priority
