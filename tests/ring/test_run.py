"""`ringtrain.run` gives the results of rank processes in rank order, or the error of the first that failed."""

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ringtrain as rt
from ring import functions
from ringtrain.errors import ConfigurationError, RankFailed


def test_results_come_in_rank_order() -> None:
    """Ranks are a world of their own, on this machine."""
    results = rt.run(functions.summed, (2.0,), {"offset": 1.0}, np=3)
    assert [(r["rank"], r["size"], r["local"]) for r in results] == [(rank, 3, rank) for rank in range(3)]
    for result in results:
        assert np.array_equal(result["total"], np.full(3, 13.0))


@pytest.mark.parametrize("rank", [0, 1])
def test_a_failed_rank_is_named_with_its_traceback(rank: int) -> None:
    """The others only lost a peer, and are not the ones that are named."""
    with pytest.raises(RankFailed) as caught:
        rt.run(functions.fails_on, (rank,), num_proc=2)
    assert caught.value.rank == rank
    assert f"run: rank {rank} failed with KeyError: 'no such layer'" in str(caught.value)
    assert 'raise KeyError("no such layer")' in str(caught.value)


def test_a_killed_rank_is_named() -> None:
    """It can tell nothing, and its exit code is told."""
    with pytest.raises(RankFailed, match="rank 1 ended with exit code -9") as caught:
        rt.run(functions.killed_on, (1,), np=2)
    assert caught.value.rank == 1


def test_ranks_that_do_not_end_are_ended(tmp_path: Path) -> None:
    """No process is left after the time that the caller allows."""
    pids = tmp_path / "pids"
    with pytest.raises(RankFailed, match=r"ranks \[0, 1\] had not ended after 5 s"):
        rt.run(functions.hangs, (str(pids),), np=2, timeout_s=5.0)
    for pid in pids.read_text().split() if pids.exists() else []:
        with pytest.raises(ProcessLookupError):
            os.kill(int(pid), 0)


def test_a_result_that_cannot_be_pickled_is_an_error_of_its_rank() -> None:
    """The error says what to return instead."""
    with pytest.raises(RankFailed, match=r"rank 0 failed with .* run: the result can't be pickled"):
        rt.run(functions.gives_what_cannot_be_pickled)


def test_variables_of_ranks() -> None:
    """They are on top of those of this process."""
    assert rt.run(functions.variable, ("RINGTRAIN_TIMEOUT",), np=1, env={"RINGTRAIN_TIMEOUT": "7"}) == ["7"]


@pytest.mark.parametrize("np_", [0, -1, True, 2.0, "2", 100_000])
def test_a_number_of_ranks_that_makes_no_sense(np_: Any) -> None:
    """The error names the value and the bounds."""
    with pytest.raises(ConfigurationError, match="expected a number of ranks from 1 to 1024"):
        rt.run(functions.summed, (1.0,), np=np_)
