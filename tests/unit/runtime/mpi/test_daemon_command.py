"""What mpirun wants started on a worker, before the worker's agent is asked for it."""

import pytest

from ringtrain_job.launcher.mpi.hosts import daemon_command

RSH, HOSTS = "/tmp/ringtrain-mpi-1/rsh", "/tmp/ringtrain-mpi-1/hosts"
OF_THE_LAUNCHER = f' -mca plm "rsh" -mca plm_rsh_agent "{RSH}" -mca orte_default_hostfile "{HOSTS}"'


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        pytest.param(f' orted{OF_THE_LAUNCHER} -mca pmix "^s1"', ' orted -mca pmix "^s1"', id="open-mpi-4"),
        pytest.param(' orted -mca plm_rsh_no_tree_spawn "1"', ' orted -mca plm_rsh_no_tree_spawn "1"', id="other"),
        pytest.param("hydra_pmi_proxy --rmk user", "hydra_pmi_proxy --rmk user", id="mpich"),
    ],
)
def test_a_daemon_is_not_told_of_files_of_the_launcher(given: str, wanted: str) -> None:
    """Open MPI 4's daemon ends where they are not; everything else stays as it is."""
    assert daemon_command(given) == wanted
