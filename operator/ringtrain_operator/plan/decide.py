"""List of all policies, in the order in which they decide and update the status."""

from ..status.decision import Policy
from ..workers.auxiliary import AUXILIARY_PODS
from ..workers.data_workers import AUTOSCALE
from ..workers.gang import DISRUPTION, SCALE
from ..workers.launcher_pod import LAUNCHER
from ..workers.replacing import WORKERS
from .deadlines import ACTIVE_DEADLINE, PROGRESS_DEADLINE, UNSTARTABLE
from .incomplete import INCOMPLETE, REFUSED
from .ledger import CREDENTIALS, PLACEMENTS
from .outcome import FAILURE, LOST_POD, SUCCESS
from .queueing import QUEUEING, SUSPENSION

# Order: a success in time counts whatever happens later. A suspension or a preemption precedes the judgement of a
# failure. A lost pod explains a failed rank, not the reverse.
POLICIES: tuple[Policy, ...] = (
    CREDENTIALS,
    SUCCESS,
    SUSPENSION,
    QUEUEING,
    ACTIVE_DEADLINE,
    LOST_POD,
    PLACEMENTS,
    DISRUPTION,
    REFUSED,
    INCOMPLETE,
    UNSTARTABLE,
    FAILURE,
    WORKERS,
    LAUNCHER,
    SCALE,
    PROGRESS_DEADLINE,
    AUTOSCALE,
    AUXILIARY_PODS,
)
