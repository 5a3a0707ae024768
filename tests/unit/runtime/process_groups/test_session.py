"""A process's world: what it leaves behind when it ends, or does not come about."""

import threading
from pathlib import Path

import pytest

import ringtrain as rt
from ringtrain._core.world.config import WorkerConfig
from ringtrain.errors import ConfigurationError

ALONE = WorkerConfig()


def test_a_process_set_ends_with_its_world() -> None:
    """In the next world it is not in use, so that it cannot be taken for another set of that world."""
    rt.init(config=ALONE)
    old = rt.add_process_set([0])
    assert old.process_set_id == 1
    rt.shutdown()
    assert old.process_set_id is None
    rt.init(config=ALONE)
    try:
        other = rt.add_process_set([0])
        assert (other.process_set_id, old.process_set_id) == (1, None)
        with pytest.raises(
            ConfigurationError, match=r"is not in use; pass this process set to init\(\) or add_process_set"
        ):
            rt.barrier(old)
        with pytest.raises(ConfigurationError, match="a set of these ranks exists already"):
            rt.add_process_set(old)
        assert rt.remove_process_set(other)
        assert rt.add_process_set(old).process_set_id == 2
        assert rt.remove_process_set(old)
        assert old.process_set_id is None
    finally:
        rt.shutdown()


def test_a_world_that_does_not_come_about_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A rank that fails while it joins lets go of its threads, and can try again."""
    before = threading.active_count()
    monkeypatch.setenv("RINGTRAIN_MPI_CHECK_IN", str(tmp_path / "absent" / "file"))
    monkeypatch.setenv("RINGTRAIN_TIMELINE", str(tmp_path / "timeline"))
    with pytest.raises(FileNotFoundError):
        rt.init()
    assert not rt.is_initialized()
    assert threading.active_count() == before
    rt.init(config=ALONE)
    rt.shutdown()
    assert (tmp_path / "timeline").read_text().count("process_name") == 1
