"""List of live data workers, which the launcher sends to ranks. Ranks connect to data workers directly."""

import logging
import threading
from collections.abc import Callable
from typing import Any

from ringtrain.shared.data_members import DataMember, digest, members_text
from ringtrain_job.launcher.config import LauncherConfig

log = logging.getLogger(__name__)


class DataMembers:
    """Data workers that send heartbeats to the launcher. Thread-safe; `clock` is monotonic.

    A data worker that is silent for `lost_after_s` is removed. A launcher that has just started knows no data workers.
    Until a data worker has sent a heartbeat, the launcher sends no list, and ranks continue with the data workers that
    they know.
    """

    def __init__(self, config: LauncherConfig, clock: Callable[[], float]) -> None:
        self._config = config
        self._clock = clock
        self._knows_from = clock() + config.lost_after_s
        self._lock = threading.Lock()
        self._announced: dict[int, tuple[DataMember, float]] = {}
        self._sent: tuple[tuple[DataMember, ...] | None, str, str] = None, "", ""

    def announce(self, member: DataMember) -> str:
        """Record a heartbeat of a data worker; return the reason if it is refused, otherwise ""."""
        config = self._config
        if member.job_uid != config.job.uid:
            return f"job uid {member.job_uid!r}; this launcher is of {config.job.uid!r}"
        if not config.data_workers:
            return "this job has no data workers (RINGTRAIN_DATA_WORKERS is 0 at the launcher)"
        if member.kind != config.data_kind:
            return f"kind {member.kind!r}; this job's data workers are of kind {config.data_kind!r}"
        with self._lock:
            before = self._announced.get(member.index)
            self._announced[member.index] = member, self._clock()
        if before is None or before[0].instance != member.instance:
            log.info("registered data worker %d (%s, %s)", member.index, member.pod, member.address)
        return ""

    def text_since(self, version: str) -> str:
        """Return the content of the ranks' file of data workers; "" if `version` is current or none is known."""
        if not self._config.data_workers:
            return ""
        text, known = self._text()
        return "" if known == version else text

    def _text(self) -> tuple[str, str]:
        """Return the content of the file of data workers, and its digest. The content changes only if a data worker
        joins or leaves."""
        alive = self._live_members()
        members = tuple(alive.values())
        if not alive and self._clock() < self._knows_from:
            return "", ""
        if members != self._sent[0]:
            text = members_text(self._config.data_kind, members)
            self._sent = members, text, digest(text)
        return self._sent[1:]

    def status(self) -> dict[str, Any]:
        """Return the entry about data workers in `/status`."""
        alive = self._live_members()
        with self._lock:
            known = {index: member for index, (member, _) in sorted(self._announced.items())}
        wanted = self._config.data_workers
        indices = sorted({*range(wanted), *known})
        return {
            "wanted": wanted,
            "registered": len(alive),
            "workers": [
                {"index": index, "pod": known[index].pod if index in known else "", "registered": index in alive}
                for index in indices
            ],
        }

    def _live_members(self) -> dict[int, DataMember]:
        since = self._clock() - self._config.lost_after_s
        with self._lock:
            return {index: member for index, (member, heard) in self._announced.items() if heard > since}
