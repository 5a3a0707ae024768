"""Paths of an Intel MPI's libraries. Its images set them in an entrypoint that no pod runs."""

from pathlib import Path

import pytest

from ringtrain_mpi.intel import intel_daemon_variables


@pytest.mark.parametrize("network", ["opt/mpi/libfabric/lib", "libfabric/lib"], ids=["since-2021.11", "before"])
def test_ranks_find_its_libraries(network: str, tmp_path: Path) -> None:
    """The libraries, and the network's with its providers, come before the image's folders."""
    for folder in ("bin", "lib/release", f"{network}/prov"):
        (tmp_path / folder).mkdir(parents=True)
    command = f"{tmp_path}/bin//hydra_bstrap_proxy --upstream-host 10.0.0.1"
    assert intel_daemon_variables(command, {"LD_LIBRARY_PATH": "/usr/lib"}) == {
        "I_MPI_ROOT": str(tmp_path),
        "LD_LIBRARY_PATH": f"{tmp_path}/{network}:{tmp_path}/lib:{tmp_path}/lib/release:/usr/lib",
        "FI_PROVIDER_PATH": f"{tmp_path}/{network}/prov",
    }


def test_the_image_may_say_it_itself(tmp_path: Path) -> None:
    """Then nothing is added, and neither for a daemon of another MPI."""
    (tmp_path / "lib").mkdir()
    command = f"{tmp_path}/bin/hydra_bstrap_proxy"
    assert intel_daemon_variables(command, {"I_MPI_ROOT": "/opt/impi"}) == {}
    assert intel_daemon_variables(f"{tmp_path}/bin/hydra_pmi_proxy --rmk user", {}) == {}
