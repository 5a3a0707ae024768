"""The seam between the local cluster and what runs its pods."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

Pod = dict[str, Any]
Secrets = Mapping[str, Mapping[str, bytes]]
"""Contents of Secrets by name and key."""


class PodRunner(Protocol):
    """Runs pods and says what became of them, in the words a kubelet uses."""

    def start(self, pod: Pod, secrets: Secrets) -> None:
        """Run `pod`. A pod that cannot be started is a pod that failed, not an exception."""

    def pods(self) -> list[Pod]:
        """Every pod that is not deleted, with its status as of now."""

    def delete(self, name: str, grace_s: int | None) -> None:
        """Ask the pod to end, kill it after `grace_s` (None: its own grace period), then forget it."""

    def status_url(self, attempt: int) -> str | None:
        """Where the launcher of `attempt` serves /status; None before it was started."""

    def close(self) -> None:
        """End everything and leave nothing behind but logs and claims."""
