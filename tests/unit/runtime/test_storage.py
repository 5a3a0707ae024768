"""Every kind of store behaves alike: objects are written, read, listed, removed, and said not to be there."""

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from support.commands import completed
from support.deadlines import patient
from support.memory_group import MemoryGroup, run_threads
from support.objectstore import BUCKET, Server, environment

from ringtrain.checkpoint import ShardedCheckpoints
from ringtrain.errors import ConfigurationError, ObjectMissing, StorageError
from ringtrain.shared.buckets import azure_settings, google_settings, s3_settings
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
    """Objects are written whole and in parts, and overwritten; names are relative to the URI."""
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
    with pytest.raises(ObjectMissing, match="a/three does not exist"):
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


def test_a_forked_process_is_told_what_to_do(s3: Server) -> None:
    """The threads of the store's library do not follow a fork: an error in place of a call that never ends."""
    program = (
        "import os\nfrom ringtrain.shared.storage import ObjectStore\n"
        f"store = ObjectStore('s3://{BUCKET}/forked', 5.0)\nstore.write('a', b'b')\n"
        "child = os.fork()\n"
        "try:\n    print(store.read('a'), flush=True)\nexcept Exception as error:\n    print(error, flush=True)\n"
        "if child == 0:\n    os._exit(0)\nos.waitpid(child, 0)\n"
    )
    done = completed([sys.executable, "-c", program], env=os.environ | environment(s3.url), timeout=patient(60))
    assert done.stderr == ""
    assert sorted(done.stdout.splitlines())[0] == "b'b'"
    assert "start the process by the method 'spawn'" in done.stdout


AWS_FILES = {
    "config": "[default]\nregion = eu-west-1\n[profile lab]\nregion = eu-north-1\nendpoint_url = http://lab:9000\n"
    "[profile role]\nrole_arn = arn:aws:iam::1:role/a\n",
    "credentials": "[default]\naws_access_key_id = a\naws_secret_access_key = b\n"
    "[lab]\naws_access_key_id = c\naws_secret_access_key = d\naws_session_token = e\n",
}


@pytest.mark.parametrize(
    ("env", "expected"),
    [
        ({}, {"region": "eu-west-1", "access_key_id": "a", "secret_access_key": "b"}),
        (
            {"AWS_PROFILE": "lab", "AWS_REGION": "us-east-2"},
            {"endpoint": "http://lab:9000", "access_key_id": "c", "secret_access_key": "d", "session_token": "e"},
        ),
        ({"AWS_ACCESS_KEY_ID": "f", "AWS_ENDPOINT_URL": "http://x"}, {"region": "eu-west-1"}),
        ({"AWS_WEB_IDENTITY_TOKEN_FILE": "/token", "AWS_DEFAULT_REGION": "us-east-2"}, {}),
        ({"AWS_PROFILE": "absent"}, {}),
    ],
)
def test_aws_profiles_are_read(tmp_path: Path, env: dict[str, str], expected: dict[str, str]) -> None:
    """Variables go before the files, as in AWS's own programs."""
    for name, text in AWS_FILES.items():
        (tmp_path / name).write_text(text)
    files = {
        "AWS_CONFIG_FILE": str(tmp_path / "config"),
        "AWS_SHARED_CREDENTIALS_FILE": str(tmp_path / "credentials"),
    }
    assert s3_settings({**files, **env}) == {"disable_bulk_delete": True, **expected}
    with pytest.raises(ConfigurationError, match="AWS profile 'role' has role_arn but no keys"):
        s3_settings({**files, "AWS_PROFILE": "role"})


@pytest.mark.parametrize(
    ("place", "told", "expected"),
    [
        ("runs", "", ("runs", {})),
        ("runs@acc.dfs.core.windows.net", "", ("runs", {"account_name": "acc"})),
        (
            "runs@acc.dfs.core.chinacloudapi.cn",
            "",
            ("runs", {"account_name": "acc", "endpoint": "https://acc.blob.core.chinacloudapi.cn"}),
        ),
        (
            "runs",
            "DefaultEndpointsProtocol=https;AccountName=acc;AccountKey=a2V5==;EndpointSuffix=core.windows.net",
            (
                "runs",
                {"account_name": "acc", "account_key": "a2V5==", "endpoint": "https://acc.blob.core.windows.net"},
            ),
        ),
        (
            "runs",
            "BlobEndpoint=https://acc.example/;SharedAccessSignature=sv=1&sig=2",
            ("runs", {"endpoint": "https://acc.example", "sas_key": "sv=1&sig=2"}),
        ),
    ],
)
def test_azures_accounts_are_found(place: str, told: str, expected: tuple[str, dict[str, str]]) -> None:
    """In the URI, or in the connection string of Azure's own programs."""
    assert azure_settings(place, {"AZURE_STORAGE_CONNECTION_STRING": told}) == expected


def test_an_emulator_of_google_is_found() -> None:
    assert google_settings({"STORAGE_EMULATOR_HOST": "here:80"})["base_url"] == "http://here:80"
    assert google_settings({}) == {}


# A thread of obstore that has handed over its answer, and is back in Python only after the program's last line.
LAST_ANSWER = """
import asyncio, threading, time
from obstore.store import MemoryStore
from ringtrain.shared.buckets import CloudBucket

class SlowLoop(asyncio.SelectorEventLoop):
    def _write_to_self(self):
        super()._write_to_self()
        if threading.current_thread() is not threading.main_thread():
            time.sleep(1)

asyncio.new_event_loop = SlowLoop
CloudBucket(MemoryStore()).write("name", b"data", 10.0)
"""


def test_a_program_ends_well_right_after_its_last_answer() -> None:
    """The interpreter waits for obstore's thread; else the thread's end aborts the process, with exit code 134."""
    done = completed([sys.executable, "-c", LAST_ANSWER])
    assert (done.returncode, done.stderr) == (0, "")
