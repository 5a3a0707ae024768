"""What the losses of an elastic job's pods lead to: pauses before new pods, and nodes that these avoid."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from datetime import datetime, timedelta

from ..spec.times import REMEMBERED_S, after_pause
from .model import Incarnations, JobStatus, Loss

# So many losses are kept: more than what is ever counted of one worker or of one node.
LOSSES_KEPT = 64
# One loss is bad luck, and two may be; a node that loses a worker again and again is avoided for REMEMBERED_S.
LOSSES_OF_A_BAD_NODE = 3


def incarnations_of(status: JobStatus) -> Incarnations:
    """The notes on workers' pods; empty for a job that has none yet."""
    return status.ledger.incarnations or Incarnations()


def number_of(status: JobStatus, worker: int) -> int:
    """Number of the worker's last pod; 0: none was ever made."""
    numbers = incarnations_of(status).numbers
    return numbers[worker] if worker < len(numbers) else 0


def is_present(status: JobStatus, worker: int) -> bool:
    """Whether that pod was seen alive, and not noted as lost since."""
    present = incarnations_of(status).present
    return worker < len(present) and present[worker]


def has_joined(status: JobStatus, worker: int) -> bool:
    """Whether that pod's agent has registered with the launcher."""
    joined = incarnations_of(status).joined
    return is_present(status, worker) and worker < len(joined) and joined[worker]


def made_after(status: JobStatus, worker: int | None) -> datetime | None:
    """When the next pod of `worker` may be made: after its second loss in an hour, later and later; None: at once.

    `worker` None: the launcher.
    """
    times = [loss.time for loss in incarnations_of(status).losses if loss.worker == worker]
    if not times:
        return None
    recent = sum(time > times[-1] - timedelta(seconds=REMEMBERED_S) for time in times)
    return after_pause(times[-1], recent)


def avoided_nodes(losses: Sequence[Loss], now: datetime) -> tuple[str, ...]:
    """Nodes that have lost workers again and again, and not by being asked to; the worst first."""
    since = now - timedelta(seconds=REMEMBERED_S)
    counts = Counter(loss.node for loss in losses if loss.suspect and loss.node and loss.time > since)
    return tuple(node for node, count in counts.most_common() if count >= LOSSES_OF_A_BAD_NODE)


def new_losses(before: JobStatus, after: JobStatus) -> tuple[Loss, ...]:
    """Losses that `after` tells of and `before` does not."""
    known = {(loss.worker, loss.incarnation) for loss in incarnations_of(before).losses}
    return tuple(loss for loss in incarnations_of(after).losses if (loss.worker, loss.incarnation) not in known)


def avoided_because(losses: Sequence[Loss], node: str) -> str:
    """Why a node is avoided, in a sentence."""
    found = [loss for loss in losses if loss.suspect and loss.node == node]
    return f"node {node} has lost {len(found)} workers, the last because {found[-1].pod} {found[-1].cause}"
