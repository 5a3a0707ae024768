"""Modules of Horovod that need no framework: what scripts import from them, and that it works."""

import os
import threading
from collections.abc import Iterator
from importlib import import_module

import pytest

from ringtrain.common.util import env
from ringtrain.data import AsyncDataLoaderMixin, BaseDataLoader

NAMES = {
    "common.process_sets": "ProcessSet global_process_set add_process_set remove_process_set",
    "common.exceptions": "HorovodInternalError HostsUpdatedInterrupt HorovodVersionMismatchError",
    "common.util": "mpi_built gloo_built nccl_built env split_list extension_available",
    "data": "BaseDataLoader AsyncDataLoaderMixin",
}


@pytest.mark.parametrize("module", NAMES)
def test_names_of_horovods_modules(module: str) -> None:
    """Below `ringtrain` as below `horovod`."""
    ours = import_module(f"ringtrain.{module}")
    assert [name for name in NAMES[module].split() if not hasattr(ours, name)] == []


def test_an_environment_for_a_while() -> None:
    """Variables are set and taken away, and afterwards as before."""
    os.environ["RT_TEST_A"] = "1"
    with env(RT_TEST_A=None, RT_TEST_B=2):
        assert ("RT_TEST_A" in os.environ, os.environ["RT_TEST_B"]) == (False, "2")
    assert (os.environ.pop("RT_TEST_A"), "RT_TEST_B" in os.environ) == ("1", False)


class Squares(BaseDataLoader):
    def __init__(self, count: int, fails_at: int = -1) -> None:
        self.count, self.fails_at, self.read = count, fails_at, 0

    def __len__(self) -> int:
        return self.count

    def _iterate(self) -> Iterator[int]:
        for number in range(self.count):
            if number == self.fails_at:
                raise OSError("no disk")
            self.read += 1
            yield number

    def _process_batch(self, batch: int) -> int:
        return batch * batch


class Ahead(AsyncDataLoaderMixin, Squares):
    """Reads ahead."""


@pytest.mark.parametrize("size", [0, 1, 64])
def test_a_loader_that_reads_ahead_gives_what_the_other_gives(size: int) -> None:
    """In every epoch."""
    loader = Ahead(10, async_loader_queue_size=size)
    for _ in range(2):
        assert list(loader) == list(Squares(10)) == [number**2 for number in range(10)]


def test_a_loader_that_is_left_in_the_middle_ends_its_thread() -> None:
    """With places for two batches it has read no more than four, and close() leaves no thread."""
    loader = Ahead(100, async_loader_queue_size=2)
    assert next(iter(loader)) == 0
    loader.close_async_loader()
    assert loader.read <= 4
    assert "ringtrain-loader" not in {thread.name for thread in threading.enumerate()}


def test_an_error_of_reading_is_raised_where_the_batch_is_taken() -> None:
    """After the batches before it."""
    loader = iter(Ahead(10, fails_at=2, async_loader_queue_size=64))
    assert [next(loader), next(loader)] == [0, 1]
    with pytest.raises(OSError, match="no disk"):
        next(loader)
