"""Which reported values are not finite now, and since when."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from ringtrain.shared import contract
from ringtrain_job.control.model import Failure, Outcome, Reason, Verdict
from ringtrain_job.launcher.verdict import GangView


@dataclass(frozen=True)
class NotFinite:
    """`value`: NaN, Infinity or -Infinity. `since`: the step from which on `rank`, which reported it first, has
    done so.
    """

    value: str
    since: int
    rank: int

    def __str__(self) -> str:
        return f"{self.value} since step {self.since} (rank {self.rank})"


class NotFiniteReports:
    """Takes in reports, rank by rank. A value that is finite again is none of these any more."""

    def __init__(self) -> None:
        self._found: dict[str, dict[int, NotFinite]] = {}
        # The loss that was not finite first, whatever came then.
        self.first_loss: NotFinite | None = None

    def add(self, rank: int, report: Mapping[str, Any]) -> None:
        words = report.get("notFinite") or {}
        for name, value in {"loss": report.get("loss"), **(report.get("metrics") or {})}.items():
            if value is not None and name not in words and name in self._found:
                self._found[name].pop(rank, None)
        for name, word in words.items():
            ranks = self._found.setdefault(name, {})
            since = ranks[rank].since if rank in ranks else int(report["step"])
            ranks[rank] = NotFinite(word, since, rank)
            if name == "loss" and self.first_loss is None:
                self.first_loss = ranks[rank]

    def keep(self, ranks: Collection[int]) -> None:
        """Forget what other ranks have reported."""
        for found in self._found.values():
            for rank in found.keys() - set(ranks):
                del found[rank]

    def now(self) -> dict[str, NotFinite]:
        """By name of the value: of all ranks the one with which it began."""
        first = {
            name: min(found.values(), key=lambda one: (one.since, one.rank))
            for name, found in self._found.items()
            if found
        }
        return dict(sorted(first.items()))


def verdict_on_loss(view: GangView, loss: NotFinite) -> Verdict:
    """How an attempt ends that is to fail by a loss that is not finite. It names no exit: no rank has ended."""
    worker = view.worker_of(loss.rank)
    failure = Failure(
        Reason.NOT_FINITE,
        f"the loss that rank {loss.rank} reported is {loss.value} since step {loss.since} (--fail-on-nan, failOnNaN)",
        loss.rank,
        worker.pod,
        worker.node,
        pod_uid=worker.pod_uid,
    )
    return Verdict(Outcome.FAILED, contract.EXIT_NOT_FINITE, view.succeeded, failure)
