"""The store in which a process group of torch.distributed finds its ranks: in this world's own messages.

Every rank holds all keys. What a rank sets travels to all others in rounds of a collective, so that no port is
opened for it, whoever may speak has proved the job's token, and a rank that is lost meanwhile is noticed.
"""

import threading
import time
from datetime import timedelta
from typing import Any

import torch.distributed

from ringtrain.adapter.devices import Communicator, exchange_values

_PAUSE_S = 0.001


class TorchRoundsStore(torch.distributed.Store):
    """Keys that ranks set while a group is made. `set` and `get` are called by the library, `exchange` by us."""

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
        """Return when all of `keys` are set. Raises RuntimeError where some rank could not make the group."""
        with self._changed:
            self._changed.wait_for(lambda: self._failure or self.check(keys))
            if self._failure:
                raise RuntimeError(self._failure)

    def clone(self) -> "TorchRoundsStore":
        return self

    def exchange(
        self, communicator: Communicator, make: "threading.Thread", outcome: list[str], timeout_s: float
    ) -> str:
        """Carry keys between ranks until `make` has ended on all; return why one failed, else nothing. Collective.

        `outcome`: what `make` leaves: an empty text, or what went wrong. `timeout_s`: within which it has to.
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
        """Carry what is new; return None while some rank is not done, and in the end what `exchange` does."""
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
        """Let the library's thread go, which waits for a key that will not come."""
        with self._changed:
            self._failure = reason
            self._changed.notify_all()

    def _take(self, values: dict[str, str]) -> None:
        self._values.update({key: bytes.fromhex(value) for key, value in values.items()})
        self._changed.notify_all()
