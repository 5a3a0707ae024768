"""Functions with which a training script uses TensorFlow's data service, with Horovod's names.

Importing this module adds the method `send_to_data_service` to `tf.data.Dataset`, like Horovod's module.
`JobDataService` represents the data workers of this process's own job, of kind `tensorflow`, with the interface of a
compute job.
"""

from __future__ import annotations

import atexit
import json
import logging
import os
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import tensorflow as tf

from ringtrain import barrier, init, is_initialized
from ringtrain import rank as world_rank
from ringtrain import size as world_size
from ringtrain.adapter import current_world
from ringtrain.errors import ConfigurationError, DataError, counted
from ringtrain.shared import contract
from ringtrain.shared.address import host_port, is_loopback, reachable_address, split_address
from ringtrain.shared.data_members import read_members
from ringtrain_data_service.config import DataStreamSettings
from ringtrain_data_service.tensorflow.client import TfDataDirectoryClient
from ringtrain_data_service.tensorflow.config import TfDataServiceConfig, check_tf_data_training
from ringtrain_data_service.tensorflow.relay import TfDataRelay, WatchedTfDataJob
from ringtrain_data_service.tensorflow.servers import TfDataServer, TfDataServerProcesses, start_tf_data_server

__all__ = ["JobDataService", "TfDataServiceConfig", "compute_worker_fn", "send_to_data_service", "tf_data_service"]

log = logging.getLogger("ringtrain.data")
_POLL_S: Final = 0.2
_relays: dict[str, TfDataRelay] = {}  # of this process, by dispatcher
_shared: Counter[str] = Counter()  # datasets of this process, by the life of the ranks


@contextmanager
def tf_data_service(
    compute_config: TfDataServiceConfig | JobDataService, rank: int, size: int | None = None
) -> Iterator[str]:
    """Wait until this rank's dispatcher has all its workers, then yield its address, `grpc://host:port`.

    If a compute job does not answer for the config's `timeout`, the dataset ends with a TensorFlow InternalError that
    says so. With `dispatcher_side="training"` the dispatcher runs here until the context is left: on rank 0, or on
    every rank if each has its own. `size`: number of training ranks, by default the size of the initialized world.
    Raises ConfigurationError if the number of dispatchers does not fit the training, and DataError if they do not start
    in time.
    """
    if size is None and is_initialized():
        size = world_size()
    compute_config.check_training(rank, size)
    client = compute_config.compute_client()
    number = rank if compute_config.dispatchers > 1 else 0
    with ExitStack() as stack:
        if (
            compute_config.dispatcher_side == "training"
            and number == rank
            and isinstance(client, TfDataDirectoryClient)
        ):
            address = stack.enter_context(_own_dispatcher(compute_config.timeout))
            client.register_dispatcher(number, address)
            log.info("dispatcher %d listens at %s", number, address)
        address = client.wait_for_dispatcher_registration(number, compute_config.timeout)
        client.wait_for_dispatcher_worker_registration(number, compute_config.timeout)
        yield _relayed_dispatcher(address, client) if isinstance(client, TfDataDirectoryClient) else address


def _relayed_dispatcher(address: str, client: TfDataDirectoryClient) -> str:
    """Return the address of a relay in this process to the dispatcher at `address`. If the compute job is lost, the
    relay reports that to TensorFlow."""
    relay = _relays.get(address)
    if relay is None or relay.is_lost:
        where = ", ".join(f"{host}:{port}" for known in client.addresses.values() for host, port in known)
        job = WatchedTfDataJob(
            lambda within_s: client.state(within_s=within_s).over, f"the compute job at {where}", client.timeout_s
        )
        relay = _relays[address] = TfDataRelay(address.rpartition("://")[2], job)
        atexit.register(relay.close)
    return f"grpc://127.0.0.1:{relay.port}"


@contextmanager
def _own_dispatcher(timeout_s: int) -> Iterator[str]:
    """Run a dispatcher in this process while the context is open, on any free port; yield its address."""
    dispatcher = start_tf_data_server(TfDataServer("dispatcher", "", 0, timeout_s))
    port = int(dispatcher.target.rpartition(":")[2])
    try:
        yield f"grpc://{host_port(_tf_data_service_host(), port)}"
    finally:
        del dispatcher


