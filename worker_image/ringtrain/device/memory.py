"""The memory of a simulated device: named buffers, and no more bytes than it has."""

from ringtrain.device.session import Array
from ringtrain.errors import ConfigurationError


class Memory:
    """`capacity_bytes` of memory. `peak_bytes`: the most that was ever in use."""

    def __init__(self, capacity_bytes: int) -> None:
        self.capacity_bytes = capacity_bytes
        self.peak_bytes = 0
        self._buffers: dict[str, Array] = {}

    @property
    def used_bytes(self) -> int:
        return sum(buffer.nbytes for buffer in self._buffers.values())

    def store(self, name: str, values: Array) -> None:
        """Put `values` into the buffer `name`. Raises ConfigurationError when they do not fit."""
        old = self._buffers.get(name)
        used = self.used_bytes - (old.nbytes if old is not None else 0) + values.nbytes
        if used > self.capacity_bytes:
            raise ConfigurationError(
                f"buffer {name!r} of {values.nbytes} bytes does not fit: the device has {self.capacity_bytes} "
                "bytes and "
                f"{used - values.nbytes} are in use; make the batch or the model smaller"
            )
        self._buffers[name] = values
        self.peak_bytes = max(self.peak_bytes, used)

    def load(self, name: str) -> Array:
        """Return the buffer itself: only the device may look at it."""
        return self._buffers[name]

    def free(self, name: str) -> None:
        del self._buffers[name]

    def names(self) -> list[str]:
        return list(self._buffers)
