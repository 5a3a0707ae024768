"""GPUs as NVIDIA's driver sees them, where it is there and `nvidia-ml-py` is installed."""

import importlib
from typing import Any

from ringtrain_job.logs.samples import GpuUse


class Gpus:
    """The GPUs that this container has; none without driver or package."""

    def __init__(self) -> None:
        self._library: Any = None
        self._devices: list[Any] | None = None

    def look(self) -> tuple[GpuUse, ...]:
        """What each GPU is doing. The first look may take the driver a second; one that fails is asked no more."""
        try:
            if self._devices is None:
                self._devices = self._find()
            return tuple(self._use(device) for device in self._devices)
        except Exception:  # its errors have no common class where its import fails
            self._devices = []
            return ()

    def _find(self) -> list[Any]:
        self._library = importlib.import_module("pynvml")
        self._library.nvmlInit()
        count = self._library.nvmlDeviceGetCount()
        return [self._library.nvmlDeviceGetHandleByIndex(index) for index in range(count)]

    def _use(self, device: Any) -> GpuUse:
        memory = self._library.nvmlDeviceGetMemoryInfo(device)
        busy = self._library.nvmlDeviceGetUtilizationRates(device).gpu / 100
        return GpuUse(busy, memory.used, memory.total)
