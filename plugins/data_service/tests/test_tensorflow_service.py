"""Scenarios of ringtrain.tensorflow.data: a compute job and a training job, whose ranks are forked here.

Elements are numbers of a range, so that the elements which a rank read show lost and repeated ones.
"""

import itertools
import logging.handlers
import os
import signal
import stat
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import psutil
import pytest
import tensorflow as tf
from support.gang import until
from support.ranks import Ranks, ask, ranks_ended, run_ranks, started_ranks, tell

RUN_IN = {"framework": "tensorflow"}

ENV = {"OMP_NUM_THREADS": "1", "TF_NUM_INTRAOP_THREADS": "1", "TF_CPP_MIN_LOG_LEVEL": "3"}
FORK = get_context("fork")
COUNT = 60


def serves(config: str, *words: str) -> None:
    """A rank of the compute job."""
    from ringtrain_data_service.tensorflow.compute_worker import main

    main.main([config, "--host", "127.0.0.1", *words], standalone_mode=False)


@contextmanager
def compute_job(ranks: int, *words: str) -> Iterator[tuple[str, Ranks]]:
    """The path of its config, and its ranks, which have ended well after the block."""
    with tempfile.TemporaryDirectory() as folder:
        config = f"{folder}/compute.json"
        with started_ranks(serves, ranks, config, *words, env=ENV, context=FORK) as compute:
            yield config, compute
            assert [o.error for o in compute.outcomes()] == [None] * ranks
        assert os.listdir(folder) == [], "the config goes with its compute job"


def training(function: Callable[..., Any], ranks: int, *args: Any) -> list[Any]:
    """Return the result of `function(config, *args)` of each rank of training."""
    return run_ranks(function, ranks, *args, env=ENV, context=FORK)


def all_of(read: Iterable[list[int]]) -> list[int]:
    """Return the elements that all ranks have read."""
    return sorted(itertools.chain.from_iterable(read))


def begun(config: str) -> Any:
    """Return the config in a rank of training, when the compute job has written it."""
    import ringtrain.tensorflow as hvd
    from ringtrain_data_service.tensorflow.compute_service import TfDataServiceConfig

    hvd.init()
    return TfDataServiceConfig.read(config, wait_for_file_creation=True, timeout_s=60)


def ended(config: Any) -> None:
    """Order the compute job to end, in a rank of training, when all ranks have read."""
    import ringtrain.tensorflow as hvd

    hvd.barrier()
    if hvd.rank() == 0:
        config.compute_client(verbose=2).shutdown()


def reads(path: str, reuse: bool) -> list[int]:
    """Read a finite dataset through the method that datasets have."""
    import ringtrain.tensorflow as hvd

    config = begun(path)
    dataset = tf.data.Dataset.range(COUNT).send_to_data_service(config, hvd.rank(), hvd.size(), reuse_dataset=reuse)
    read = [int(number) for number in dataset]
    ended(config)
    return read


def reads_from_its_own(path: str, reuse: bool) -> list[int]:
    """Read through a dispatcher on training's side."""
    import ringtrain.tensorflow as hvd
    from ringtrain_data_service.tensorflow.compute_service import tf_data_service

    config = begun(path)
    with tf_data_service(config, hvd.rank()) as address:
        dataset = tf.data.Dataset.range(COUNT).apply(
            tf.data.experimental.service.distribute(
                processing_mode="distributed_epoch", service=address, job_name="job" if reuse else None
            )
        )
        read = [int(number) for number in dataset]
        hvd.barrier()
    ended(config)
    return read


def test_each_rank_reads_everything_once() -> None:
    """One dispatcher, nothing shared: an iteration each."""
    with compute_job(2) as (config, _):
        assert [sorted(read) for read in training(reads, 2, config, False)] == [list(range(COUNT))] * 2


def test_ranks_share_what_is_reused() -> None:
    """`reuse_dataset`: each element on one rank."""
    with compute_job(2) as (config, _):
        assert all_of(training(reads, 2, config, True)) == list(range(COUNT))


