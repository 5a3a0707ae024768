"""Entry points by which plugins add transports and rendezvous."""

import pytest

from ringtrain._core.communicators.choose import COMMUNICATORS
from ringtrain._core.requirements import load_plugin
from ringtrain._core.world.discovery import RENDEZVOUS, Rendezvous, discover_world
from ringtrain.errors import ConfigurationError


@pytest.mark.parametrize("group", [COMMUNICATORS, RENDEZVOUS])
def test_a_plugin_that_is_not_installed_is_named(group: str) -> None:
    """With the command that installs it."""
    with pytest.raises(
        ConfigurationError, match=r"needs the plugin ringtrain-absent.*pip install 'ringtrain\[absent\]'"
    ):
        load_plugin(group, "absent", "this test")


def test_ranks_of_mpirun_need_the_plugin_only_without_addresses(monkeypatch: pytest.MonkeyPatch) -> None:
    """With addresses the core knows the world from mpirun's variables alone."""
    monkeypatch.setattr("ringtrain._core.requirements.entry_points_of", lambda _: [])
    env = {"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "2"}
    with_addresses = env | {"RINGTRAIN_RING_ADDRESSES": "a:1,a:2"}
    assert discover_world(Rendezvous(with_addresses, 1.0, lambda: None)).place.rank == 1
    with pytest.raises(ConfigurationError, match="mpirun alone has started needs the plugin ringtrain-mpi"):
        discover_world(Rendezvous(env, 1.0, lambda: None))
