"""Numbers of an elastic job's pods, their recorded losses, and the nodes that these losses mark."""

from collections import Counter
from collections.abc import Sequence
from datetime import datetime, timedelta

from .. import build
from ..errors import counted
from ..observe.model import PodView
from ..status.decision import Begin, Decision, Enqueue, Finish, Halt
from ..status.ledger import REMEMBERED_S, Incarnations, Loss, next_pod_time
from ..status.model import JobStatus
from ..status.situation import Situation

# Number of recorded losses: more than are ever counted for one worker or one node.
MAX_LOSSES = 64
# A node with this many losses within REMEMBERED_S is avoided; one or two may be chance.
LOSSES_OF_A_BAD_NODE = 3


def is_recording_over(s: Situation, decision: Decision | None) -> bool:
    """Return whether losses are not recorded: before the first attempt, without pods, or after the job's end."""
    without_pods = s.is_without_pods and not isinstance(decision, Begin)
    over = without_pods or s.finished or isinstance(decision, Halt | Enqueue | Finish)
    return s.attempt == 0 or over


def loss_record(
    s: Situation,
    worker: int | None,
    pod: PodView | None,
    cause: str,
    *,
    failed: bool = False,
    suspect: bool = False,
) -> Loss:
    return Loss(
        worker=worker,
        pod=build.launcher_name(s.job) if worker is None else build.worker_name(s.job, worker),
        incarnation=incarnations_of(s.status).launcher
        if worker is None
        else worker_incarnation_number(s.status, worker),
        attempt=s.attempt,
        node=(pod.place.node or None) if pod is not None else None,
        cause=cause,
        failed=failed,
        suspect=suspect,
        time=s.now,
    )


def incarnations_of(status: JobStatus) -> Incarnations:
    """Return the record in status.ledger of the job's successive pods; empty if there is none yet."""
    return status.ledger.incarnations or Incarnations()


def worker_incarnation_number(status: JobStatus, worker: int) -> int:
    """Return the number of the worker's last pod, counted from 1; 0 if none was ever created."""
    numbers = incarnations_of(status).numbers
    return numbers[worker] if worker < len(numbers) else 0


def is_worker_present(status: JobStatus, worker: int) -> bool:
    """Return whether the worker's last pod was observed alive and is not recorded as lost."""
    present = incarnations_of(status).present
    return worker < len(present) and present[worker]


def has_joined(status: JobStatus, worker: int) -> bool:
    """Return whether the agent in the worker's last pod has registered with the launcher."""
    joined = incarnations_of(status).joined
    return is_worker_present(status, worker) and worker < len(joined) and joined[worker]


def next_creation_time(status: JobStatus, worker: int | None) -> datetime | None:
    """Return when the next pod of `worker` (None: the launcher) may be created; None if at once.

    The backoff starts with the second loss within an hour.
    """
    times = [loss.time for loss in incarnations_of(status).losses if loss.worker == worker]
    if not times:
        return None
    recent = sum(time > times[-1] - timedelta(seconds=REMEMBERED_S) for time in times)
    return next_pod_time(times[-1], recent)


def avoided_nodes(losses: Sequence[Loss], now: datetime) -> tuple[str, ...]:
    """Return the nodes on which workers were repeatedly lost for a reason that may be the node's, the worst first."""
    since = now - timedelta(seconds=REMEMBERED_S)
    counts = Counter(loss.node for loss in losses if loss.suspect and loss.node and loss.time > since)
    return tuple(node for node, count in counts.most_common() if count >= LOSSES_OF_A_BAD_NODE)


def new_worker_losses(before: JobStatus, after: JobStatus) -> tuple[Loss, ...]:
    """Return the losses that are recorded in `after` and not in `before`."""
    known = {(loss.worker, loss.incarnation) for loss in incarnations_of(before).losses}
    return tuple(loss for loss in incarnations_of(after).losses if (loss.worker, loss.incarnation) not in known)


def avoidance_text(losses: Sequence[Loss], node: str) -> str:
    """Return a text that says why new pods avoid a node."""
    found = [loss for loss in losses if loss.suspect and loss.node == node]
    return f"node {node} has lost {counted(len(found), 'worker')}, the last because {found[-1].pod} {found[-1].cause}"
