"""Rendezvous on one host of ranks that only mpirun has started."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from ringtrain.adapter.communicators import MpiRank
from ringtrain.errors import ConfigurationError
from ringtrain_mpi.ranks.rendezvous import rendezvous_by_mpi


def test_ranks_that_meet_again(tmp_path: Path) -> None:
    """Nobody takes an address of the meeting before for one of this, and who gave up is not met."""
    env = {"PMIX_SERVER_TMPDIR": str(tmp_path), "PMIX_NAMESPACE": "job"}

    def meet_as(rank: int, timeout_s: float = 60.0) -> tuple[str, ...]:
        return rendezvous_by_mpi(MpiRank("Open MPI", rank, 2, rank, 2), env, timeout_s)

    with ThreadPoolExecutor(2) as ranks:
        first = list(ranks.map(meet_as, range(2)))
        with pytest.raises(ConfigurationError, match=r"rank\(s\) 1 of 2 did not call ringtrain.init"):
            meet_as(0, timeout_s=0.0)
        second = list(ranks.map(meet_as, range(2)))
    assert first[0] == first[1]
    assert second[0] == second[1]
