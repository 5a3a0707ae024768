"""Checkpoint before the pod goes: SIGTERM noted, and agreed among the ranks."""

from __future__ import annotations

import signal
import threading
from types import FrameType
from typing import Self

from ringtrain._core.process_groups.group import CollectiveGroup
from ringtrain._core.process_groups.process_sets import group_of
from ringtrain.errors import ConfigurationError


class StopRequest:
    """Whether any rank was asked to stop, so that all save at the same step.

        with StopRequest() as stop:
            for step in range(first, steps):
                train_one(step)
                if stop.agreed():
                    checkpoints.save(step, {"optimizer": opt.shard_dict()})
                    break

    Within the block SIGTERM does not end this process. Ranks of a job that keeps checkpoints have the pod's
    `terminationGracePeriodSeconds`, but for some seconds that the agent needs, until they are killed.
    """

    def __init__(self, group: CollectiveGroup | None = None) -> None:
        """For the main thread: no other is told of signals."""
        if threading.current_thread() is not threading.main_thread():
            raise ConfigurationError("StopRequest is for the main thread, which alone is told of signals")
        self._group = group or group_of()
        self._asked = False
        self._before = signal.signal(signal.SIGTERM, self._on_signal)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_DFL if self._before is None else self._before)

    @property
    def asked(self) -> bool:
        """Whether this rank was asked to stop; others may not have been, or not yet."""
        return self._asked

    def agreed(self) -> bool:
        """Whether any rank was asked to stop: the same answer on all of them. Collective."""
        return any(self._group.allgather_object(self._asked, "StopRequest"))

    def _on_signal(self, _: int, __: FrameType | None) -> None:
        self._asked = True