def test_each_rank_has_its_dispatcher() -> None:
    """There are as many dispatchers as ranks of training, with separate workers: each rank reads all elements once."""
    with compute_job(4, "--dispatchers", "2") as (config, _):
        assert [sorted(read) for read in training(reads, 2, config, False)] == [list(range(COUNT))] * 2


def test_a_dispatcher_on_the_training_side() -> None:
    """Rank 0 has it, and both ranks read from it."""
    with compute_job(2, "--dispatcher-side", "training") as (config, _):
        assert all_of(training(reads_from_its_own, 2, config, True)) == list(range(COUNT))


def test_dispatchers_on_the_training_side() -> None:
    """Each rank has its own."""
    with compute_job(2, "--dispatchers", "2", "--dispatcher-side", "training") as (config, _):
        both = training(reads_from_its_own, 2, config, False)
        assert [sorted(read) for read in both] == [list(range(COUNT))] * 2


def reads_in_turn(path: str) -> list[int]:
    import ringtrain.tensorflow as hvd

    config = begun(path)
    dataset = (
        tf.data.Dataset.range(COUNT)
        .repeat()
        .send_to_data_service(config, hvd.rank(), hvd.size(), reuse_dataset=True, round_robin=True)
    )
    read = [int(number) for number in dataset.take(10)]
    ended(config)
    return read


def test_ranks_read_in_turn() -> None:
    """`round_robin`: with one worker, whose order is the dataset's, rank 0 has the even elements."""
    with compute_job(1) as (config, _):
        assert training(reads_in_turn, 2, config) == [list(range(0, 20, 2)), list(range(1, 20, 2))]


def reads_two(path: str) -> list[list[int]]:
    import ringtrain.tensorflow as hvd

    config = begun(path)
    place = (config, hvd.rank(), hvd.size())
    train = tf.data.Dataset.range(10).send_to_data_service(*place, reuse_dataset=True)
    test = tf.data.Dataset.range(10, 20).send_to_data_service(*place, reuse_dataset=True)
    read = [[int(number) for number in dataset] for dataset in (train, test)]
    ended(config)
    return read


def test_two_shared_datasets_are_not_mixed_up() -> None:
    """Ranks share two datasets, for training and evaluation, which TensorFlow distinguishes only by name."""
    with compute_job(1) as (config, _):
        trained, tested = zip(*training(reads_two, 2, config), strict=True)
        assert all_of(trained) == list(range(10))
        assert all_of(tested) == list(range(10, 20))


def reads_in_the_next_world(path: str) -> list[int]:
    """Read a shared dataset as a rank that had one in the world before (0), or as a newcomer."""
    import ringtrain.tensorflow as hvd

    config = begun(path)
    dataset = tf.data.Dataset.range(COUNT)
    os.environ["RINGTRAIN_FORMATION"] = "1"
    if hvd.rank() == 0:
        dataset.send_to_data_service(config, 0, 2, reuse_dataset=True)
    os.environ["RINGTRAIN_FORMATION"] = "2"
    read = [int(n) for n in dataset.send_to_data_service(config, hvd.rank(), 2, reuse_dataset=True)]
    ended(config)
    return read


def test_a_newcomer_shares_what_is_reused() -> None:
    """Survivors have shared datasets before the next world: each element is on one rank."""
    with compute_job(2) as (config, _):
        assert all_of(training(reads_in_the_next_world, 2, config)) == list(range(COUNT))


def reads_slowly(path: str, count: int, pause_after: int) -> list[int]:
    config = begun(path)
    dataset = tf.data.Dataset.range(count).send_to_data_service(config, 0, 1)
    read = []
    for number in dataset:
        read.append(int(number))
        if len(read) == pause_after:
            tell("reading")
            ask()
    ended(config)
    return read


def servers_of(rank: int) -> list[psutil.Process]:
    """The server processes of a rank of the compute job, the eldest (its dispatcher, if it has one) first."""
    (template,) = psutil.Process(rank).children()
    return sorted(template.children(), key=lambda process: process.pid)


