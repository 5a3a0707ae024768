"""Commands that mpirun wants to start on a worker, before they are sent to the worker's agent."""

import pytest

from ringtrain_mpi.launcher.hosts import mpirun_daemon_command

RSH, HOSTS = "/tmp/ringtrain-mpi-1/rsh", "/tmp/ringtrain-mpi-1/hosts"
OF_THE_LAUNCHER = f' -mca plm "rsh" -mca plm_rsh_agent "{RSH}" -mca orte_default_hostfile "{HOSTS}"'


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        pytest.param(f' orted{OF_THE_LAUNCHER} -mca pmix "^s1"', ' orted -mca pmix "^s1"', id="open-mpi-4"),
        pytest.param(' orted -mca plm_rsh_no_tree_spawn "1"', ' orted -mca plm_rsh_no_tree_spawn "1"', id="other"),
        pytest.param("hydra_pmi_proxy --rmk user", "hydra_pmi_proxy --rmk user", id="mpich"),
        pytest.param(
            "/opt/bin/hydra_bstrap_proxy --upstream-host job-launcher --upstream-port 1 --pgid 0",
            "/opt/bin/hydra_bstrap_proxy --upstream-host 10.0.0.1 --upstream-port 1 --pgid 0",
            id="intel",
        ),
    ],
)
def test_a_daemon_is_not_told_what_only_the_launcher_has(given: str, wanted: str) -> None:
    """Open MPI 4's daemon ends where its files are not, Intel's finds no host of that name; all else stays."""
    assert mpirun_daemon_command(given, "10.0.0.1") == wanted
