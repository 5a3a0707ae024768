"""Observer that uploads the attempt's log files to an object store."""

from collections.abc import Mapping
from typing import Any

from ringtrain_job.control.model import Verdict
from ringtrain_job.launcher.observers import AttemptObserver
from ringtrain_job.launcher.registry import Attempt
from ringtrain_job.logs.shipping import LogShipping, Unshipped


class ShippedLogs(AttemptObserver):
    """Observer that uploads the log files while the attempt runs, and completes the upload at its end."""

    order = 90  # after the other observers, whose files it uploads

    def __init__(self, attempt: Attempt) -> None:
        config, store = attempt.config, attempt.status.store
        self._timeout_s, self._gives_up = config.timeout_s, attempt.gives_up
        self._shipping = LogShipping(config.log_uri, store.files, config.job.attempt, store.sizes)
        self._is_finished = False
        self._left: Unshipped | None = None

    def ended(self, verdict: Verdict | None) -> None:
        self._is_finished = True
        self._left = self._shipping.finish(self._timeout_s, self._gives_up)

    def close(self) -> None:
        if not self._is_finished:
            self.ended(None)

    def status(self) -> Mapping[str, Any]:
        return {"shipping": self._shipping.state().document()}

    def unfinished(self) -> Mapping[str, Any] | None:
        return {"unshipped": self._left.document()} if self._left else None


def open_shipping(attempt: Attempt) -> ShippedLogs | None:
    """Return the observer of a job whose logs go to an object store; None for any other job."""
    return ShippedLogs(attempt) if attempt.config.log_uri else None