def lost_and_read(which: int) -> tuple[int, list[int]]:
    """Kill a server of a compute job of one rank while training reads: the dataset's size, and what it read."""
    count = 3000  # more than what is on its way to training
    with compute_job(1) as (config, compute):
        with started_ranks(reads_slowly, 1, config, count, 50, env=ENV, context=FORK) as ranks:
            ranks.message(0)
            before = servers_of(compute.pid(0))
            before[which].kill()
            until("a successor", lambda: set(servers_of(compute.pid(0))) - set(before))
            ranks.answer(0)
            (outcome,) = ranks.outcomes()
        assert outcome.ok, outcome.traceback
    return count, outcome.value


def test_a_worker_that_dies_is_replaced() -> None:
    """Reading goes on to the end of the dataset; no element comes twice (TensorFlow: at most once)."""
    count, read = lost_and_read(1)
    assert max(Counter(read).values()) == 1
    assert set(read) <= set(range(count))
    assert len(read) > count // 2


def test_a_dispatcher_that_dies_is_replaced() -> None:
    """The new dispatcher reads its predecessor's journal: no element is lost or repeated."""
    count, read = lost_and_read(0)
    assert sorted(read) == list(range(count))


def reads_of_two_jobs(path: str) -> tuple[str, list[str], list[int]]:
    """Read from a compute job that dies, and then from the next one, which writes the same file."""
    said = logging.handlers.BufferingHandler(1000)
    logging.getLogger("ringtrain.data").addHandler(said)
    config = begun(path)
    try:
        for number in tf.data.Dataset.range(10**7).send_to_data_service(config, 0, 1):
            if number == 50:
                tell("reading")
                ask()
    except tf.errors.InternalError as error:
        message = str(error)
    lines = [record.getMessage() for record in said.buffer]
    tell("heard")
    ask()
    config = begun(path)
    read = [int(number) for number in tf.data.Dataset.range(COUNT).send_to_data_service(config, 0, 1)]
    ended(config)
    return message, lines, read


def test_a_compute_job_that_is_lost() -> None:
    """The whole compute job is killed: a line reports that training waits, the dataset ends with an error that names
    the job after the config's timeout, and training reads from the next job."""
    with tempfile.TemporaryDirectory() as folder:
        config = f"{folder}/compute.json"
        with (
            started_ranks(serves, 1, config, "--timeout", "6", env=ENV, context=FORK) as compute,
            started_ranks(reads_of_two_jobs, 1, config, env=ENV, context=FORK) as ranks,
        ):
            ranks.message(0)
            rank = psutil.Process(compute.pid(0))
            for one in [rank, *rank.children(recursive=True)]:
                one.kill()
            ranks.answer(0)
            ranks.message(0)
            with started_ranks(serves, 1, config, env=ENV, context=FORK) as again:
                ranks.answer(0)
                (outcome,) = ranks.outcomes()
                assert outcome.ok, outcome.traceback
                assert again.outcomes()[0].ok
    message, lines, read = outcome.value
    assert "DataError: the compute job at " in message
    assert "Start compute_worker again" in message
    assert any("training waits for at most 6 s" in line for line in lines)
    assert sorted(read) == list(range(COUNT))


def ends_early(path: str) -> None:
    """Training that dies while it reads."""
    import ringtrain.tensorflow as hvd
    from ringtrain_data_service.tensorflow.compute_service import tf_data_service

    config = begun(path)
    with tf_data_service(config, hvd.rank()) as address:
        distribute = tf.data.experimental.service.distribute("distributed_epoch", address)
        next(iter(tf.data.Dataset.range(COUNT).apply(distribute)))
        os.kill(os.getpid(), signal.SIGKILL)


def test_workers_follow_a_training_that_begins_again() -> None:
    """The new training has another dispatcher, at another address."""
    with compute_job(1, "--dispatcher-side", "training") as (config, _):
        assert ranks_ended(ends_early, 1, config, env=ENV, context=FORK)[0].exit_code == -signal.SIGKILL
        assert sorted(training(reads_from_its_own, 1, config, False)[0]) == list(range(COUNT))


