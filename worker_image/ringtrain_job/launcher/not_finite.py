"""Reported values that are currently NaN or infinite, and since which step."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from ringtrain.shared import contract
from ringtrain_job.control.model import Failure, Outcome, Reason, Verdict
from ringtrain_job.launcher.verdict import GangView


@dataclass(frozen=True)
class NotFinite:
    """A reported value that is not finite. `value`: NaN, Infinity or -Infinity. `since`: step of the first such report
    by `rank`."""

    value: str
    since: int
    rank: int

    def __str__(self) -> str:
        return f"{self.value} since step {self.since} (rank {self.rank})"


class NotFiniteReports:
    """Collection of values in ranks' reports that are currently NaN or infinite.

    `is_fatal`: such a loss ends the attempt, so it stays, whatever ranks report until they are stopped.
    """

    def __init__(self, is_fatal: bool = False) -> None:
        self._kept = frozenset({"loss"} if is_fatal else ())
        self._found: dict[str, dict[int, NotFinite]] = {}
        # First loss that was not finite, whatever was reported later.
        self.first_loss: NotFinite | None = None
        # Whether any report had a loss.
        self.has_loss = False

    def add(self, rank: int, report: Mapping[str, Any]) -> None:
        words = report.get("notFinite") or {}
        self.has_loss = self.has_loss or "loss" in words or report.get("loss") is not None
        for name, value in {"loss": report.get("loss"), **(report.get("metrics") or {})}.items():
            if value is not None and name in self._found.keys() - words - self._kept:
                self._found[name].pop(rank, None)
        for name, word in words.items():
            ranks = self._found.setdefault(name, {})
            since = ranks[rank].since if rank in ranks else int(report["step"])
            ranks[rank] = NotFinite(word, since, rank)
            if name == "loss" and self.first_loss is None:
                self.first_loss = ranks[rank]

    def keep(self, ranks: Collection[int]) -> None:
        """Delete the values of all ranks except `ranks`."""
        for found in self._found.values():
            for rank in found.keys() - set(ranks):
                del found[rank]

    def now(self) -> dict[str, NotFinite]:
        """Return the values that are not finite now, by name.

        If several ranks report such a value of one name, return that of the rank whose report came first, which
        `first_loss` has, too.
        """
        return {name: next(iter(found.values())) for name, found in sorted(self._found.items()) if found}


def verdict_on_loss(view: GangView, loss: NotFinite, setting: str) -> Verdict:
    """Return the failed verdict for an attempt that ends because `loss` is not finite and the user set `setting`."""
    worker = view.worker_of(loss.rank)
    failure = Failure(
        Reason.NOT_FINITE,
        f"the loss reported by rank {loss.rank} is {loss.value} since step {loss.since} ({setting})",
        loss.rank,
        worker.pod,
        worker.node,
        pod_uid=worker.pod_uid,
    )
    return Verdict(Outcome.FAILED, contract.EXIT_NOT_FINITE, view.succeeded, failure)
