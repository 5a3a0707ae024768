"""Leader election by a Lease. One replica writes, the others wait, and a leader that loses the lease stops."""

import asyncio
import logging
import random
import time
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from .api.client import ApiClient
from .api.errors import AlreadyExists, ApiError, Conflict, NotFound
from .api.resources import LEASES

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class LeaseTimes:
    """Timing of the lease. After `renew_within_s` without renewal the holder stops; after `duration_s`
    others take over.
    """

    duration_s: float = 15.0
    renew_within_s: float = 10.0
    retry_s: float = 2.0


class LeaderLease:
    """The Lease `namespace/name`, which the replica `identity` wants to hold.

    Expiry is determined by how long the record has been unchanged on this machine's monotonic clock. Timestamps of
    other machines are not compared, so clock skew does no harm.
    """

    def __init__(
        self, api: ApiClient, namespace: str, name: str, identity: str, times: LeaseTimes | None = None
    ) -> None:
        self._api = api
        self._namespace = namespace
        self._name = name
        self.identity = identity
        self._times = times or LeaseTimes()
        self._seen: tuple[Any, ...] = ()
        self._seen_at = float("-inf")
        self._renewed_at = float("-inf")

    def is_held(self) -> bool:
        """Return whether this replica holds the lease and may write. It is false once a renewal is overdue."""
        return time.monotonic() - self._renewed_at < self._times.renew_within_s

    async def acquire(self) -> None:
        """Wait until this replica holds the lease."""
        reported = ""
        while True:
            holder = await self._try_once()
            if holder == self.identity:
                log.info("leader: %s holds the lease %s/%s", self.identity, self._namespace, self._name)
                return
            if holder != reported:
                log.info("standby: the lease %s/%s is held by %s", self._namespace, self._name, holder or "nobody")
                reported = holder
            await asyncio.sleep(self._times.retry_s * random.uniform(0.8, 1.2))

    async def renew_until_lost(self) -> None:
        """Renew the lease periodically. Return when it is lost; from then on the caller must not write."""
        while True:
            await asyncio.sleep(self._times.retry_s * random.uniform(0.8, 1.2))
            holder = await self._try_once()
            if holder not in (self.identity, "") or not self.is_held():
                self._renewed_at = float("-inf")
                log.error(
                    "the lease %s/%s was lost to %s", self._namespace, self._name, holder or "a failed connection"
                )
                return

    async def release(self) -> None:
        """Release the lease, so that another replica can take over at once."""
        if not self.is_held():
            return
        try:
            lease = await self._api.get(LEASES, self._namespace, self._name)
            if lease["spec"].get("holderIdentity") == self.identity:
                lease["spec"]["holderIdentity"] = ""
                await self._api.replace(LEASES, self._namespace, lease)
        except ApiError as exc:
            log.warning("the lease %s/%s was not released: %s", self._namespace, self._name, exc)
        self._renewed_at = float("-inf")

    async def _try_once(self) -> str:
        """Try once to take or renew the lease. Returns the holder's name; empty if it is unknown."""
        asked_at = time.monotonic()
        try:
            async with asyncio.timeout(self._times.renew_within_s / 2):
                holder = await self._take(asked_at)
        except (Conflict, AlreadyExists):
            return ""  # another replica wrote at the same moment: try again
        except (ApiError, TimeoutError) as exc:
            log.warning("the lease %s/%s could not be renewed: %s", self._namespace, self._name, exc)
            return ""
        if holder == self.identity:
            self._renewed_at = asked_at
        return holder

    async def _take(self, asked_at: float) -> str:
        try:
            lease = await self._api.get(LEASES, self._namespace, self._name)
        except NotFound:
            header = {"apiVersion": LEASES.api_version, "kind": LEASES.kind, "metadata": {"name": self._name}}
            await self._api.create(LEASES, self._namespace, {**header, "spec": self._record(0, None)})
            return self.identity
        spec = lease.get("spec") or {}
        holder = str(spec.get("holderIdentity") or "")
        record_now = (holder, spec.get("renewTime"), spec.get("leaseTransitions"))
        if record_now != self._seen:
            self._seen, self._seen_at = record_now, asked_at
        duration_s = float(spec.get("leaseDurationSeconds") or self._times.duration_s)
        if holder not in ("", self.identity) and asked_at - self._seen_at < duration_s:
            return holder
        transitions = int(spec.get("leaseTransitions") or 0) + (holder != self.identity)
        acquired = spec.get("acquireTime") if holder == self.identity else None
        lease["spec"] = self._record(transitions, acquired)
        await self._api.replace(LEASES, self._namespace, lease)
        return self.identity

    def _record(self, transitions: int, acquired: str | None) -> dict[str, Any]:
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        return {
            "holderIdentity": self.identity,
            "leaseDurationSeconds": max(1, round(self._times.duration_s)),
            "acquireTime": acquired or now,
            "renewTime": now,
            "leaseTransitions": transitions,
        }
