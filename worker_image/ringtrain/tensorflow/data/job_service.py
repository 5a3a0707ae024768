"""The data workers of this process's own job, of kind `tensorflow`, as a training script uses a compute job."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from ringtrain.data.service.config import DataStreamSettings
from ringtrain.errors import ConfigurationError, DataError
from ringtrain.shared.data_members import read_members
from ringtrain.tensorflow.data.config import check_tf_data_training

_AGAIN_S: Final = 0.2


@dataclass(frozen=True)
class JobDataService:
    """In the place of a TfDataServiceConfig: `dataset.send_to_data_service(JobDataService(), rank, size)`.

    `dispatchers`: as in spec.dataWorkers, 1 or the number of ranks. `timeout`: seconds to wait for them.
    """

    dispatchers: int = 1
    timeout: int = 600
    dispatcher_side: str = "compute"

    def compute_client(self, verbose: int = 1) -> TfDataJobClient:
        """Who reads where the job's dispatchers are. Raises ConfigurationError in a job without data workers."""
        return TfDataJobClient(DataStreamSettings.from_env(os.environ).members_file, self.dispatchers)

    def check_training(self, rank: int, size: int | None) -> None:
        """Raise ConfigurationError unless training of `size` ranks can use these dispatchers."""
        check_tf_data_training(self.dispatchers, rank, size)


@dataclass(frozen=True)
class TfDataJobClient:
    """Reads the file of data workers that the agent keeps."""

    file: Path
    dispatchers: int

    def wait_for_dispatcher_registration(self, dispatcher_id: int, timeout: float) -> str:
        """The dispatcher's address, `grpc://host:port`. Raises DataError after `timeout` seconds."""
        found = self._await(lambda known: len(known) >= self.dispatchers, timeout)
        if len(found) != self.dispatchers:
            raise ConfigurationError(
                f"the job has {len(found)} dispatchers, and JobDataService was told {self.dispatchers}; give it "
                f"the number of spec.dataWorkers.dispatchers"
            )
        return f"grpc://{found[dispatcher_id]}"

    def wait_for_dispatcher_worker_registration(self, dispatcher_id: int, timeout: float) -> None:
        """Nothing to wait for: TensorFlow's clients read from workers as these come."""

    def _await(self, are_there: Callable[[list[str]], bool], timeout_s: float) -> list[str]:
        end = time.monotonic() + timeout_s
        while True:
            found = self._known()
            if are_there(found):
                return found
            if time.monotonic() >= end:
                raise DataError(
                    f"{len(found)} of {self.dispatchers} dispatchers are registered after {timeout_s:g} s, as "
                    f"{self.file} says; does spec.dataWorkers have kind: tensorflow, and do its pods run?"
                )
            time.sleep(_AGAIN_S)

    def _known(self) -> list[str]:
        read_members(self.file)  # says what is wrong with the file
        try:
            document: dict[str, Any] = json.loads(self.file.read_text())
        except FileNotFoundError:
            return []
        return [str(address) for address in document.get("dispatchers", ())]
