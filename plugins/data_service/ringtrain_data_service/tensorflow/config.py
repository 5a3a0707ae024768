"""Config file of a compute job: written by its rank 0, and read by all training ranks to find the dispatchers."""

from __future__ import annotations

import binascii
import json
import logging
import os
import stat
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from ringtrain.errors import ConfigurationError, DataError, counted, quoted
from ringtrain_data_service.tensorflow.client import OtherKey, TfDataDirectoryClient

log = logging.getLogger("ringtrain.data")
SIDES: Final = ("compute", "training")
_AGAIN_S: Final = 0.2
# Seconds to check whether the compute job of an existing config file is alive.
_PROBE_S: Final = 3.0
_OTHERS: Final = stat.S_IRWXG | stat.S_IRWXO


@dataclass(frozen=True)
class TfDataServiceConfig:
    """Settings and addresses of a compute job, as its config file contains them.

    `dispatcher_side`: `compute` or `training`. `addresses`: (host, port) of the compute job's rank 0 by interface.
    `key`: shared secret with which both jobs authenticate. `key_file`: file with the key, if it is not in the config
    itself. `timeout`: seconds for dispatchers and workers to start. Raises ConfigurationError for invalid values.
    """

    dispatchers: int
    workers_per_dispatcher: int
    dispatcher_side: str
    addresses: Mapping[str, Sequence[tuple[str, int]]]
    key: bytes = field(repr=False)
    timeout: int = 60
    key_file: str | None = None

    def __post_init__(self) -> None:
        for name in ("dispatchers", "workers_per_dispatcher", "timeout"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise ConfigurationError(f"{name} is {quoted(value)}; expected an integer of at least 1")
        if self.dispatcher_side not in SIDES:
            raise ConfigurationError(
                f"dispatcher_side is {quoted(self.dispatcher_side)}; expected one of {', '.join(SIDES)}"
            )
        if not isinstance(self.key, bytes) or not self.key:
            raise ConfigurationError("key is empty or not bytes; expected the compute job's key")

    def compute_client(self, verbose: int = 1) -> TfDataDirectoryClient:
        """Return a client of the compute job's directory on its rank 0. It can also end the job:
        `config.compute_client().shutdown()`.

        `verbose` has no effect.
        """
        return TfDataDirectoryClient(self.addresses, self.key, float(self.timeout))

    def check_training(self, rank: int, size: int | None) -> None:
        """Raise ConfigurationError unless training of `size` ranks can use these dispatchers. `size` is None if it
        is unknown."""
        check_tf_data_training(self.dispatchers, rank, size)

    def to_dict(self) -> dict[str, Any]:
        """Return the config as a dict for JSON, with the key as hexadecimal digits or the name of the key file."""
        plain = {
            "dispatchers": self.dispatchers,
            "workers_per_dispatcher": self.workers_per_dispatcher,
            "dispatcher_side": self.dispatcher_side,
            "addresses": {name: [list(address) for address in known] for name, known in self.addresses.items()},
            "timeout": self.timeout,
        }
        return plain | ({"key": self.key.hex()} if self.key_file is None else {"key_file": self.key_file})

    @staticmethod
    def from_dict(config: Mapping[str, Any]) -> TfDataServiceConfig:
        """Create a config from the result of `to_dict`. Raises ConfigurationError with the name of an invalid field."""
        try:
            addresses = {
                str(name): [(str(host), int(port)) for host, port in known]
                for name, known in config["addresses"].items()
            }
        except (KeyError, AttributeError, TypeError, ValueError) as error:
            raise ConfigurationError(
                f"addresses is {quoted(config.get('addresses'))}; expected (host, port) pairs by interface"
            ) from error
        key_file = config.get("key_file")
        return TfDataServiceConfig(
            dispatchers=config.get("dispatchers", 0),
            workers_per_dispatcher=config.get("workers_per_dispatcher", 0),
            dispatcher_side=config.get("dispatcher_side", ""),
            addresses=addresses,
            key=_hex_tf_data_key(config.get("key")) if key_file is None else read_tf_data_key(Path(key_file)),
            timeout=config.get("timeout", 60),
            key_file=key_file,
        )

    def write(self, filename: str | Path) -> None:
        """Write the config to `filename` atomically, readable only by its owner (mode 0600).

        Raises ConfigurationError if that fails.
        """
        path = Path(filename)
        try:
            handle, part = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
            with os.fdopen(handle, "w") as file:
                json.dump(self.to_dict(), file)
                file.flush()
                os.fsync(file.fileno())
            os.replace(part, path)
        except OSError as error:
            raise ConfigurationError(
                f"the config can't be written to {path}: {error.strerror}; choose a path that both "
                "the compute job and training can reach, in an existing directory"
            ) from error

    def remove(self, filename: str | Path) -> None:
        """Remove `filename`, unless another compute job has overwritten it."""
        with suppress(OSError, ConfigurationError):
            if TfDataServiceConfig._load(Path(filename)) == self:
                os.unlink(filename)

    @staticmethod
    def read(
        filename: str | Path, wait_for_file_creation: bool = False, timeout_s: float = 600.0
    ) -> TfDataServiceConfig:
        """Read and check the config in `filename`.

        `wait_for_file_creation`: whether to wait up to `timeout_s` for a file whose compute job answers; the file of an
        earlier compute job is ignored. Raises DataError if none appears, and ConfigurationError for an invalid file.
        """
        path = Path(filename)
        if not wait_for_file_creation:
            if not path.exists():
                raise DataError(
                    f"there is no config file {path}: start compute_worker with this path first, or pass "
                    "wait_for_file_creation=True"
                )
            return TfDataServiceConfig._load(path)
        end = time.monotonic() + timeout_s
        found = f"there is no file {path}"
        while True:
            if path.exists():
                config = TfDataServiceConfig._load(path)
                try:
                    config.compute_client().state(within_s=min(_PROBE_S, timeout_s))
                except (DataError, OtherKey) as error:
                    found = f"{path} is what an earlier compute job has left: {error}"
                else:
                    return config
            if time.monotonic() >= end:
                raise DataError(
                    f"no compute job has written its config within {timeout_s:g} s: {found}. Start it with this "
                    f"path: ringtrain run -np 4 python -m ringtrain.tensorflow.data.compute_worker {path}"
                )
            time.sleep(_AGAIN_S)

    @staticmethod
    def _load(path: Path) -> TfDataServiceConfig:
        try:
            text = path.read_text()
            content = json.loads(text)
            if not isinstance(content, dict):
                raise ConfigurationError(f"expected an object, got {quoted(content)}")
            config = TfDataServiceConfig.from_dict(content)
        except OSError as error:
            raise ConfigurationError(f"{path} can't be read: {error.strerror}") from error
        except ValueError as error:
            raise ConfigurationError(f"{path} is not the config of a compute job: {error}") from error
        _warn_of_other_tf_data(path if config.key_file is None else Path(config.key_file))
        return config


def check_tf_data_training(dispatchers: int, rank: int, size: int | None) -> None:
    """Raise ConfigurationError unless `dispatchers` is 1 or the number of training ranks, and `rank` is valid. `size`:
    number of ranks, None if unknown."""
    if isinstance(rank, bool) or not isinstance(rank, int) or not 0 <= rank < (size or rank + 1):
        raise ConfigurationError(f"rank is {quoted(rank)}; expected a training rank, from 0 to size - 1")
    if dispatchers > 1 and (rank >= dispatchers or size not in (None, dispatchers)):
        ranks = f"{counted(rank + 1, 'rank')} or more" if size is None else counted(size, "rank")
        raise ConfigurationError(
            f"the data service has {dispatchers} dispatchers, but training has {ranks}; each rank needs a separate "
            "dispatcher, or all ranks share one dispatcher. Start compute_worker with --dispatchers "
            f"{rank + 1 if size is None else size} or without --dispatchers, or training with {dispatchers} ranks"
        )


def read_tf_data_key(path: Path) -> bytes:
    """Return the key in the file `path`. Raises ConfigurationError if the file is empty or cannot be read."""
    try:
        key = path.read_bytes().strip()
    except OSError as error:
        raise ConfigurationError(f"the key file {path} can't be read: {error.strerror}") from error
    if not key:
        raise ConfigurationError(f"the key file {path} is empty")
    return key


def _hex_tf_data_key(key: Any) -> bytes:
    try:
        return binascii.unhexlify(key)
    except (TypeError, ValueError) as error:
        raise ConfigurationError("the key in the config is invalid; expected hexadecimal digits") from error


def _warn_of_other_tf_data(path: Path) -> None:
    with suppress(OSError):
        mode = path.stat().st_mode
        if mode & _OTHERS:
            log.warning(
                "%s contains the data service's key, but other users can access the file (mode %o) and then end the "
                "compute job. Run chmod 600 on the file, or store the key elsewhere with compute_worker's --key-file",
                path,
                stat.S_IMODE(mode),
            )