def send_to_data_service(
    dataset: Any,
    compute_config: TfDataServiceConfig | JobDataService,
    rank: int,
    size: int | None = None,
    processing_mode: str = "distributed_epoch",
    reuse_dataset: bool = False,
    round_robin: bool = False,
    job_name: str | None = None,
) -> Any:
    """Return a dataset of the elements of `dataset`, computed by the service. Later operations run in this process.

    `reuse_dataset`: whether ranks share one iteration, instead of an iteration each; each element then goes to the
    first rank that requests it. `round_robin`: whether ranks get the shared elements in turn; in each round all ranks
    get elements from the same worker, and the dataset must be infinite. `job_name`: name of the shared iteration; by
    default the n-th such call in this world has the same name on every rank.

    Raises ConfigurationError for arguments that contradict each other, and the errors of `tf_data_service`.
    """
    if compute_config.dispatcher_side == "training":
        raise ConfigurationError(
            "send_to_data_service does not support dispatcher_side='training'. Train inside "
            "`with tf_data_service(config, rank) as address:`, and use "
            "dataset.apply(tf.data.experimental.service.distribute(processing_mode=…, "
            "service=address)) inside this block"
        )
    if round_robin:
        _check_round_robin(dataset, compute_config, size, reuse_dataset)
    shared = (job_name or _tf_data_shared_name()) if reuse_dataset else None
    with tf_data_service(compute_config, rank, size) as address:
        return dataset.apply(
            tf.data.experimental.service.distribute(
                processing_mode=processing_mode,
                service=address,
                job_name=shared,
                consumer_index=rank if round_robin else None,
                num_consumers=size if round_robin else None,
            )
        )


tf.data.Dataset.send_to_data_service = send_to_data_service


def _check_round_robin(
    dataset: Any, config: TfDataServiceConfig | JobDataService, size: int | None, reuse: bool
) -> None:
    if not reuse:
        raise ConfigurationError("round_robin=True needs reuse_dataset=True, but reuse_dataset is False")
    if size is None:
        raise ConfigurationError("round_robin=True needs size=, the number of ranks")
    if config.dispatchers > 1:
        raise ConfigurationError(
            "round_robin=True needs one dispatcher for all ranks, but the data service has "
            f"{config.dispatchers} dispatchers"
        )
    if (count := int(dataset.cardinality())) >= 0:
        raise ConfigurationError(
            f"round_robin=True needs an infinite dataset, but the dataset has {counted(count, 'element')}; add "
            ".repeat()"
        )


def _tf_data_shared_name() -> str:
    """Return a name for the next dataset, equal on all ranks and not used before, not even before a restart.

    A second dataset with the same name would get elements of the first dataset, and no elements after a restart of the
    training. The name contains attempt and generation, and the count begins again in each generation, because a rank
    that joins a world has not made the others' earlier datasets.
    """
    env = os.environ
    life = f"{env.get(contract.ENV_ATTEMPT, '1')}.{env.get(contract.ENV_FORMATION, '0')}"
    _shared[life] += 1
    return f"ringtrain-{life}-{_shared[life]}"


def compute_worker_fn(
    compute_config: TfDataServiceConfig, servers: TfDataServerProcesses | None = None, host: str | None = None
) -> None:
    """Run one worker of the compute job until the job ends, and on the first rank of each group also the group's
    dispatcher.

    Every rank of the compute job calls this; it returns when training calls `shutdown`. `servers`: servers to use, by
    default new servers. `host`: address for training. A server that dies is restarted at the same address. Raises
    DataError if servers cannot run, or the directory no longer answers.
    """
    init()
    rank = world_rank()
    number = rank // compute_config.workers_per_dispatcher
    client = compute_config.compute_client()
    host = host or _tf_data_service_host()
    with closing(servers or TfDataServerProcesses(compute_config.timeout, forked=False)) as own:
        if compute_config.dispatcher_side == "compute" and rank % compute_config.workers_per_dispatcher == 0:
            address = own.dispatcher(host)
            client.register_dispatcher(number, f"grpc://{address}")
            log.info("dispatcher %d listens at %s", number, address)
        _serve_tf_data(own, client, number, host, compute_config.timeout)
        barrier()  # rank 0 answers until all ranks know that the job is over


