"""Store through which a process group of torch.distributed finds its ranks; it uses messages of the Ringtrain world.

Every rank has all keys. Keys that a rank sets are sent to all others in rounds of a collective. Therefore no port is
opened, only ranks with the job's token take part, and a lost rank is detected.
"""

import threading
import time
from datetime import timedelta
from typing import Any

import torch.distributed

from ringtrain.adapter.devices import Communicator, exchange_values

_PAUSE_S = 0.001


class TorchRoundsStore(torch.distributed.Store):
    """Key-value store that ranks fill while a group is created. The library calls `get` and `set`."""

    def __init__(self) -> None:
        super().__init__()
        self._changed = threading.Condition()
        self._values: dict[str, bytes] = {}
        self._new: dict[str, str] = {}
        self._failure = ""

    def set(self, key: str, value: Any) -> None:
        data = value.encode() if isinstance(value, str) else bytes(value)
        with self._changed:
            self._new[key] = data.hex()
            self._take({key: data.hex()})

    def get(self, key: str) -> bytes:
        self.wait([key])
        return self._values[key]

    def check(self, keys: list[str]) -> bool:
        return all(key in self._values for key in keys)

    def wait(self, keys: list[str], timeout: timedelta | None = None) -> None:
        """Wait until all of `keys` are set. Raises RuntimeError if a rank could not create the group."""
        with self._changed:
            self._changed.wait_for(lambda: self._failure or self.check(keys))
            if self._failure:
                raise RuntimeError(self._failure)

    def clone(self) -> "TorchRoundsStore":
        return self

    def exchange(
        self, communicator: Communicator, make: "threading.Thread", outcome: list[str], timeout_s: float
    ) -> str:
        """Exchange keys between ranks until `make` has ended on all. Return the reason of a failure, or "". Collective.

        `outcome`: result of `make`: an empty text, or the error. `timeout_s`: seconds until the exchange fails.
        """
        deadline = time.monotonic() + timeout_s
        try:
            while (reason := self._round(communicator, outcome, deadline, timeout_s)) is None:
                make.join(_PAUSE_S)
        except BaseException as error:
            self._fail(f"{type(error).__name__}: {error}")
            raise
        return reason

    def _round(self, communicator: Communicator, outcome: list[str], deadline: float, timeout_s: float) -> str | None:
        """Exchange new keys once. Return None if a rank is not done, otherwise the result of `exchange`."""
        with self._changed:
            new, self._new = self._new, {}
        late = [f"the library has made none within {timeout_s:g} s"] if time.monotonic() > deadline else []
        said = {"new": new, "outcome": outcome[:1] or late}
        told = exchange_values(communicator, said, "device group")
        reasons = [
            f"rank {r}: {t['outcome'][0]}" for r, t in zip(communicator.ranks, told, strict=True) if any(t["outcome"])
        ]
        with self._changed:
            for one in told:
                self._take(one["new"])
        if reasons:
            self._fail(reasons[0])
            return reasons[0]
        return "" if all(one["outcome"] for one in told) else None

    def _fail(self, reason: str) -> None:
        """Make `get` and `wait` raise an error: the library's thread waits for a key that will not arrive."""
        with self._changed:
            self._failure = reason
            self._changed.notify_all()

    def _take(self, values: dict[str, str]) -> None:
        self._values.update({key: bytes.fromhex(value) for key, value in values.items()})
        self._changed.notify_all()
