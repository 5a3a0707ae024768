"""Checkpoint before the pod is deleted: if any rank receives SIGTERM, all ranks stop at the same step."""

from __future__ import annotations

import signal
import threading
from types import FrameType
from typing import Self

from ringtrain._core.process_groups.group import CollectiveGroup
from ringtrain._core.process_groups.process_sets import group_of
from ringtrain.errors import ConfigurationError


class StopRequest:
    """Agreement of the ranks on the step after which they save and stop, because a rank received SIGTERM.

        with StopRequest() as stop:
            for step in range(first, steps):
                train_one(step)
                if stop.agreed():
                    checkpoints.save(step, {"optimizer": opt.shard_dict()})
                    break

    Within the block SIGTERM does not end this process. Ranks of a job with checkpoints are killed after the pod's
    `terminationGracePeriodSeconds`, less some seconds that the agent needs.
    """

    def __init__(self, group: CollectiveGroup | None = None) -> None:
        """Install a handler of SIGTERM that records the signal.

        Raises ConfigurationError outside the main thread, which alone receives signals.
        """
        if threading.current_thread() is not threading.main_thread():
            raise ConfigurationError(
                "StopRequest was created outside the main thread, which alone receives signals; "
                "create it in the main thread"
            )
        self._group = group or group_of()
        self._asked = False
        self._before = signal.signal(signal.SIGTERM, self._on_signal)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_DFL if self._before is None else self._before)

    @property
    def asked(self) -> bool:
        """Return whether this rank has received SIGTERM. Other ranks may not have received it yet."""
        return self._asked

    def agreed(self) -> bool:
        """Return whether any rank has received SIGTERM, with the same result on all ranks. Collective."""
        return any(self._group.allgather_object(self._asked, "StopRequest"))

    def _on_signal(self, _: int, __: FrameType | None) -> None:
        self._asked = True