def _serve_tf_data(
    servers: TfDataServerProcesses, client: TfDataDirectoryClient, number: int, host: str, timeout_s: int
) -> None:
    """Run a worker of dispatcher `number` until the compute job is over, and restart it if the dispatcher's address
    changes."""
    served = None
    client.wait_for_dispatcher_registration(number, timeout_s)
    while True:
        state = client.state(number)
        if state.over:
            return
        if state.address is not None and state.address != served:
            served = state.address
            address = servers.worker(host, served.rpartition("://")[2])
            client.register_worker_for_dispatcher(number, world_rank())
            log.info("worker %d of dispatcher %d (%s) listens at %s", world_rank(), number, served, address)
        for event in servers.check():
            log.warning("%s", event)
        time.sleep(_POLL_S)


def _tf_data_service_host() -> str:
    """Return this process's address for clients on other hosts.

    This is the pod's address if it is known, otherwise the address that other ranks use. If these are loopback
    addresses, it is an address of this host's network.
    """
    hosts = [os.environ.get(contract.ENV_POD_IP, "")]
    if is_initialized():
        own = current_world().config
        hosts.append(split_address(own.addresses[own.place.rank])[0])
    for host in hosts:
        if host and not is_loopback(host_port(host, 1)):
            return host
    return reachable_address()


_AGAIN_S: Final = 0.2


@dataclass(frozen=True)
class JobDataService:
    """Data service of this job's data workers: `dataset.send_to_data_service(JobDataService(), rank, size)`.

    `dispatchers`: number of dispatchers in spec.dataWorkers, 1 or the number of ranks. `timeout`: seconds to wait for
    the dispatchers.
    """

    dispatchers: int = 1
    timeout: int = 600
    dispatcher_side: str = "compute"

    def compute_client(self, verbose: int = 1) -> TfDataJobClient:
        """Return a client that finds the job's dispatchers. Raises ConfigurationError in a job without data workers."""
        return TfDataJobClient(DataStreamSettings.from_env(os.environ).members_file, self.dispatchers)

    def check_training(self, rank: int, size: int | None) -> None:
        """Raise ConfigurationError unless training of `size` ranks can use these dispatchers."""
        check_tf_data_training(self.dispatchers, rank, size)


@dataclass(frozen=True)
class TfDataJobClient:
    """Client that finds dispatchers in `file`, the agent's list of data workers."""

    file: Path
    dispatchers: int

    def wait_for_dispatcher_registration(self, dispatcher_id: int, timeout: float) -> str:
        """Return the dispatcher's address, `grpc://host:port`. Raises DataError after `timeout` seconds."""
        found = self._await(lambda known: len(known) >= self.dispatchers, timeout)
        if len(found) != self.dispatchers:
            raise ConfigurationError(
                f"the job has {counted(len(found), 'dispatcher')}, but JobDataService has "
                f"dispatchers={self.dispatchers}; pass the value of spec.dataWorkers.dispatchers"
            )
        return f"grpc://{found[dispatcher_id]}"

    def wait_for_dispatcher_worker_registration(self, dispatcher_id: int, timeout: float) -> None:
        """Do nothing, because TensorFlow's clients accept workers that register later."""

    def _await(self, are_there: Callable[[list[str]], bool], timeout_s: float) -> list[str]:
        end = time.monotonic() + timeout_s
        while True:
            found = self._known()
            if are_there(found):
                return found
            if time.monotonic() >= end:
                raise DataError(
                    f"{self.file} lists {len(found)} of {counted(self.dispatchers, 'dispatcher')} after "
                    f"{timeout_s:g} s; check that spec.dataWorkers has kind: tensorflow, and that its pods run"
                )
            time.sleep(_AGAIN_S)

    def _known(self) -> list[str]:
        read_members(self.file)  # raises if the file is invalid
        try:
            document: dict[str, Any] = json.loads(self.file.read_text())
        except FileNotFoundError:
            return []
        return [str(address) for address in document.get("dispatchers", ())]