# What is wrong is said


def test_ranks_that_the_dispatchers_do_not_divide() -> None:
    """Every rank of the compute job ends with it, and no config is written."""
    with tempfile.TemporaryDirectory() as folder:
        ends = ranks_ended(serves, 3, f"{folder}/compute.json", "--dispatchers", "2", env=ENV, context=FORK)
        assert os.listdir(folder) == []
    for end in ends:
        assert end.error is not None
        assert (
            "3 ranks can't be divided equally among 2 dispatchers; start a multiple of the dispatchers as ranks (-np 4)"
            in end.error
        )


def alone(function: Callable[..., None], *args: Any) -> None:
    run_ranks(function, 1, *args, env=ENV, context=FORK)


def made_config(folder: Path, **changes: Any) -> Any:
    from ringtrain_data_service.tensorflow.compute_service import TfDataServiceConfig

    plain = {"dispatchers": 2, "workers_per_dispatcher": 1, "dispatcher_side": "compute", "timeout": 1}
    return TfDataServiceConfig(**{**plain, "addresses": {"lo": [("127.0.0.1", 1)]}, "key": b"secret", **changes})


def arguments_that_contradict_each_other() -> None:
    from ringtrain.errors import ConfigurationError
    from ringtrain_data_service.tensorflow.compute_service import send_to_data_service, tf_data_service

    dataset = tf.data.Dataset.range(3)
    two, one = made_config(Path()), made_config(Path(), dispatchers=1)
    wrong: list[tuple[str, Callable[[], object]]] = [
        ("2 dispatchers, but training has 3 ranks", lambda: send_to_data_service(dataset, two, 0, 3)),
        ("2 dispatchers, but training has 1 rank", lambda: send_to_data_service(dataset, two, 0, 1)),
        ("training has 3 ranks or more", lambda: tf_data_service(two, 2).__enter__()),
        ("rank is 2; expected a training rank", lambda: send_to_data_service(dataset, one, 2, 2)),
        (
            "with tf_data_service",
            lambda: send_to_data_service(dataset, made_config(Path(), dispatcher_side="training"), 0, 2),
        ),
        (
            "round_robin=True needs reuse_dataset=True",
            lambda: send_to_data_service(dataset, one, 0, 2, round_robin=True),
        ),
        (
            "needs size",
            lambda: send_to_data_service(dataset, one, 0, reuse_dataset=True, round_robin=True),
        ),
        (
            "the dataset has 3 elements",
            lambda: send_to_data_service(dataset, one, 0, 2, reuse_dataset=True, round_robin=True),
        ),
        (
            "needs one dispatcher for all",
            lambda: send_to_data_service(dataset, two, 0, 2, reuse_dataset=True, round_robin=True),
        ),
        ("dispatchers is 0", lambda: made_config(Path(), dispatchers=0)),
        (
            "dispatcher_side is 'cpu'; expected one of",
            lambda: made_config(Path(), dispatcher_side="cpu"),
        ),
    ]
    for message, call in wrong:
        with pytest.raises(ConfigurationError, match=message):
            call()


def test_arguments_that_contradict_each_other() -> None:
    """Errors are raised before any wait."""
    alone(arguments_that_contradict_each_other)


