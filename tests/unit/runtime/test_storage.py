"""Every kind of store behaves alike: objects are written, read, listed, removed, and said not to be there."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from support.memory_group import MemoryGroup, run_threads
from support.objectstore import BUCKET, environment

from ringtrain.checkpoint import ShardedCheckpoints
from ringtrain.errors import ObjectMissing, StorageError
from ringtrain.shared.storage import ObjectStore

pytestmark = pytest.mark.slow

KINDS = ["file", "memory", "s3", "gcs", "azure"]
BUCKETS = KINDS[2:]


@pytest.fixture
def uri(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Of an empty place of the kind that the test's parameter names."""
    kind = request.param
    if kind in ("gcs", "azure"):
        return f"{request.getfixturevalue(f'{kind}_uri')}/{tmp_path.name}"
    if kind == "s3":
        for name, value in environment(request.getfixturevalue("s3").url).items():
            monkeypatch.setenv(name, value)
        return f"s3://{BUCKET}/{tmp_path.name}"
    return f"file://{tmp_path}" if kind == "file" else f"memory://{tmp_path.name}"


@pytest.fixture
def store(uri: str) -> Iterator[ObjectStore]:
    """The store there."""
    store = ObjectStore(uri, 30.0)
    yield store
    store.close()


@pytest.mark.parametrize("uri", KINDS, indirect=True)
def test_objects_are_written_read_listed_and_removed(store: ObjectStore) -> None:
    """Whole and in parts, over what was there; names are relative to the URI."""
    assert (store.names(), store.folders()) == ([], [])
    store.write("a/one", b"before")
    store.write("a/one", b"0123456789")
    store.write("a/b/two", b"x" * 300_000)
    assert store.read("a/one") == b"0123456789"
    assert store.read("a/one", 2, 5) == b"234"
    assert len(store.read("a/b/two")) == 300_000
    assert store.names() == ["a/b/two", "a/one"]
    assert store.below("a").names() == ["b/two", "one"]
    assert (store.folders(), store.folders("a")) == (["a"], ["b", "one"])
    with pytest.raises(ObjectMissing, match="a/three is not there"):
        store.read("a/three")
    store.remove("a/one")
    store.remove("a/one")
    assert store.names() == ["a/b/two"]


@pytest.mark.parametrize("uri", KINDS, indirect=True)
def test_ranks_save_and_go_on(uri: str) -> None:
    """A checkpoint of two ranks is read by one; of three saves two stay."""

    def save(group: MemoryGroup) -> None:
        with ShardedCheckpoints(uri, group=group, keep=2) as checkpoints:
            for step in range(3):
                checkpoints.save(step, {"a": np.arange(100_000)})

    def load(group: MemoryGroup) -> int:
        with ShardedCheckpoints(uri, group=group) as checkpoints:
            saved = checkpoints.latest()
            assert saved is not None
            assert np.array_equal(saved.state["a"], np.arange(100_000))
            return saved.step

    run_threads(save, 2)
    assert run_threads(load, 1) == [2]
    store = ObjectStore(uri)
    assert len([name for name in store.names() if name.endswith("manifest.json")]) == 2
    store.close()


@pytest.mark.parametrize("uri", BUCKETS, indirect=True)
def test_a_bucket_that_is_not_there_is_not_an_empty_one(uri: str) -> None:
    """Listed, read or written: a mistyped bucket never reads as a job that has saved nothing."""
    store = ObjectStore(f"{uri.partition('://')[0]}://mistyped/digits", 3.0)
    try:
        for call in (store.names, store.folders, lambda: store.write("a", b"b")):
            with pytest.raises(StorageError):
                call()
    finally:
        store.close()
