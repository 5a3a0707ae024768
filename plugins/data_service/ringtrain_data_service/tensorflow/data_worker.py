"""Data worker that runs a worker of TensorFlow's data service, and on some pods also a dispatcher."""

import json
import logging
import signal
import threading
import uuid
from collections.abc import Mapping
from contextlib import ExitStack
from typing import Final

from ringtrain.errors import ConfigurationError
from ringtrain.shared import contract
from ringtrain.shared.address import host_port, own_address
from ringtrain.shared.data_members import DataMember
from ringtrain.shared.processes import signal_handler
from ringtrain_data_service.config import DataWorkerConfig
from ringtrain_data_service.server import announce_data_worker
from ringtrain_data_service.tensorflow.servers import TfDataServerProcesses

log = logging.getLogger("ringtrain.data")
_LOOK_S: Final = 0.1
# Ports of data workers in one host's network differ by their index; this is the number of ports of each kind.
_PORTS: Final = contract.PORT_DATA_TF_WORKER_BASE - contract.PORT_DATA_DISPATCHER_BASE


def main(environment: Mapping[str, str]) -> int:
    """Run a data worker with the settings in `environment`; return the exit code. Raises ConfigurationError if a
    setting is invalid."""
    return run_tensorflow_data_worker(DataWorkerConfig.from_env(environment))


def run_tensorflow_data_worker(config: DataWorkerConfig) -> int:
    """Run TensorFlow's servers until SIGTERM or SIGINT; return the exit code.

    The first `config.dispatchers` data workers run a dispatcher each, and data worker i belongs to dispatcher i modulo
    their number, at the address that the launcher reports. Raises ConfigurationError without a launcher, and DataError
    for servers that cannot run.
    """
    if not config.launcher_address:
        raise ConfigurationError(
            f"{contract.ENV_LAUNCHER_ADDRESS} is not set, but data workers with {contract.ENV_DATA_KIND}=tensorflow "
            "find each other by the job's launcher; without a launcher, use ringtrain.tensorflow.data.compute_worker"
        )
    asked = threading.Event()
    with ExitStack() as stack:
        stack.enter_context(signal_handler(lambda *_: asked.set(), signal.SIGTERM, signal.SIGINT))
        servers = TfDataServerProcesses(int(config.timeout_s), forked=True)  # before any thread is started
        stack.callback(servers.close)
        _TfDataWorker(config, servers).run(asked, stack)
    return 0


class _TfDataWorker:
    """Servers of one data worker of kind `tensorflow`. `_dispatchers`: all dispatchers' addresses from the launcher;
    empty until every dispatcher has registered."""

    def __init__(self, config: DataWorkerConfig, servers: TfDataServerProcesses) -> None:
        self._config = config
        self._servers = servers
        self._host = config.pod_ip or own_address(config.launcher_address)
        self._instance = uuid.uuid4().hex
        self._dispatchers: tuple[str, ...] = ()
        self._own: tuple[str, ...] = ()
        self._port = servers.port(self._fixed(contract.PORT_DATA_TF_WORKER_BASE))

    def run(self, asked: threading.Event, stack: ExitStack) -> None:
        config = self._config
        if config.index < config.dispatchers:
            port = self._servers.port(self._fixed(contract.PORT_DATA_DISPATCHER_BASE))
            self._own = (self._servers.dispatcher(self._host, port),)
            log.info("dispatcher %d listens at %s", config.index, self._own[0])
        announce_data_worker(config, self._member, stack, self._learn)
        served = ""
        while not asked.wait(_LOOK_S):
            if self._dispatchers and (wanted := self._dispatchers[config.index % config.dispatchers]) != served:
                served = wanted
                address = self._servers.worker(self._host, served, self._port)
                log.info("data worker %d listens at %s for the dispatcher at %s", config.index, address, served)
            for event in self._servers.check():
                log.warning("%s", event)

    def _member(self) -> DataMember:
        config = self._config
        address = host_port(self._host, self._port)
        return DataMember(config.uid, config.index, self._instance, config.pod, address, config.kind, 1, self._own)

    def _learn(self, members: str) -> None:
        """Store the dispatchers' addresses from `members`, the launcher's answer. Called on the heartbeat thread."""
        if members:
            found = tuple(map(str, json.loads(members)["dispatchers"]))
            if len(found) == self._config.dispatchers:  # a dispatcher that is being replaced is missing for a while
                self._dispatchers = found

    def _fixed(self, base: int) -> int:
        """Return the port for this worker, from `base` upwards, or 0 (any) if data workers share a machine."""
        return base + self._config.index % _PORTS if self._config.port else 0