def files_of_a_config() -> None:
    from ringtrain.errors import ConfigurationError, DataError
    from ringtrain_data_service.tensorflow.compute_service import TfDataServiceConfig
    from ringtrain_data_service.tensorflow.directory import TfDataDirectory

    with tempfile.TemporaryDirectory() as name, closing(TfDataDirectory(1, 1, b"secret")) as directory:
        folder, path = Path(name), Path(name) / "compute.json"
        with pytest.raises(DataError, match="there is no config file"):
            TfDataServiceConfig.read(path)
        with pytest.raises(DataError, match=r"no compute job has written its config within 0\.3 s: there is no file"):
            TfDataServiceConfig.read(path, wait_for_file_creation=True, timeout_s=0.3)

        config = made_config(folder, dispatchers=1, addresses=directory.addresses())
        config.write(path)
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        assert TfDataServiceConfig.read(str(path), wait_for_file_creation=True) == config
        assert TfDataServiceConfig.from_dict(config.to_dict()) == config

        earlier = made_config(folder, dispatchers=1)  # nobody listens on its port
        earlier.write(path)
        with pytest.raises(DataError, match="is what an earlier compute job has left"):
            TfDataServiceConfig.read(path, wait_for_file_creation=True, timeout_s=0.3)
        config.remove(path)
        assert path.exists(), "the file is another compute job's by now"

        key_file = folder / "key"
        key_file.write_text("secret\n")
        by_reference = replace(config, key_file=str(key_file))
        by_reference.write(path)
        assert config.key.hex() not in path.read_text()
        assert TfDataServiceConfig.read(path).key == b"secret"

        for text, message in (
            ("{", "is not the config of a compute job"),
            ("[]", "expected an object"),
            ("{}", "addresses is None"),
            (path.read_text().replace('"timeout": 1', '"timeout": "x"'), "timeout is 'x'"),
        ):
            path.write_text(text)
            with pytest.raises(ConfigurationError, match=message):
                TfDataServiceConfig.read(path)


def test_files_of_a_config() -> None:
    """Only the owner can read the file; a file without a reachable job, and a file that is not a config, are errors."""
    alone(files_of_a_config)


def wrong_keys() -> None:
    from ringtrain.errors import ConfigurationError, DataError
    from ringtrain_data_service.tensorflow.client import TfDataDirectoryClient
    from ringtrain_data_service.tensorflow.directory import TfDataDirectory

    with closing(TfDataDirectory(2, 1, b"right")) as directory:
        stranger = TfDataDirectoryClient(directory.addresses(), b"wrong", 1.0)
        with pytest.raises(ConfigurationError, match="has another key than this config"):
            stranger.shutdown()
        client = TfDataDirectoryClient(directory.addresses(), b"right", 1.0)
        assert not client.state().over
        client.register_dispatcher(0, "grpc://10.0.0.1:5")
        client.register_worker_for_dispatcher(0, 0)
        client.wait_for_dispatcher_worker_registration(0, 5)
        with pytest.raises(DataError, match=r"dispatcher 1 does not have all its workers after 0\.3 s"):
            client.wait_for_dispatcher_worker_registration(1, 0.3)
        with pytest.raises(
            ConfigurationError, match="dispatcher 2 does not exist; this data service has 2 dispatchers"
        ):
            client.state(2)
    began = time.monotonic()
    with pytest.raises(DataError, match=r"no compute job answers at .* within 1 s"):
        client.state()
    assert time.monotonic() - began >= 1.0


def test_wrong_keys() -> None:
    """Clients with a wrong key change nothing; each dispatcher has its own workers; missing ones are reported."""
    alone(wrong_keys)


def strangers() -> None:
    import socket

    from ringtrain_data_service.tensorflow.client import TfDataDirectoryClient
    from ringtrain_data_service.tensorflow.directory import TfDataDirectory

    with closing(TfDataDirectory(1, 1, b"right")) as directory:
        client = TfDataDirectoryClient(directory.addresses(), b"right", 30.0)
        (known,) = directory.addresses()["lo"]
        silent = [socket.create_connection(known) for _ in range(200)]
        for sock in silent[:3]:
            sock.sendall(b'{"request": 7, "nonce": [], "proof": null}\n')
        silent[3].sendall(b"\xff\n")
        client.register_worker_for_dispatcher(0, 0)
        assert client.state().workers == (0,)
        for sock in silent:
            sock.close()


def test_strangers() -> None:
    """Any number of silent or invalid connections delay no client."""
    alone(strangers)


def test_one_path_for_two_compute_jobs() -> None:
    """The second one is refused while the first one lives."""
    with compute_job(1) as (config, _):
        until("a config", lambda: os.path.exists(config))
        (second,) = ranks_ended(serves, 1, config, env=ENV, context=FORK)
        assert second.error is not None
        assert "belongs to a running compute job" in second.error
        training(reads, 1, config, False)
