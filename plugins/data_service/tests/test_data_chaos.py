"""Data workers, loader processes and ranks struck at each state of a lease: the ledger of indices stays whole."""

import os
from collections.abc import Iterator

import pytest
from support.data_chaos import ACTS, STATES, WORKERS, Chaos, strikes_of
from support.data_worker import DataWorkers


@pytest.fixture(scope="module")
def chaos(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Chaos]:
    """A pool of data workers for all seeds."""
    directory = tmp_path_factory.mktemp("chaos")
    watched = directory / "watched"
    watched.mkdir()
    before = dict(os.environ)
    os.environ["WATCHED"] = str(watched)
    workers = DataWorkers(directory, WORKERS, slots=2)
    os.environ.update(workers.environment)
    yield Chaos(workers, watched)
    workers.close()
    os.environ.clear()
    os.environ.update(before)


@pytest.mark.parametrize("seed", range(30))
def test_each_sample_is_committed_once(chaos: Chaos, seed: int) -> None:
    """Samples are committed in the order of the shard, whichever processes are killed."""
    chaos.run(seed)
    assert chaos.fired


def test_every_state_is_struck_in_every_way() -> None:
    """Over the seeds of this file, but for what only more of them reach."""
    seen = {(strike.state, strike.act) for seed in range(36) for strike in strikes_of(seed)}
    assert seen == {(state, act) for state in STATES for act in ACTS}
